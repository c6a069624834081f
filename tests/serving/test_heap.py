from __future__ import annotations

import platform
import subprocess
import sys

import pytest

CODE = """
import resource
import numpy as np
from serving.heap import keep_memory

assert keep_memory()

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def use():
    array = np.ones(4 << 20, np.uint8)
    return array[0]

use()
before = faults()
for _ in range(20):
    use()
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than glibc")
def test_memory_that_was_used_once_costs_no_page_fault_again() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1024  # pages; 20 blocks of 4 MiB have 20,480
