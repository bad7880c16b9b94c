"""A worker on a stand-in for a machine: `MPSQ_MACHINE` names a JSON file with what its sensors read.

    {"cpu": 0.9, "gpu": 0.0, "on_battery": true, "memory_available_bytes": 1000000}

`cpu` is the share of all processors that others use, `gpu` the utilisation of the GPU; without it there is none. Looks
are more frequent than on a real machine. `look_s` is how long the look at the GPU right before a start takes, and `gpu`
what it finds.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from queue_runner.host import run_sampler
from queue_runner.host.cpu_time import CpuTimes, MachineTime, Named, ProcessTime
from queue_runner.machine_records import SensorSample
from queue_runner.worker import gate, gate_load
from queue_runner.worker.main_loop import main


def now() -> dict[str, Any]:
    while True:
        try:
            return dict(json.loads(Path(os.environ["MPSQ_MACHINE"]).read_text()))
        except ValueError:
            continue  # it is being written


class Processors(CpuTimes):
    """One processor whose busy time grows as the file says."""

    def __init__(self) -> None:
        self.at, self.busy_s = time.monotonic(), 0.0

    def machine(self) -> MachineTime:
        at, before = time.monotonic(), self.at
        self.at = at
        self.busy_s += (at - before) * now().get("cpu", 0.0)
        return MachineTime(self.busy_s, at, 0.0)

    def processes(self, named: Iterable[Named]) -> dict[tuple[int, float], ProcessTime]:
        return {}


class Sensors:
    reads_gpu = True

    def __init__(self, **_: Any) -> None: ...

    def sample(self) -> SensorSample:
        return SensorSample(**{key: value for key, value in now().items() if key not in ("cpu", "gpu", "look_s")})

    def gpu_use(self) -> tuple[float, SensorSample]:
        return 0.0, SensorSample(gpu_busy_share=now().get("gpu"))

    def close(self) -> None: ...


def look(busy_share: float) -> float | None:
    Path(os.environ["MPSQ_MACHINE"]).with_suffix(".looked").touch()
    time.sleep(now().get("look_s", 0.0))
    return now().get("gpu")


if __name__ == "__main__":
    gate_load.WINDOW_S, gate_load.EVERY_S, gate.LOOK_S = 0.2, 0.05, 0.05
    gate_load.CpuTimes = Processors  # type: ignore[misc]
    gate_load.run_sampler = SimpleNamespace(Sampler=Sensors)  # type: ignore[assignment]  # the runs have real ones
    run_sampler.gpu_use_before = look  # type: ignore[assignment]
    sys.exit(main())
