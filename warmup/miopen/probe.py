"""Which databases this machine's MIOpen reads and writes: the name that it gives to its files.

The name holds the architecture, xnack, the compute units, the version and the build's hash, of which no function of the
library tells the last. So a fresh process asks MIOpen for the workspace of a tiny convolution, with directories of its
own: nothing is compiled or timed, but the find-db is looked up, and its lock file carries the name.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

from warmup.miopen.library import Library, LibraryError, MIOpenError
from warmup.miopen.problem import ConvProblem

_TINY = "1-1-1-1x1-1-1-1-1-0x0-1x1-1x1-0-NCHW-FP32-F"
# A lock's name begins with a digest of the directory of its database.
_NAME = re.compile(r"(?:[0-9a-f]{32}_)?(.+?)\.ufdb\.txt")


class ProbeError(Exception):
    """Why the name cannot be had: no library, no device, or an MIOpen that fails."""


def private_environment(scratch: str) -> dict[str, str]:
    """For a process that asks MIOpen something: it searches nothing, and what it writes goes below ``scratch``."""
    return {
        **os.environ,
        "MIOPEN_FIND_MODE": "2",
        "MIOPEN_FIND_ENFORCE": "1",
        "MIOPEN_USER_DB_PATH": f"{scratch}/db",
        "MIOPEN_CUSTOM_CACHE_DIR": f"{scratch}/cache",
        "TMPDIR": scratch,
    }


@lru_cache(maxsize=8)
def database_stem(library: str | None = None) -> str:
    """The name of the user find-db without its ending, such as ``gfx942130.HIP.3_4_1_76e3cde91``.

    It is that of the first visible accelerator. Raises ProbeError with the reason. Takes a new process and about a
    second; answers are remembered.
    """
    with tempfile.TemporaryDirectory(prefix="preheat-probe-") as scratch:
        environment = private_environment(scratch)
        command = [sys.executable, "-m", "warmup.miopen.probe", *([library] if library else [])]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            reason = done.stderr.strip().splitlines()[-1:] or [f"the process ended with status {done.returncode}"]
            raise ProbeError(reason[0])
        # The lock lies in the temporary directory in some versions, beside the database in others.
        files = [path.name for path in Path(scratch).rglob("*.ufdb.txt*")]
    stems = {match[1] for match in map(_NAME.match, files) if match}
    if len(stems) != 1:
        raise ProbeError(f"MIOpen should have named one find-db, but left {files or 'no file'}")
    return stems.pop()


def main(library: str | None) -> None:
    """What the fresh process does."""
    try:
        with Library(library).handle() as handle, handle.convolution(ConvProblem.from_find_db_key(_TINY)) as tiny:
            tiny.workspace()
    except (LibraryError, MIOpenError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
