from __future__ import annotations

from pathlib import Path

import pytest

from warmup.accelerators import NoSuchAccelerator, accelerators, chosen, pinned


def test_amd_gpus_are_the_nodes_that_have_simd_units(tmp_path: Path) -> None:
    for node, simds in enumerate((0, 880, 880)):
        folder = tmp_path / f"sys/class/kfd/kfd/topology/nodes/{node}"
        folder.mkdir(parents=True)
        (folder / "properties").write_text(f"cpu_cores_count 8\nsimd_count {simds}\n")
    assert accelerators(tmp_path, {}) == ("0", "1")


def test_nvidia_gpus_are_what_the_driver_lists(tmp_path: Path) -> None:
    for bus in ("0000:00:06.0", "0000:00:07.0", "0000:00:08.0"):
        (tmp_path / "proc/driver/nvidia/gpus" / bus).mkdir(parents=True)
    assert accelerators(tmp_path, {}) == ("0", "1", "2")


@pytest.mark.parametrize("variable", ["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"])
def test_what_this_process_may_not_see_is_not_there(tmp_path: Path, variable: str) -> None:
    (tmp_path / "proc/driver/nvidia/gpus/a").mkdir(parents=True)
    assert accelerators(tmp_path, {variable: "3, GPU-1f"}) == ("3", "GPU-1f")
    assert accelerators(tmp_path, {variable: ""}) == ("0",)


def test_all_or_some_are_chosen() -> None:
    assert chosen("all", ("0", "1")) == ("0", "1")
    assert chosen("1, 0", ("0", "1")) == ("1", "0")


@pytest.mark.parametrize(
    ("text", "there", "told"),
    [
        ("2", ("0", "1"), "'2' is not there; this machine has: 0, 1"),
        ("all", (), "none"),
        ("0,0", ("0",), "named twice"),
    ],
)
def test_what_is_not_there_is_named(text: str, there: tuple[str, ...], told: str) -> None:
    with pytest.raises(NoSuchAccelerator, match=told):
        chosen(text, there)


def test_a_pinned_process_sees_one_accelerator_under_every_name() -> None:
    assert pinned("1") == {"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "1", "PREHEAT_DEVICE": "1"}
