"""warmup/miopen/library.py on the real library: versions, all directions, workspaces, errors by name."""

from __future__ import annotations

import json

import pytest

from warmup.miopen.library import LIBRARY_VARIABLE, Library, LibraryError, candidates
from warmup.miopen.problem import ConvProblem

THREE = ConvProblem.from_dims((8, 16, 28, 28), (32, 16, 3, 3), pad=(1, 1), stride=(1, 1), dilation=(1, 1))


@pytest.mark.miopen
@pytest.mark.parametrize("direction", "FBW")
@pytest.mark.parametrize("transposed", [False, True])
def test_each_direction_finds_runs_and_offers_solutions(standin, home, direction, transposed):
    problem = ConvProblem.from_dims(
        (8, 16, 28, 28),
        (16, 32, 3, 3) if transposed else (32, 16, 3, 3),
        pad=(1, 1),
        stride=(1, 1),
        dilation=(1, 1),
        direction=direction,
        transposed=transposed,
    )
    (answer,) = standin.find(home, [problem], MIOPEN_FIND_MODE="1")
    assert "error" not in answer
    times = [milliseconds for _, milliseconds, _ in answer["found"]]
    assert times == sorted(times) and answer["solutions"] >= len(times)
    assert {name for name, _, _ in answer["found"]} >= {"GEMM", "Direct"}
    assert home.keys() == {problem.find_db_key()}


@pytest.mark.miopen
def test_a_problem_that_miopen_refuses_is_an_error_by_name(standin, home):
    mixed = ConvProblem.from_dims(
        (8, 16, 28, 28),
        (32, 16, 3, 3),
        pad=(1, 1),
        stride=(1, 1),
        dilation=(1, 1),
        layouts=("NHWC", "NCHW", "NHWC"),
    )
    refused, fine = standin.find(home, [mixed, THREE])
    assert refused["error"].startswith("miopen") and refused["error"].endswith("(status 7)")
    assert "error" not in fine, "an error leaves the handle usable"


@pytest.mark.miopen
def test_gemm_is_recorded_for_a_dilated_convolution_although_miopen_asks_for_no_workspace(standin, home):
    """The workspace rule: with what MIOpen itself asks for, the record would never be written."""
    code = """
import json
from warmup.miopen.library import Library
from warmup.miopen.problem import ConvProblem
problem = ConvProblem.from_dims((8, 16, 28, 28), (32, 16, 3, 3), pad=(2, 2), stride=(1, 1), dilation=(2, 2))
with Library().handle() as handle, handle.convolution(problem) as convolution:
    asked, enough = convolution.workspace(), convolution.search_workspace()
    few = [item.name for item in convolution.find(workspace=asked)]
    print(json.dumps([asked, enough, few]))
"""
    done = standin.run(home, "-c", code, MIOPEN_FIND_MODE="1")
    asked, enough, few = json.loads(done.stdout)
    assert (asked, enough) == (0, 16 * 9 * 28 * 28 * 4)
    assert "GEMM" not in few and home.keys() == set()
    standin.run(home, "-c", code.replace("workspace=asked", "workspace=enough"), MIOPEN_FIND_MODE="1")
    (record,) = next((home.root / "db").glob("*.ufdb.txt")).read_text().splitlines()
    assert "GemmFwdRest:" in record


@pytest.mark.miopen
def test_the_version_is_the_one_in_the_names_of_its_files(standin, home):
    code = "from warmup.miopen.library import Library; print(*Library().version(), sep='_')"
    version = standin.run(home, "-c", code).stdout.strip()
    standin.find(home, [THREE])
    (file,) = (home.root / "db").glob("*.ufdb.txt")
    assert file.name.startswith(f"gfx90a68.HIP.{version}_")


@pytest.mark.miopen
@pytest.mark.parametrize(
    ("arch", "cu", "stem"),
    [
        ("gfx942:sramecc+:xnack-", 304, "gfx942130"),
        ("gfx942:sramecc+:xnack-", 80, "gfx94250"),
        ("gfx942:sramecc+:xnack-", 64, "gfx942_64"),
        ("gfx90a:sramecc+:xnack+", 104, "gfx90a_xnack68"),
        ("gfx906:sramecc+:xnack+", 64, "gfx906_xnack_64"),
        ("gfx1100", 96, "gfx110060"),
    ],
)
def test_the_probe_names_the_files_that_miopen_then_writes(standin, make_home, arch, cu, stem):
    home = make_home("machine", arch=arch, cu=cu)
    done = standin.run(home, "-c", "from warmup.miopen.probe import database_stem; print(database_stem())")
    standin.find(home, [THREE])
    (file,) = (home.root / "db").glob("*.ufdb.txt")
    assert file.name == done.stdout.strip() + ".ufdb.txt"
    assert file.name.startswith(stem + ".HIP.")


def test_a_path_that_was_chosen_is_the_only_candidate(monkeypatch):
    monkeypatch.setenv(LIBRARY_VARIABLE, "/chosen/by/variable.so")
    assert candidates() == ("/chosen/by/variable.so",)
    assert candidates("/chosen/by/argument.so") == ("/chosen/by/argument.so",)


def test_rocm_path_comes_before_the_loaders_own_search(monkeypatch, tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libMIOpen.so.1").touch()
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    monkeypatch.delenv(LIBRARY_VARIABLE, raising=False)
    assert candidates()[-2:] == (str(tmp_path / "lib" / "libMIOpen.so.1"), "libMIOpen.so.1")


def test_a_library_that_cannot_be_loaded_says_why(tmp_path):
    broken = tmp_path / "libMIOpen.so.1"
    broken.write_bytes(b"not a library")
    with pytest.raises(LibraryError, match=r"MIOpen cannot be loaded: .*libMIOpen\.so\.1: file too short"):
        Library(str(broken))
