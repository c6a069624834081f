from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmup.miopen.names import DbName, DbNameError, Device, find_db_name, kernel_cache_name, perf_db_name

# As observed on MIOpen 3.4.0: arch as HIP names it, compute units, and the base of the file name.
BASES = (
    ("gfx942:sramecc+:xnack-", 304, "gfx942130"),
    ("gfx942", 228, "gfx942e4"),
    ("gfx942", 80, "gfx94250"),
    ("gfx942", 65, "gfx94241"),
    ("gfx942", 64, "gfx942_64"),
    ("gfx942", 38, "gfx942_38"),
    ("gfx90a:sramecc+:xnack-", 104, "gfx90a68"),
    ("gfx90a", 110, "gfx90a6e"),
    ("gfx90a:sramecc+:xnack+", 104, "gfx90a_xnack68"),
    ("gfx906:sramecc+:xnack+", 64, "gfx906_xnack_64"),
    ("gfx906", 60, "gfx906_60"),
    ("gfx908", 120, "gfx90878"),
    ("gfx950", 256, "gfx950100"),
    ("gfx1030", 36, "gfx1030_36"),
    ("gfx1100", 96, "gfx110060"),
    ("gfx1201", 32, "gfx1201_32"),
)
ENDINGS = (
    ".HIP.3_4_0_.ufdb.txt",
    ".HIP.3_4_0_76e3cde91.ufdb.txt",
    ".HIP.3_2_0.ufdb.txt",
    ".HIP.3_4_0_.fusion.ufdb.txt",
    ".HIP.3_4_0_.udb.txt",
    ".HIP.fdb.txt",
    ".OpenCL.fdb.txt",
    ".HIP.fusion.fdb.txt",
    ".HIP.fdb.txt.bz2",
    ".db.txt",
    ".db",
    ".db.bz2",
    "_1.1.0.udb",
    ".ukdb",
    ".kdb",
)


@pytest.mark.parametrize(("arch", "units", "base"), BASES)
def test_a_device_has_the_base_that_miopen_gives_it(arch: str, units: int, base: str) -> None:
    device = Device.of(arch, units)
    assert device.base == base
    assert DbName.parse(f"{base}.ukdb").device == device


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("base", ["gfx942130", "gfx906_60", "gfx90a_xnack68", "gfx110060"])
def test_a_name_comes_back_as_it_was(base: str, ending: str) -> None:
    assert DbName.parse(base + ending).file_name == base + ending


@given(
    st.sampled_from(("gfx906", "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1201")),
    st.integers(1, 512),
    st.booleans(),
    st.sampled_from(ENDINGS),
)
def test_every_device_is_told_from_its_name(arch: str, units: int, xnack: bool, ending: str) -> None:
    device = Device(arch, units, xnack)
    assert DbName.parse(device.base + ending).device == device


def test_version_and_hash() -> None:
    name = DbName.parse("gfx906_60.HIP.2_11_0_993628deb.ufdb.txt")
    assert (name.version, name.hash, name.version_text) == ((2, 11, 0), "993628deb", "2.11.0.993628deb")
    assert DbName.parse("gfx906_60.HIP.3_4_0_.ufdb.txt").hash == ""
    assert DbName.parse("gfx906_60.HIP.3_4_0.ufdb.txt").hash is None
    assert DbName.parse("gfx906_60.HIP.fdb.txt").version_text is None


@pytest.mark.parametrize(
    ("name", "kind", "scope"),
    [
        ("gfx942130.HIP.3_4_0_.fusion.ufdb.txt", "fusion", "user"),
        ("gfx942130.HIP.3_4_0_.ufdb.txt", "find", "user"),
        ("gfx942130.HIP.fdb.txt", "find", "system"),
        ("gfx942130.db.txt", "perf", "system"),
        ("gfx942.kdb", "kernels", "system"),
    ],
)
def test_kinds_are_told_apart(name: str, kind: str, scope: str) -> None:
    parsed = DbName.parse(name)
    assert (parsed.kind, parsed.scope) == (kind, scope)


@pytest.mark.parametrize(
    "name",
    [
        "gfx942130.HIP.3_4_0_.ufdb.txt.time",
        "gfx942130.HIP.3_4_0_.ufdb.txt.temp",
        "5e0_gfx942130.HIP.3_4_0_.ufdb.txt.lock",
        "gfx942130.HIP.3_4_0_.ufdb.txt.set-aside",
        "gfx94.HIP.fdb.txt",
        "keys.tsv",
        "",
    ],
)
def test_companions_and_strangers_are_no_databases(name: str) -> None:
    with pytest.raises(DbNameError, match="not a database of MIOpen"):
        DbName.parse(name)


def test_names_for_a_device_and_version() -> None:
    device = Device.of("gfx942", 304)
    assert find_db_name(device, "3.4.0") == "gfx942130.HIP.3_4_0_.ufdb.txt"
    assert find_db_name(device, "3.4.1", "76e3cde91") == "gfx942130.HIP.3_4_1_76e3cde91.ufdb.txt"
    assert perf_db_name(device, "3.4.0", None) == "gfx942130.HIP.3_4_0.udb.txt"
    assert kernel_cache_name(device) == "gfx942130.ukdb"
    with pytest.raises(DbNameError, match="expected as in 3.4.0"):
        find_db_name(device, "three")
    with pytest.raises(DbNameError, match="not a device"):
        Device.of("navi", 20)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gfx90a130.HIP.3_4_0_.ufdb.txt", "gfx90a"),
        ("gfx942e4.HIP.3_4_0_.ufdb.txt", "228 compute units"),
        ("gfx942_xnack130.HIP.3_4_0_.ufdb.txt", "xnack on"),
        ("gfx942130.OpenCL.3_4_0_.ufdb.txt", "OpenCL"),
        ("gfx942130.HIP.3_3_0_.ufdb.txt", "MIOpen 3.3.0"),
        ("gfx942130.HIP.3_4_0_abc.ufdb.txt", "MIOpen 3.4.0.abc"),
    ],
)
def test_a_foreign_file_is_named_as_such(name: str, reason: str) -> None:
    (found,) = DbName.parse(name).foreign_to(Device.of("gfx942", 304), "3.4.0")
    assert reason in found


@pytest.mark.parametrize("name", ["gfx942130.HIP.3_4_0_.ufdb.txt", "gfx942130.HIP.fdb.txt", "gfx942.kdb"])
def test_an_own_file_is_not_foreign(name: str) -> None:
    assert DbName.parse(name).foreign_to(Device.of("gfx942:xnack-", 304), "3.4.0") == []
