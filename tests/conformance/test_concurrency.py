"""24 processes tune at once through Preheat, and no record is lost.

The library alone, where the processes have no common TMPDIR, lost 70 of the same 240.
"""

from __future__ import annotations

import json
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from warmup.miopen.contents import entries
from warmup.stores.miopen import MIOpenStore

pytestmark = [pytest.mark.miopen, pytest.mark.slow, pytest.mark.timeout(900)]
SWEEPS, WORKERS, KEYS = 3, 8, 240


def test_24_writers_lose_none_of_240_records(standin, make_home, tmp_path):
    home = make_home("machine", arch="gfx942:sramecc+:xnack-", cu=304)
    out = tmp_path / "out"
    keys = [f"8-14-14-3x3-8-14-14-{batch}-1x1-1x1-1x1-0-NCHW-FP32-F" for batch in range(1, KEYS + 1)]
    command = [str(standin.python), str(Path(__file__).parent / "sweep_keys.py"), str(out), str(WORKERS)]
    with ExitStack() as started:
        running = []
        for at in range(SWEEPS):
            # Not even the temporary directory is common, as in containers that share a volume.
            alone = make_home(f"container{at}", arch=home.arch, cu=home.cu).environment()
            share, report = tmp_path / f"keys{at}", tmp_path / f"report{at}"
            share.write_text("".join(f"{key}\n" for key in keys[at::SWEEPS]))
            stdin, stdout = started.enter_context(share.open()), started.enter_context(report.open("w"))
            log = started.enter_context((tmp_path / f"log{at}").open("w"))
            running.append(subprocess.Popen(command, env=alone, stdin=stdin, stdout=stdout, stderr=log))
        assert [process.wait() for process in running] == [0] * SWEEPS
    reports = [json.loads((tmp_path / f"report{at}").read_text()) for at in range(SWEEPS)]
    assert sum(report["proven"] for report in reports) == KEYS
    root = out / "stores" / "miopen"
    (file,) = (root / "db").glob("*.ufdb.txt")
    written = [line.split("=")[0] for line in file.read_text().splitlines()]
    assert sorted(written) == sorted(keys), "each once: none lost, none twice"
    assert MIOpenStore().check(root) == []
    assert any(entry.startswith("kernel:") for entry in entries(root))
    assert list((out / "parts").iterdir()) == []
