"""The processor time of the machine, as a process that is bound to a part of it counts it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from queue_runner.host.cpu_time import CpuTimes
from tests.process_support import needs_linux

pytestmark = pytest.mark.process
_TOTAL = "from queue_runner.host.cpu_time import CpuTimes; print(CpuTimes().machine().total_s)"
_BOUND = f"import os; os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}}); {_TOTAL}"


@needs_linux
def test_a_process_with_one_processor_counts_this_one() -> None:
    lines = open("/proc/stat").read().splitlines()  # noqa: SIM115 - read at once
    count = sum(line.startswith("cpu") for line in lines) - 1
    if count < 2:
        pytest.skip("needs two processors")
    whole = CpuTimes().machine()
    bound = float(subprocess.run([sys.executable, "-c", _BOUND], capture_output=True, text=True, check=True).stdout)
    assert whole is not None and 0.8 < bound * count / whole.total_s < 1.2
