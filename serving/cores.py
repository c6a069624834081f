"""How many processor cores this process may use."""

from __future__ import annotations

import os
from pathlib import Path

# Of the control group that the process sees as its root, which is its container's: quota and period in microseconds, or
# "max" (Linux, Documentation/admin-guide/cgroup-v2.rst).
_GROUP = Path("/sys/fs/cgroup/cpu.max")


def usable_cores(group: Path = _GROUP) -> int:
    """Those it is pinned to, or what a container's limit leaves of their time, in whole cores and at least one."""
    pinned = len(os.sched_getaffinity(0))
    try:
        quota, period = group.read_text(encoding="ascii").split()
        return pinned if quota == "max" else max(1, min(pinned, int(quota) // int(period)))
    except (OSError, ValueError):  # another system, or the older kind of control group: no limit is known
        return pinned
