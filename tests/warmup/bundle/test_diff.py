from __future__ import annotations

from collections.abc import Callable

from warmup.bundle.diff import Difference, differences
from warmup.bundle.manifest import Bundle


def test_a_bundle_does_not_differ_from_itself(bundle: Bundle) -> None:
    assert differences(bundle.manifest, bundle.manifest) == ()


def test_names_everything_that_differs(bundle: Bundle, make: Callable[..., Bundle], model) -> None:
    other = make(
        "other",
        {"kernels/cd.o": b"more code", "new": b""},
        identity={"gpu_arch": "gfx90a", "gpu_compute_units": "304", "torch": "2.13"},
        models={"digits": model(proven=False, digest="1" * 64)},
    )
    found = differences(bundle.manifest, other.manifest)
    assert {(one.what, one.name) for one in found} == {
        ("identity", "gpu_arch"),
        ("identity", "rocm"),
        ("identity", "torch"),
        ("model", "digits"),
        ("shape", "digits images=1x3x32x32:fp32"),
        ("shape", "digits images=2x3x32x32:fp32"),
        ("store", "kernels"),
        ("file", "stores/kernels/kernels/ab.o"),
        ("file", "stores/kernels/kernels/cd.o"),
        ("file", "stores/kernels/empty"),
        ("file", "stores/kernels/deep/er/ü.db"),
        ("file", "stores/kernels/new"),
    }
    assert Difference("identity", "gpu_arch", "gfx942", "gfx90a") in found
    assert Difference("identity", "torch", None, "2.13") in found
    assert Difference("identity", "rocm", "7.0", None) in found
    assert Difference("shape", "digits images=1x3x32x32:fp32", "proven", "unproven (new entries)") in found


def test_times_do_not_count(bundle: Bundle, make: Callable[..., Bundle]) -> None:
    assert differences(bundle.manifest, make("again").manifest) == ()
