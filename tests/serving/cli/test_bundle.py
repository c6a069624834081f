from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from handlers.shapes import Shape
from serving.cli import output
from serving.cli.bundle import app
from warmup.bundle import ledger
from warmup.bundle.build import build
from warmup.bundle.manifest import Bundle, BundledModel, Manifest
from warmup.identity import node
from warmup.plan import Plan, PlannedShape
from warmup.proof import Proof, ShapeProof
from warmup.stores.onnxruntime import OnnxRuntimeStore

SHAPES = ("x=1x3:fp32", "x=2x3:fp32")


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("PREHEAT_TRUSTED_KEYS", raising=False)
    monkeypatch.chdir(tmp_path)
    # Whichever width was found when the module was imported, tables are looked at without line breaks.
    monkeypatch.setattr(output.console, "_width", 200)
    monkeypatch.setattr(output.console, "_height", 50)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Bundle]:
    """Builds a bundle of ONNX Runtime's store with a file of this content."""

    def _make(
        name: str = "made",
        content: bytes = b"graph",
        file: str = "a.bin",
        shard: str = "",
        proven: tuple[str, ...] = SHAPES,
        identity: dict[str, str] | None = None,
    ) -> Bundle:
        path = tmp_path / name / "stores" / "onnxruntime" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        shapes = [Shape.parse(text) for text in SHAPES]
        model = BundledModel(
            "1",
            "sha256:" + "0" * 64,
            Plan("m", tuple(PlannedShape(shape, 0.5) for shape in shapes)),
            Proof("m", tuple(ShapeProof(s, 0.5, s.text in proven, 2.0, 0.01, 0.005) for s in shapes)),
        )
        return build(
            tmp_path / name,
            identity=node() if identity is None else identity,
            models={"m": model},
            stores=[OnnxRuntimeStore()],
            shard=shard,
        )

    return _make


def preheat(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def said(result: Result) -> Any:
    return json.loads(result.stdout)


def test_inspect_shows_what_is_in_it(make: Callable[..., Bundle]) -> None:
    made = make(proven=SHAPES[:1])
    result = preheat("inspect", "made")
    assert result.exit_code == 0
    for part in (made.digest, "made here", "x=2x3:fp32", "no: new entries", "1 entries, 5 bytes"):
        assert part in result.stdout
    facts = said(preheat("inspect", "made", "--json"))
    assert facts["digest"] == made.digest
    assert facts["made_here"] is True
    assert facts["models"]["m"]["coverage"] == 0.5
    assert facts["stores"] == {"onnxruntime": {"entries": 1, "bytes": 5}}


def test_what_a_bundle_says_is_shown_as_it_is(make: Callable[..., Bundle]) -> None:
    make(identity={"rocm": "[/opt/rocm/lib]", "torch": "[bold]2[/bold]"})
    make("other", identity={"rocm": "[/]"})
    shown = preheat("inspect", "made")
    assert shown.exit_code == 0
    for said_so in ("[/opt/rocm/lib]", "[bold]2[/bold]"):
        assert said_so in shown.stdout
        assert said_so in preheat("diff", "made", "other").stdout


def test_verify_ends_with_1_where_a_byte_is_wrong_and_names_the_file(make: Callable[..., Bundle]) -> None:
    made = make()
    good = preheat("verify", "made", "--json")
    assert (good.exit_code, said(good)["digest"]) == (0, made.digest)
    (made.root / "stores/onnxruntime/a.bin").write_bytes(b"grapf")
    bad = preheat("verify", "made")
    assert bad.exit_code == 1
    assert "stores/onnxruntime/a.bin: sha256" in bad.stderr
    assert bad.stderr.count("\n") == 1


def test_verify_ends_with_1_where_it_is_not_trusted_and_2_where_there_is_nothing(make: Callable[..., Bundle]) -> None:
    make()
    ledger.path().unlink()
    assert preheat("verify", "made").exit_code == 1
    assert preheat("verify", "made", "--trust").exit_code == 0
    assert preheat("verify", "nothing").exit_code == 2


def test_verify_here_names_every_field_that_differs(make: Callable[..., Bundle]) -> None:
    make()
    assert preheat("verify", "made", "--here").exit_code == 0
    make("other", identity={**node(), "gpu_arch": "gfx942", "torch": "1.0"})
    result = preheat("verify", "other", "--here")
    assert result.exit_code == 1
    assert "gpu_arch: expected gfx942, found " in result.stderr
    assert "torch: expected 1.0, found " in result.stderr


def test_publish_and_pull_by_digest_key_and_trust(make: Callable[..., Bundle], tmp_path: Path) -> None:
    made = make()
    assert preheat("keygen", "k").exit_code == 0
    assert preheat("keygen", "k").exit_code == 2
    assert preheat("sign", "made", "--key", "k.pem").exit_code == 0
    assert preheat("publish", "made", "shared/v1.tar").exit_code == 0
    ledger.path().unlink()
    refused = preheat("pull", "shared/v1.tar", "got")
    assert refused.exit_code == 1
    assert not (tmp_path / "got").exists()
    for part in ("--digest", "--key", "--trust", "no key is configured"):
        assert part in refused.stderr
    for number, way in enumerate((["--digest", made.digest], ["--key", "k.pub"], ["--trust"])):
        pulled = preheat("pull", "shared/v1.tar", f"got-{number}", *way, "--json")
        assert pulled.exit_code == 0
        assert said(pulled)["path"] == str(tmp_path / f"got-{number}")
    other = preheat("pull", "shared/v1.tar", "other", "--digest", "sha256:" + "0" * 64, "--trust")
    assert other.exit_code == 1
    assert made.digest in other.stderr


def test_no_command_shows_what_is_secret_in_a_url(make: Callable[..., Bundle]) -> None:
    make()
    location = "memory://v-secrets.tar?token=secret"
    results = [
        preheat("publish", "made", location),
        preheat("publish", "made", location, "--json"),
        preheat("verify", location),
        preheat("inspect", location),
    ]
    assert [result.exit_code for result in results] == [0] * len(results)
    ledger.path().unlink()
    for command in ("verify", "pull"):
        result = preheat(command, location, *(["got"] if command == "pull" else []))
        assert (result.exit_code, "memory://v-secrets.tar: sha256:" in result.stderr) == (1, True)
        results.append(result)
    assert not any("token" in result.output for result in results)


def test_pull_into_a_cache(make: Callable[..., Bundle], tmp_path: Path) -> None:
    made = make()
    pulled = preheat("pull", "made", "--cache", "cache", "--json")
    assert said(pulled)["path"] == str(tmp_path / "cache" / made.digest.replace(":", "-"))
    assert preheat("pull", "made", "into", "--cache", "cache").exit_code == 2
    assert preheat("pull", "made").exit_code == 2


def test_diff_ends_with_1_where_something_differs(make: Callable[..., Bundle]) -> None:
    make()
    make("other", b"more")
    assert preheat("diff", "made", "made").exit_code == 0
    result = preheat("diff", "made", "other", "--json")
    assert result.exit_code == 1
    assert [one["name"] for one in said(result)["differences"]] == ["onnxruntime", "stores/onnxruntime/a.bin"]
    assert "stores/onnxruntime/a.bin" in preheat("diff", "made", "other").stdout


def test_merge_joins_shards(make: Callable[..., Bundle], tmp_path: Path) -> None:
    make("one", b"1", "1.bin", "1/2", SHAPES[:1])
    make("two", b"2", "2.bin", "2/2", SHAPES[1:])
    merged = preheat("merge", "one", "two", "--into", "whole", "--json")
    assert merged.exit_code == 0, merged.stderr
    assert said(merged)["needs_prove"] == []
    assert said(preheat("inspect", "whole", "--json"))["models"]["m"]["proven"] == 2
    assert preheat("verify", "whole").exit_code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"state", "one", "two", "whole"}


def test_merge_ends_with_1_where_shards_do_not_fit_or_need_a_proof(make: Callable[..., Bundle]) -> None:
    make("one", b"1", "1.bin", "1/3", SHAPES[:1])
    make("two", b"2", "2.bin", "2/3", SHAPES[1:])
    missing = preheat("merge", "one", "two", "--into", "whole")
    assert (missing.exit_code, "shards 3/3 missing" in missing.stderr) == (1, True)
    make("a", b"one", "same.bin", "1/2", SHAPES[:1])
    make("b", b"two", "same.bin", "2/2", SHAPES[1:])
    conflict = preheat("merge", "a", "b", "--into", "both", "--json")
    assert conflict.exit_code == 1
    assert [(one["model"], one["shape"]) for one in said(conflict)["needs_prove"]] == [("m", SHAPES[1])]
    assert said(preheat("inspect", "both", "--json"))["models"]["m"]["proven"] == 1


def test_merge_names_the_shards_as_they_were_given(make: Callable[..., Bundle]) -> None:
    make("one", shard="1/2")
    make("two", shard="2/2", identity={**node(), "torch": "1.0"})
    refused = preheat("merge", "one", "two", "--into", "whole")
    assert refused.exit_code == 1
    assert refused.stderr.startswith("preheat: not the same identity as one: two: torch: expected ")
    make("two")
    mixed = preheat("merge", "one", "two", "--into", "whole")
    assert mixed.exit_code == 1
    assert mixed.stderr.startswith("preheat: two is of a whole sweep")


def test_merge_takes_strangers_by_digest_only(make: Callable[..., Bundle]) -> None:
    one = make("one", b"1", "1.bin", "1/2", SHAPES[:1])
    two = make("two", b"2", "2.bin", "2/2", SHAPES[1:])
    ledger.path().unlink()
    pins = ["--digest", one.digest, "--digest", two.digest]
    refused = preheat("merge", "one", "two", "--into", "whole", *pins[:2])
    assert (refused.exit_code, f"{two.digest} is not trusted" in refused.stderr) == (1, True)
    unmatched = preheat("merge", "one", "two", "--into", "whole", *pins, "--digest", "sha256:" + "0" * 64)
    assert (unmatched.exit_code, f"no bundle here is sha256:{'0' * 64}" in unmatched.stderr) == (1, True)
    assert preheat("merge", "one", "two", "--into", "whole", *pins).exit_code == 0


def test_a_strangers_manifest_is_not_parsed(make: Callable[..., Bundle], monkeypatch: pytest.MonkeyPatch) -> None:
    one = make("one", b"1", "1.bin", "1/2", SHAPES[:1])
    make("two", b"2", "2.bin", "2/2", SHAPES[1:])
    ledger.path().unlink()
    parsed: list[bytes] = []
    monkeypatch.setattr(Manifest, "from_bytes", parsed.append)
    for command in (["verify", "one"], ["merge", "two", "one", "--into", "whole", "--digest", one.digest]):
        refused = preheat(*command)
        assert (refused.exit_code, "is not trusted" in refused.stderr) == (1, True)
    assert parsed == []


@pytest.mark.parametrize("command", ["inspect", "verify", "sign"])
def test_a_broken_manifest_is_one_line_and_no_trace(make: Callable[..., Bundle], tmp_path: Path, command: str) -> None:
    made = make()
    preheat("keygen", "k")
    (made.root / "manifest.json").write_bytes(made.manifest.to_bytes()[:200])
    result = preheat(
        command, "made", *(["--key", "k.pem"] if command == "sign" else ["--trust"] * (command == "verify"))
    )
    assert result.exit_code == 1
    assert result.stderr.startswith("preheat: made: manifest.json: is not JSON")
    assert result.stderr.count("\n") == 1


def test_prune_removes_copies_that_nobody_has_used_for_a_while(tmp_path: Path) -> None:
    path = tmp_path / f"sha256-{'a' * 64}"
    path.mkdir()
    (path / "file").write_bytes(b"x" * 1000)
    os.utime(path, (0, 0))
    dry = CliRunner().invoke(app, ["prune", "--cache", str(tmp_path), "--dry-run"])
    assert dry.exit_code == 0 and "1 copy, 0.0 MB, would be removed" in dry.output and path.exists()
    done = CliRunner().invoke(app, ["prune", "--cache", str(tmp_path), "--json"])
    removed = {"digest": "sha256:" + "a" * 64, "path": str(path), "bytes": 1000}
    assert json.loads(done.output) == {"removed": [removed], "failed": [], "dry_run": False}
    assert CliRunner().invoke(app, ["prune", "--cache", str(tmp_path)]).output.startswith("0 copies")
    assert CliRunner().invoke(app, ["prune", "--cache", str(tmp_path), "--unused", "-1"]).exit_code == 2
    assert CliRunner().invoke(app, ["prune", "--cache", str(tmp_path), "--unused", "nan"]).exit_code == 2
