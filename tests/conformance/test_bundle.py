"""A store that the real library filled, shipped as a bundle: it serves elsewhere, and nowhere that it should not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from warmup.stores.miopen import MIOpenStore
from warmup.stores.store import Phase

pytestmark = pytest.mark.miopen
FACTS = {"arch": "gfx942:sramecc+:xnack-", "cu": 304}
KEYS = [f"8-14-14-3x3-8-14-14-{batch}-1x1-1x1-1x1-0-NCHW-FP16-F" for batch in (1, 2)]
SWEEP = str(Path(__file__).parent / "sweep_keys.py")
BUILD = """
import sys
from pathlib import Path
from warmup.bundle.build import build
from warmup.identity import identity
from warmup.stores.miopen import MIOpenStore
store = MIOpenStore()
print(build(Path(sys.argv[1]), identity=identity([], [store]), models={}, stores=[store]).digest)
"""
COMPARE = """
import sys
from pathlib import Path
from warmup.bundle.manifest import open_bundle
from warmup.identity import differences, identity
from warmup.stores.miopen import MIOpenStore
bundle = open_bundle(Path(sys.argv[1]))
for difference in differences(bundle.manifest.identity, identity([], [MIOpenStore()])):
    print(difference)
"""


@pytest.fixture(scope="module")
def bundle(standin, home_at, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    home = home_at(folder / "maker", **FACTS)
    done = standin.run(home, SWEEP, str(folder / "sweep"), "1", input="".join(f"{key}\n" for key in KEYS))
    assert json.loads(done.stdout)["proven"] == len(KEYS)
    root = folder / "bundle"
    root.mkdir()
    (folder / "sweep" / "stores").rename(root / "stores")
    done = standin.run(home, "-c", BUILD, str(root))
    assert done.returncode == 0, done.stderr
    return root


def test_the_bundle_serves_in_another_directory_with_nothing_to_compile(standin, bundle, make_home, tmp_path):
    here = make_home("another", **FACTS)
    moved = tmp_path / "pulled"
    shutil.copytree(bundle, moved)
    assert standin.run(here, "-c", COMPARE, str(moved)).stdout == ""
    store = tmp_path / "private"
    shutil.copytree(moved / "stores" / "miopen", store)
    environment = dict(MIOpenStore().settings(Phase.SERVE, store).environment)
    lines = "".join(f"{line}\n" for line in (json.dumps({"root": str(store)}), *KEYS))
    done = standin.run(here, "-m", "warmup.miopen.worker", input=lines, **environment)
    answers = [json.loads(line) for line in done.stdout.splitlines()[1:]]
    assert [answer["key"] for answer in answers] == KEYS
    assert all(not answer["added"] and not answer["error"] for answer in answers)
    assert here.count("compile") == 0


@pytest.mark.parametrize(
    ("arch", "cu", "told"),
    [
        ("gfx942:sramecc+:xnack-", 38, ["miopen.units: expected 304, found 38"]),
        ("gfx942:sramecc+:xnack+", 304, ["miopen.xnack: expected off, found on"]),
        (
            "gfx90a:sramecc+:xnack-",
            104,
            ["miopen.arch: expected gfx942, found gfx90a", "miopen.units: expected 304, found 104"],
        ),
    ],
)
def test_another_device_is_refused_by_the_names_of_what_differs(standin, bundle, make_home, arch, cu, told):
    there = make_home("there", arch=arch, cu=cu)
    assert standin.run(there, "-c", COMPARE, str(bundle)).stdout.splitlines() == told


def test_another_version_is_refused_by_its_name(standin, bundle, make_home, tmp_path):
    here = make_home("upgraded", **FACTS)
    upgraded = COMPARE.replace(
        "bundle = ",
        "import warmup.stores.miopen as miopen\n"
        "device, _ = miopen.database_stem().split('.HIP.')\n"
        "miopen.database_stem = lambda: device + '.HIP.3_9_9_76e3cde91'\n"
        "bundle = ",
    )
    done = standin.run(here, "-c", upgraded, str(bundle))
    dotted = standin.version.strip("_").replace("_", ".")
    assert done.stdout == f"miopen.version: expected {dotted}, found 3.9.9.76e3cde91\n", done.stderr
