from __future__ import annotations

import bz2
import hashlib
import sys
from pathlib import Path

import pytest

from handlers.spec import ModelSpec
from warmup.miopen import kernelcache
from warmup.miopen.merge import MergeRefused
from warmup.stores import miopen
from warmup.stores.miopen import MIOpenStore
from warmup.stores.store import Phase

STEM = "gfx942130.HIP.3_4_0_"
KEYS = [f"8-14-14-3x3-8-14-14-{batch}-1x1-1x1-1x1-0-NCHW-FP32-F" for batch in range(1, 5)]
GEMM, DIRECT = "miopenConvolutionFwdAlgoGEMM", "miopenConvolutionFwdAlgoDirect"
PERF = "2x64x56x56x1x3x3x1x64x16x1x1x0x1x1x0x1x1x0x0x1xNCHWxFP32xF"


def line(key: str, gemm: float = 2.0, direct: float = 1.0) -> str:
    return f"{key}=GemmFwdRest:{gemm},64,{GEMM};ConvDirectNaiveConvFwd:{direct},0,{DIRECT}\n"


def kernel(name: str, code: bytes = b"code") -> kernelcache.Kernel:
    digest = hashlib.md5(code, usedforsecurity=False).hexdigest()
    return kernelcache.Kernel(name, " -mcpu=gfx942", bz2.compress(code), digest, len(code))


def fill(root: Path, text: str = "", kernels: tuple[kernelcache.Kernel, ...] = (), stem: str = STEM) -> Path:
    for folder in ("db", "cache", "tmp"):
        (root / folder).mkdir(parents=True)
    (root / "db" / f"{stem}.ufdb.txt").write_text(text)
    if kernels:
        kernelcache.write(root / "cache" / f"{stem.split('.')[0]}.ukdb", kernels)
    return root


def spec(**engine) -> ModelSpec:
    engine = {"kind": "onnx", "source": "model.onnx", **engine}
    inputs = [{"name": "x", "dtype": "fp32", "dims": [1]}]
    return ModelSpec.model_validate({"name": "m", "engine": engine, "inputs": inputs, "shapes": {"list": ["x=1:fp32"]}})


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MIOpenStore:
    """A store on a machine with an MI300X."""
    monkeypatch.setattr(miopen, "database_stem", lambda: STEM)
    return MIOpenStore()


def test_each_phase_has_its_mode_and_private_directories(tmp_path):
    modes, enforced, benchmark = {}, {}, {}
    for phase in Phase:
        settings = MIOpenStore().settings(phase, tmp_path / phase.value)
        environment = settings.environment
        modes[phase.value], enforced[phase.value] = environment["MIOPEN_FIND_MODE"], environment["MIOPEN_FIND_ENFORCE"]
        benchmark[phase.value] = settings.framework["torch.backends.cudnn.benchmark"]
        for name in ("MIOPEN_USER_DB_PATH", "MIOPEN_CUSTOM_CACHE_DIR", "TMPDIR"):
            assert Path(environment[name]).is_dir() and Path(environment[name]).parent == tmp_path / phase.value
    assert modes == {"tune": "1", "seal": "2", "prove": "5", "serve": "2"}
    assert enforced == {"tune": "3", "seal": "1", "prove": "1", "serve": "1"}
    assert benchmark == {"tune": True, "seal": False, "prove": False, "serve": False}


def test_a_server_may_record_its_misses_but_never_search_what_is_recorded(tmp_path, monkeypatch):
    monkeypatch.setenv(miopen.SERVE_MODE, "5")
    assert MIOpenStore().settings(Phase.SERVE, tmp_path).environment["MIOPEN_FIND_MODE"] == "5"
    assert MIOpenStore().settings(Phase.SEAL, tmp_path).environment["MIOPEN_FIND_MODE"] == "2"
    monkeypatch.setenv(miopen.SERVE_MODE, "1")
    with pytest.raises(ValueError, match="PREHEAT_MIOPEN_SERVE_MODE is '1'; allowed: 2, 3, 5"):
        MIOpenStore().settings(Phase.SERVE, tmp_path)


@pytest.mark.parametrize(("hip", "applies"), [("None", False), ("'6.4.43482'", True)])
def test_torch_models_use_it_where_pytorch_is_built_for_hip(tmp_path, monkeypatch, hip, applies):
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "version.py").write_text(f"cuda: Optional[str] = None\nhip: Optional[str] = {hip}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert MIOpenStore().applies(spec(kind="torch", source="net.pt2")) is applies


@pytest.mark.parametrize(("providers", "applies"), [(["rocm", "cpu"], True), (["migraphx"], False), (["cpu"], False)])
def test_onnx_models_use_it_where_an_amd_provider_is_wanted_and_there(tmp_path, monkeypatch, providers, applies):
    package = tmp_path / "onnxruntime"
    (package / "capi").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "capi" / "libonnxruntime_providers_rocm.so").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    assert MIOpenStore().applies(spec(providers=providers)) is applies


def test_identity_is_read_from_the_name_of_the_database(store, monkeypatch):
    monkeypatch.setenv("PYTORCH_MIOPEN_SUGGEST_NHWC", "1")
    monkeypatch.delenv("PYTORCH_MIOPEN_SUGGEST_NHWC_BATCHNORM", raising=False)
    assert store.identity() == {
        "arch": "gfx942",
        "units": "304",
        "xnack": "off",
        "version": "3.4.0",
        "layout": "PYTORCH_MIOPEN_SUGGEST_NHWC=1 PYTORCH_MIOPEN_SUGGEST_NHWC_BATCHNORM=0",
    }
    monkeypatch.setattr(miopen, "database_stem", lambda: "gfx90a_xnack68.HIP.3_5_1_76e3cde91")
    facts = store.identity()
    assert (facts["arch"], facts["units"], facts["xnack"]) == ("gfx90a", "104", "on")
    assert facts["version"] == "3.5.1.76e3cde91"


def test_identity_without_miopen_says_none(monkeypatch):
    def fails() -> str:
        raise miopen.ProbeError("no library")

    monkeypatch.setattr(miopen, "database_stem", fails)
    facts = MIOpenStore().identity()
    assert {facts[name] for name in ("arch", "units", "xnack", "version")} == {"none"}


def test_entries_are_records_parameters_and_kernels_by_key(store, tmp_path):
    root = fill(tmp_path / "store", line(KEYS[0]), (kernel("naive.o"),))
    (root / "db" / f"{STEM}.udb.txt").write_text(f"{PERF}=ConvOclDirectFwd:16,16\n")
    (root / "db" / f"{STEM}.fusion.ufdb.txt").write_text("conv, bias=FusedSolver:1,0,x\n")
    (root / "db" / f"{STEM}.ufdb.txt.time").write_text("1")
    entries = store.entries(root)
    assert set(entries) == {f"find:{KEYS[0]}", f"perf:{PERF}", "fusion:conv, bias", "kernel:naive.o  -mcpu=gfx942"}
    assert store.problem_keys(root) == {KEYS[0]}
    (root / "db" / f"{STEM}.ufdb.txt").write_text(line(KEYS[0], gemm=3))
    changed = store.entries(root)
    assert changed.keys() == entries.keys() and changed[f"find:{KEYS[0]}"] != entries[f"find:{KEYS[0]}"]


def test_entries_of_a_store_that_is_not_there_are_none(store, tmp_path):
    assert store.entries(tmp_path / "nothing") == {}


def test_merge_takes_the_fastest_times_and_every_kernel(store, tmp_path):
    one = fill(tmp_path / "one", line(KEYS[0], gemm=2, direct=1) + line(KEYS[1]), (kernel("a.o"), kernel("b.o")))
    two = fill(tmp_path / "two", line(KEYS[0], gemm=0.5, direct=3) + line(KEYS[2]), (kernel("b.o"), kernel("c.o")))
    into = tmp_path / "into"
    report = store.merge(into, [one, two])
    assert (report.added, report.present) == (6, 0)
    assert store.problem_keys(into) == set(KEYS[:3])
    kernels = [entry for entry in store.entries(into) if entry.startswith("kernel:")]
    assert sorted(entry.split()[0] for entry in kernels) == ["kernel:a.o", "kernel:b.o", "kernel:c.o"]
    record = store.entries(into)[f"find:{KEYS[0]}"]
    assert "GemmFwdRest:0.5," in record and "ConvDirectNaiveConvFwd:1," in record
    (conflict,) = report.conflicts
    assert KEYS[0] in conflict and "kept GemmFwdRest" in conflict
    assert store.merge(into, [one]).added == 0
    assert store.check(into) == []


def test_merge_reports_a_kernel_that_was_compiled_to_other_code(store, tmp_path):
    one = fill(tmp_path / "one", line(KEYS[0]), (kernel("a.o", b"one"),))
    two = fill(tmp_path / "two", line(KEYS[1]), (kernel("a.o", b"two"),))
    report = store.merge(one, [two])
    assert report.conflicts == ("gfx942130.ukdb: a.o  -mcpu=gfx942: compiled to other code; kept the first",)
    assert (report.added, report.present) == (1, 1)


@pytest.mark.parametrize("stem", ["gfx942e4.HIP.3_4_0_", "gfx90a130.HIP.3_4_0_", "gfx942130.HIP.3_4_1_"])
def test_merge_refuses_stores_of_another_device_or_version(store, tmp_path, stem):
    mine, other = fill(tmp_path / "mine", line(KEYS[0])), fill(tmp_path / "other", line(KEYS[1]), stem=stem)
    with pytest.raises(MergeRefused, match=stem.split(".")[0]):
        store.merge(mine, [other])
    assert store.problem_keys(mine) == {KEYS[0]}


def test_check_names_damage_and_foreign_files_by_their_place(store, tmp_path):
    root = fill(tmp_path / "store", line(KEYS[0]) + f"{KEYS[1]}=GemmFwdRest:\n", (kernel("a.o"),))
    (root / "db" / "gfx90a68.HIP.3_4_0_.ufdb.txt").write_text(line(KEYS[2]))
    (root / "db" / f"{STEM}.udb.txt").touch()
    told = {(finding.where, finding.what, finding.repairable) for finding in store.check(root)}
    foreign = "db/gfx90a68.HIP.3_4_0_.ufdb.txt"
    assert {where for where, _, _ in told} == {f"db/{STEM}.ufdb.txt:2", foreign}
    assert (foreign, "it is of gfx90a, the device is a gfx942", False) in told
    assert all(repairable for where, _, repairable in told if where != foreign)


def test_a_kernel_cache_that_sqlite_cannot_read_is_damage_and_no_crash(store, tmp_path):
    root = fill(tmp_path / "store", line(KEYS[0]))
    (root / "cache" / "gfx942130.ukdb").write_bytes(b"junk" * 500)
    assert [finding.where for finding in store.check(root)] == ["cache/gfx942130.ukdb"]


def test_tidy_leaves_records_and_kernels_and_nothing_of_this_machine(store, tmp_path):
    root = fill(tmp_path / "store", line(KEYS[0]), (kernel("a.o"),))
    before = store.entries(root)
    (root / "db" / f"{STEM}.ufdb.txt.time").write_text("123")
    (root / "db" / f"{STEM}.udb.txt").touch()
    (root / "db" / miopen.LOCKS).mkdir()
    (root / "db" / miopen.LOCKS / f"{STEM}.ufdb.txt.lock").touch()
    (root / "tmp" / "miopen-lockfiles").mkdir()
    (root / "tmp" / "miopen-lockfiles" / "x.lock").touch()
    store.tidy(root)
    left = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    assert left == ["cache/gfx942130.ukdb", f"db/{STEM}.ufdb.txt"]
    assert not (root / "tmp").exists() and not (root / "db" / miopen.LOCKS).exists()
    assert store.entries(root) == before


def test_reclaim_keeps_whole_records_and_mends_what_was_cut(store, tmp_path):
    root = fill(tmp_path / "store", line(KEYS[0]) + line(KEYS[1]).rstrip("\n")[:-10])
    (finding, *_) = store.reclaim(root, {})
    assert finding.where.startswith(f"db/{STEM}.ufdb.txt")
    assert store.check(root) == []
    text = (root / "db" / f"{STEM}.ufdb.txt").read_text()
    assert text.startswith(line(KEYS[0])) and f"{KEYS[1]}=GemmFwdRest:2.0,64,{GEMM}\n" in text
    assert store.reclaim(root, {}) == []


@pytest.mark.parametrize("renamed", [True, False])
def test_reclaim_ends_a_rewrite_that_was_cut_short(store, tmp_path, renamed):
    """MIOpen writes a copy, removes the database, and renames the copy: between these the copy is all there is."""
    root = fill(tmp_path / "store", line(KEYS[0]))
    database = root / "db" / f"{STEM}.ufdb.txt"
    temporary = database.with_name(f"{database.name}.temp")
    if renamed:
        database.rename(temporary)
    else:
        temporary.write_text(line(KEYS[0])[:30])
    assert [finding.repairable for finding in store.reclaim(root, {})] == [True]
    assert database.read_text() == line(KEYS[0]) and not temporary.exists()
