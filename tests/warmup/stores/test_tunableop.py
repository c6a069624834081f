from __future__ import annotations

import json
from pathlib import Path

import pytest

from handlers.spec import ModelSpec
from warmup.stores import tunableop
from warmup.stores.registry import STORES
from warmup.stores.store import Phase
from warmup.stores.tunableop import TunableOpMismatch, TunableOpStore

# As PyTorch 2.11 wrote it on a GPU, but for the names of the choices, which are those of its documentation.
TABLE = """Validator,PT_VERSION,2.11.0
GemmTunableOp_float_NN,nn_16_64_32_ld_16_32_16,Gemm_Hipblaslt_1219,0.0131626
GemmAndBiasTunableOp_Half_TN,tn_16_64_32_ld_32_32_16,Default,0.011473
"""
GEMM = "GemmTunableOp_float_NN nn_16_64_32_ld_16_32_16"
OP = "onnxruntime::rocm::tunable::blas::GemmTunableOp<float>"
# As InferenceSession.get_tuning_results gives it (ONNX Runtime 1.22, ROCm).
DOCUMENT = [
    {
        "ep": "ROCMExecutionProvider",
        "results": {OP: {"NN_64_4_32": 7}},
        "validators": {"ORT_VERSION": "1.22.2", "DEVICE_MODEL": "gfx942"},
    }
]


@pytest.fixture
def store() -> TunableOpStore:
    return TunableOpStore()


def fill(root: Path, table: str | None = TABLE, document: object = None) -> Path:
    for name, text in (("torch/results0.csv", table), ("onnxruntime/m.json", document and json.dumps(document))):
        if text:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(str(text))
    return root


def spec(**engine: object) -> ModelSpec:
    return ModelSpec.model_validate(
        {
            "name": "m",
            "engine": engine,
            "inputs": [{"name": "x", "dtype": "fp32", "dims": ["n", 4]}],
            "shapes": {"list": ["x=1x4:fp32"]},
        }
    )


def test_it_is_for_models_that_ask_for_it(store: TunableOpStore, monkeypatch: pytest.MonkeyPatch) -> None:
    assert any(isinstance(known, TunableOpStore) for known in STORES)
    torch = {"kind": "torch", "source": "net.py:Net", "weights": "random:1"}
    onnx = {"kind": "onnx", "source": "net.onnx", "providers": ["rocm", "cpu"]}
    assert not store.applies(spec(**onnx))
    assert not store.applies(spec(**onnx, options={"rocm": {"tunable_op_enable": "0"}}))
    assert store.applies(spec(**onnx, options={"rocm": {"tunable_op_enable": "1"}}))
    for hip in (False, True):
        monkeypatch.setattr(tunableop, "torch_is_for_hip", lambda hip=hip: hip)
        assert store.applies(spec(**torch, search=True)) is hip
        assert not store.applies(spec(**torch))


@pytest.mark.parametrize(
    ("phase", "search"), [(Phase.TUNE, True), (Phase.SEAL, False), (Phase.PROVE, True), (Phase.SERVE, False)]
)
def test_only_tuning_and_proving_search(store: TunableOpStore, tmp_path: Path, phase: Phase, search: bool) -> None:
    settings = store.settings(phase, tmp_path / "root")
    assert settings.environment["PYTORCH_TUNABLEOP_ENABLED"] == "1"
    assert settings.environment["PYTORCH_TUNABLEOP_TUNING"] == ("1" if search else "0")
    assert settings.environment["PYTORCH_TUNABLEOP_FILENAME"] == str(tmp_path / "root" / "torch" / "results%d.csv")
    assert settings.engine["onnxruntime.tuning"] == ("search" if search else "use")
    assert (tmp_path / "root" / "torch").is_dir()


def test_every_product_is_an_entry_whatever_time_it_took(store: TunableOpStore, tmp_path: Path) -> None:
    one = store.entries(fill(tmp_path / "a", document=DOCUMENT))
    assert one[f"torch/results0.csv {GEMM}"] == "Gemm_Hipblaslt_1219"
    assert one[f"onnxruntime/m.json ROCMExecutionProvider {OP} NN_64_4_32"] == "7"
    assert len(one) == 3
    slower = TABLE.replace("0.0131626", "0.5")
    assert store.entries(fill(tmp_path / "b", slower, DOCUMENT)) == one
    assert store.entries(tmp_path / "nothing") == {}


def test_merging_keeps_the_faster_choice_and_the_validators(store: TunableOpStore, tmp_path: Path) -> None:
    first = fill(tmp_path / "first", document=DOCUMENT)
    faster = TABLE.replace("Gemm_Hipblaslt_1219,0.0131626", "Gemm_Rocblas_9,0.002")
    other = json.loads(json.dumps(DOCUMENT))
    (results,) = other[0]["results"].values()
    results |= {"NN_64_4_32": 8, "NN_1_1_1": 3}
    second = fill(tmp_path / "second", faster + "GemmTunableOp_float_NT,nt_1_2_3,Default,0.1\n", other)
    into = tmp_path / "into"
    report = store.merge(into, [first, second])
    assert (report.added, report.present, len(report.conflicts)) == (3 + 2, 3, 2)
    entries = store.entries(into)
    assert entries[f"torch/results0.csv {GEMM}"] == "Gemm_Rocblas_9"
    documents = {key.split(" ")[-1]: value for key, value in entries.items() if key.startswith("onnxruntime")}
    assert documents == {"NN_64_4_32": "7", "NN_1_1_1": "3"}
    assert store.check(into) == []
    assert (
        (into / "torch" / "results0.csv").read_text().startswith("Validator,PT_VERSION,2.11.0\nGemmTunableOp_float_NN,")
    )


def test_choices_of_other_libraries_are_not_mixed(store: TunableOpStore, tmp_path: Path) -> None:
    mine, theirs = fill(tmp_path / "a"), fill(tmp_path / "b", TABLE.replace("2.11.0", "2.10.0"))
    with pytest.raises(TunableOpMismatch, match=r"PT_VERSION 2\.10\.0, .* with 2\.11\.0"):
        store.merge(tmp_path / "into", [mine, theirs])


def test_damage_is_found(store: TunableOpStore, tmp_path: Path) -> None:
    root = fill(tmp_path / "a", TABLE + "GemmTunableOp_fl\n", [{"ep": 1}])
    found = {finding.where: finding for finding in store.check(root)}
    assert found.keys() == {"torch/results0.csv:4", "onnxruntime/m.json"}
    assert found["torch/results0.csv:4"].repairable
    (bare,) = store.check(fill(tmp_path / "b", TABLE.split("\n", 1)[1]))
    assert bare.what == "no validators"
