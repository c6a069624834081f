from __future__ import annotations

import pytest

from warmup.doctor.kfd import driver_loaded, gpus


@pytest.mark.parametrize(
    ("node", "count", "name", "arch", "units", "multiprocessors", "partition"),
    [
        ("mi210", 2, "Instinct MI210", "gfx90a", 104, 104, ""),
        ("mi300x-spx", 8, "Instinct MI300X", "gfx942", 304, 304, "SPX"),
        ("mi300x-cpx", 8, "Instinct MI300X", "gfx942", 38, 38, "CPX"),
        ("mi355x", 1, "Instinct MI355X", "gfx950", 256, 256, "SPX"),
        ("rx7900", 1, "Radeon RX 7900 XT/XTX", "gfx1100", 96, 48, ""),
    ],
)
def test_what_the_kernel_lists(nodes, node, count, name, arch, units, multiprocessors, partition):
    found = gpus(nodes / node)
    assert len(found) == count
    assert {(g.name, g.arch, g.compute_units, g.multiprocessors, g.partition) for g in found} == {
        (name, arch, units, multiprocessors, partition)
    }
    assert driver_loaded(nodes / node)


def test_no_gpu(nodes):
    assert gpus(nodes / "none") == []
    assert not driver_loaded(nodes / "none")


def node(root, number: int, **facts: int) -> None:
    path = root / f"sys/class/kfd/kfd/topology/nodes/{number}/properties"
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"{name} {value}\n" for name, value in facts.items()))


def test_partitions_are_told_by_their_siblings_where_the_driver_names_no_mode(tmp_path):
    for at in range(4):
        facts = {"simd_count": 304, "simd_per_cu": 4, "gfx_target_version": 90402, "num_xcc": 2}
        node(tmp_path, at + 1, location_id=at << 28 | 1280, drm_render_minor=128 + at, **facts)
    assert {(gpu.compute_units, gpu.partition) for gpu in gpus(tmp_path)} == {(76, "QPX")}


def test_nodes_are_in_the_order_of_their_numbers_and_unreadable_ones_are_left_out(tmp_path):
    for number, version in ((10, 90402), (2, 90010)):
        node(tmp_path, number, simd_count=8, simd_per_cu=4, gfx_target_version=version, drm_render_minor=number)
    (tmp_path / "sys/class/kfd/kfd/topology/nodes/3").mkdir()
    node(tmp_path, 4, simd_count=8, simd_per_cu=4, vendor_id=4318)  # not AMD's
    assert [gpu.arch for gpu in gpus(tmp_path)] == ["gfx90a", "gfx942"]


@pytest.mark.parametrize(("version", "arch"), [(90402, "gfx942"), (110501, "gfx1151"), (90012, "gfx90c")])
def test_arch_names_have_hex_digits(tmp_path, version, arch):
    node(tmp_path, 1, simd_count=4, simd_per_cu=2, gfx_target_version=version)
    assert gpus(tmp_path)[0].arch == arch
