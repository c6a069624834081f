"""The real libMIOpen on the stand-in device, fetched and built once; see standin/README.md."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest

from warmup.miopen.problem import ConvProblem

HERE = Path(__file__).parent
UNAVAILABLE = 3  # the exit status with which standin/build.py says that the packages cannot be had


@dataclass(frozen=True)
class Home:
    """Directories of one pretended machine, and the environment of a process on it."""

    root: Path
    arch: str = "gfx90a:sramecc+:xnack-"
    cu: int = 104

    @property
    def log(self) -> Path:
        return self.root / "standin.log"

    def environment(self, **settings: str) -> dict[str, str]:
        """Nothing of the caller's MIOpen settings, private directories, and ``settings``."""
        for name in ("db", "cache", "tmp"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MIOPEN_", "STANDIN_"))}
        return {
            **inherited,
            "HOME": str(self.root),
            "TMPDIR": str(self.root / "tmp"),
            "MIOPEN_USER_DB_PATH": str(self.root / "db"),
            "MIOPEN_CUSTOM_CACHE_DIR": str(self.root / "cache"),
            "STANDIN_ARCH": self.arch,
            "STANDIN_CU": str(self.cu),
            "STANDIN_LOG": str(self.log),
            **settings,
        }

    def count(self, what: str) -> int:
        """How many times the device compiled ("compile") or launched ("launch") a kernel."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return sum(line.startswith(what + " ") for line in lines)

    def keys(self) -> set[str]:
        """The keys in the find-db, read without any of Preheat's own code."""
        files = [path for path in (self.root / "db").glob("*.ufdb.txt") if ".fusion." not in path.name]
        return {line.split("=")[0] for path in files for line in path.read_text().splitlines()}


@dataclass(frozen=True)
class StandIn:
    """The Python on which libMIOpen.so.1 loads. ``version`` is as in the names of its files: ``3_4_0_``; ``through`` is
    a command that starts it."""

    python: Path
    version: str = ""
    through: tuple[str, ...] = ()

    def unprivileged(self) -> StandIn:
        """The same for a process that owns nothing but its own files: root's may write and own whatever it likes."""
        if os.geteuid() != 0:
            return self
        drop = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
        if shutil.which("setpriv") is None or subprocess.run([*drop, "true"], capture_output=True).returncode:
            pytest.skip("root's capabilities cannot be dropped here (util-linux: setpriv)")
        return replace(self, through=drop)

    def run(self, home: Home, *arguments: str, input: str = "", **settings: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.through, str(self.python), *arguments],
            env=home.environment(**settings),
            input=input,
            capture_output=True,
            text=True,
            timeout=240,
        )

    @staticmethod
    def calls(problems: Iterable[ConvProblem], strides: object = None) -> str:
        """What drive.py reads."""
        return json.dumps({"problems": [asdict(problem) for problem in problems], "strides": strides})

    def find(
        self, home: Home, problems: Iterable[ConvProblem], *, strides: object = None, **settings: str
    ) -> list[dict]:
        """One process that asks the library for a Find of each problem and runs it: what it answered."""
        done = self.run(home, str(HERE / "drive.py"), input=self.calls(problems, strides), **settings)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="session")
def standin(tmp_path_factory: pytest.TempPathFactory) -> StandIn:
    cache = os.environ.get("PREHEAT_STANDIN_CACHE") or Path.home() / ".cache" / "preheat-standin"
    environment = tmp_path_factory.mktemp("standin")
    command = [sys.executable, str(HERE / "standin" / "build.py"), str(cache), str(environment)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == UNAVAILABLE:
        pytest.skip(f"the real MIOpen cannot be had here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    python = Path(done.stdout.strip())
    code = "from warmup.miopen.probe import database_stem; print(database_stem())"
    probed = StandIn(python).run(Home(environment / "probe"), "-c", code)
    assert probed.returncode == 0, probed.stderr
    return StandIn(python, probed.stdout.strip().split(".HIP.")[1])


@pytest.fixture(scope="session")
def home_at() -> type[Home]:
    """For a machine in a given directory: ``home_at(root, arch="gfx942:sramecc+:xnack-", cu=304)``."""
    return Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """An MI210."""
    return Home(tmp_path / "home")


@pytest.fixture
def make_home(tmp_path: Path):
    """Further machines: ``make_home("other", arch="gfx942:sramecc+:xnack-", cu=304)``."""

    def make(name: str, **facts) -> Home:
        return Home(tmp_path / name, **facts)

    return make
