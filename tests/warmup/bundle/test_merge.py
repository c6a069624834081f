from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from handlers.shapes import Shape
from warmup.bundle import ledger
from warmup.bundle import merge as merging
from warmup.bundle.files import BundleError, BundleRefused
from warmup.bundle.manifest import Bundle, BundledModel, open_bundle
from warmup.bundle.merge import MergeRefused, merge
from warmup.plan import Plan, PlannedShape
from warmup.proof import Proof, ShapeProof
from warmup.sweep import sweep

SHAPES = tuple(f"images={n}x3x32x32:fp32" for n in (1, 2, 3, 4))
DIGEST = "sha256:" + "0" * 64


def model(weights: dict[str, float], proven: tuple[str, ...], digest: str = DIGEST, version: str = "1") -> BundledModel:
    """A model with these planned shapes; those that are not proven were left to other shards."""
    return BundledModel(
        version=version,
        digest=digest,
        plan=Plan("digits", tuple(PlannedShape(Shape.parse(text), weight) for text, weight in weights.items())),
        proof=Proof(
            "digits",
            tuple(
                ShapeProof(Shape.parse(text), weight, True, 2.0, 0.01, 0.005, {"kernels": 0})
                if text in proven
                else ShapeProof(Shape.parse(text), weight, False, reason="shard")
                for text, weight in weights.items()
            ),
        ),
    )


QUARTERS = dict.fromkeys(SHAPES, 0.25)


@pytest.fixture
def shards(make: Callable[..., Bundle]) -> Callable[..., list[Bundle]]:
    """Two shards of a sweep over four shapes, each with a file of its own and one that both have."""

    def _shards(*changes: dict) -> list[Bundle]:
        made = []
        for index in (1, 2):
            mine = SHAPES[index - 1 :: 2]
            facts: dict = {
                "files": {f"kernels/{index}.o": bytes([index]), "kernels/both.o": b"both"},
                "models": {"digits": model(QUARTERS, mine)},
                "shard": f"{index}/2",
                **(changes[index - 1] if changes else {}),
            }
            made.append(make(f"shard-{index}", **facts))
        return made

    return _shards


def proven(bundle: Bundle) -> set[str]:
    return {proof.shape.text for proof in bundle.manifest.models["digits"].proof.proven()}


def test_two_shards_become_one_whole_bundle(shards, store, tmp_path: Path) -> None:
    made = shards()
    merged = merge(made[::-1], tmp_path / "whole", [store])
    assert merged.bundle == open_bundle(tmp_path / "whole")
    assert merged.bundle.manifest.shard == ""
    assert merged.bundle.manifest.identity == made[0].manifest.identity
    assert set(merged.bundle.manifest.files) == {f"stores/kernels/kernels/{n}.o" for n in ("1", "2", "both")}
    assert merged.bundle.manifest.stores["kernels"].entries == 3
    assert proven(merged.bundle) == set(SHAPES)
    assert merged.unproven == ()
    assert (merged.reports["kernels"].added, merged.reports["kernels"].present) == (3, 1)
    assert ledger.made_here(merged.bundle.digest)
    assert {p.name for p in tmp_path.iterdir()} == {"state", "shard-1", "shard-2", "whole"}


def test_shards_that_list_only_their_own_shapes_are_joined_too(shards, store, tmp_path: Path) -> None:
    parts = [{"models": {"digits": model(dict.fromkeys(mine, 0.25), mine)}} for mine in (SHAPES[::2], SHAPES[1::2])]
    merged = merge(shards(*parts), tmp_path / "whole", [store])
    plan = merged.bundle.manifest.models["digits"].plan
    assert [planned.shape.text for planned in plan] == sorted(SHAPES)
    assert proven(merged.bundle) == set(SHAPES)


def test_shapes_whose_entries_the_merge_did_not_keep_need_a_proof(shards, store, tmp_path: Path) -> None:
    made = shards({}, {"files": {"kernels/2.o": b"2", "kernels/both.o": b"otherwise"}})
    merged = merge(made, tmp_path / "whole", [store])
    assert proven(merged.bundle) == set(SHAPES[::2])
    assert {(name, shape) for name, shape, _ in merged.unproven} == {("digits", shape) for shape in SHAPES[1::2]}
    for _, _, reason in merged.unproven:
        assert reason == "needs prove: the merge did not keep 1 entries of 2/2 in kernels, as kernels/both.o"
    assert merged.reports["kernels"].conflicts == ("kernels/both.o: kept the first",)


def test_a_shape_proven_elsewhere_on_what_was_kept_stays_proven(shards, store, tmp_path: Path) -> None:
    both = {"models": {"digits": model(QUARTERS, SHAPES)}}
    made = shards(both, {**both, "files": {"kernels/both.o": b"otherwise"}})
    merged = merge(made, tmp_path / "whole", [store])
    assert proven(merged.bundle) == set(SHAPES)
    assert merged.unproven == ()


def test_why_a_shape_failed_is_kept_over_that_it_was_not_tried(shards, store, tmp_path: Path) -> None:
    assert merging.OTHER_SHARD == sweep.SHARD
    failed = model(QUARTERS, SHAPES[1::2])
    shapes = tuple(replace(p, reason="out of memory") if p.shape.text == SHAPES[3] else p for p in failed.proof)
    shapes = tuple(replace(p, proven=p.proven and p.shape.text != SHAPES[3], first_seconds=None) for p in shapes)
    failed = replace(failed, proof=Proof("digits", shapes))
    merged = merge(shards({}, {"models": {"digits": failed}}), tmp_path / "whole", [store])
    reasons = {p.shape.text: p.reason for p in merged.bundle.manifest.models["digits"].proof}
    assert reasons[SHAPES[3]] == "out of memory"
    assert proven(merged.bundle) == set(SHAPES[:3])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"identity": {"gpu_arch": "gfx90a", "gpu_compute_units": "104", "rocm": "7.0"}},
            "gpu_arch: expected gfx942, found gfx90a; .*gpu_compute_units: expected 304, found 104$",
        ),
        ({"models": {"digits": model(QUARTERS, (), "sha256:" + "1" * 64)}}, "model digits: digest is sha256:1111"),
        ({"models": {"digits": model(QUARTERS, (), version="2")}}, "model digits: version is 2 in .*, 1 in the others"),
        ({"models": {"digits": model({SHAPES[0]: 1.0}, ())}}, "the weight of images=1x3x32x32:fp32 is 1.0 in"),
        ({"shard": "2/3"}, "cut differently: 1/2, 2/3"),
        ({"shard": "1/2"}, "shards 2/2 missing; 1/2 twice"),
        ({"shard": ""}, "is of a whole sweep, the others are shards: 1/2"),
    ],
)
def test_what_does_not_belong_together_is_refused_and_named(
    shards, store, tmp_path: Path, change: dict, said: str
) -> None:
    made = shards({}, change)
    with pytest.raises(MergeRefused, match=said):
        merge(made, tmp_path / "whole", [store])
    assert {p.name for p in tmp_path.iterdir()} == {"state", "shard-1", "shard-2"}


def test_a_missing_shard_is_named(shards, make, store, tmp_path: Path) -> None:
    thirds = [{"shard": "1/3"}, {"shard": "3/3"}]
    with pytest.raises(MergeRefused, match="shards 2/3 missing"):
        merge(shards(*thirds), tmp_path / "whole", [store])


def test_planned_traffic_that_no_bundle_covers_is_refused(shards, store, tmp_path: Path) -> None:
    part = {"models": {"digits": model({SHAPES[0]: 0.25}, SHAPES)}}
    with pytest.raises(MergeRefused, match=r"model digits: shapes with 75\.0% of the planned traffic are in no bundle"):
        merge(shards(part, part), tmp_path / "whole", [store])


def test_only_trusted_and_whole_bundles_are_joined(shards, store, tmp_path: Path) -> None:
    made = shards()
    with pytest.raises(BundleError, match="shard-2 is not trusted"):
        merge([made[0], replace(made[1], trusted="")], tmp_path / "whole", [store])
    with pytest.raises(BundleError, match="at least 2 are needed"):
        merge(made[:1], tmp_path / "whole", [store])
    (made[1].root / "stores/kernels/kernels/2.o").write_bytes(b"x")
    with pytest.raises(BundleRefused, match=r"kernels/2\.o: sha256"):
        merge(made, tmp_path / "whole", [store])
    assert not (tmp_path / "whole").exists()


def test_a_store_that_is_unknown_here_is_named(shards, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="stores kernels are unknown here; known: "):
        merge(shards(), tmp_path / "whole", [])


def test_what_is_there_is_not_overwritten(shards, store, tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / "letter").write_text("dear")
    with pytest.raises(BundleError, match="whole is there already"):
        merge(shards(), tmp_path / "whole", [store])


def test_whole_sweeps_of_different_models_are_joined(make, store, tmp_path: Path) -> None:
    one = make("one", models={"digits": model(QUARTERS, SHAPES)}, identity={"gpu": "x", "engine.digits": "a"})
    other = replace(model(QUARTERS, SHAPES), plan=Plan("more", model(QUARTERS, SHAPES).plan.shapes))
    two = make("two", {"kernels/2.o": b"2"}, models={"more": other}, identity={"gpu": "x", "engine.more": "b"})
    merged = merge([one, two], tmp_path / "whole", [store]).bundle.manifest
    assert set(merged.models) == {"digits", "more"}
    assert merged.identity == {"gpu": "x", "engine.digits": "a", "engine.more": "b"}


def test_models_that_need_no_store_are_joined(make, store, tmp_path: Path) -> None:
    parts = [
        make(f"{i}", {}, models={"digits": model(QUARTERS, SHAPES[i - 1 :: 2])}, shard=f"{i}/2", stores=[])
        for i in (1, 2)
    ]
    merged = merge(parts, tmp_path / "whole", [store])
    assert proven(merged.bundle) == set(SHAPES) and not merged.unproven
