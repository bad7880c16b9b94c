"""The peak arithmetic rate of a device: given by the user, from a published source, or measured by matmul."""

from __future__ import annotations

from typing import Any, NamedTuple

from queue_runner.analysis.grouping import Arm
from queue_runner.analysis.peaks import Peak, known, of_gpus
from queue_runner.analysis.stats import by_key
from queue_runner.machine_records import read_machine
from queue_runner.monitor.answers.run_query import Context
from queue_runner.monitor.answers.select_runs import MERGED

_PEAKS = (
    f"SELECT CASE WHEN json_extract(r.spec_json, '$.merged.kind') IS NULL THEN '' ELSE '{MERGED}' END"
    " || r.machine_hash, r.device, r.dtype, r.framework, r.compile, json_extract(r.spec_json, '$.compile_mode'),"
    " r.framework_version, r.run, m.value"
    " FROM v_run r JOIN v_metric m ON m.run_id = r.run_id WHERE r.workload = 'matmul' AND m.name = 'peak'"
    " AND m.value > 0 AND r.outcome = 'SUCCEEDED' AND r.valid ORDER BY r.ended_at DESC, r.run_id DESC"
)


class _Measured(NamedTuple):
    machine_hash: str
    device: str
    dtype: str
    framework: str
    compile: int | None
    compile_mode: str | None
    framework_version: str
    run: str
    value: float


class Peaks:
    """The peak of a device in a dtype: given by the user, else published; none for a CPU. With --peak measured, only
    the one measured by matmul on this machine."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._cores: dict[str, int | None] = {}
        self._measured: dict[tuple[Any, ...], Peak] | None = None

    def of(self, arm: Arm) -> Peak | None:
        """Return the peak for an arm's runs: of several GPUs their sum."""
        name = next((row.device_name for row in arm.shown if row.device_name), None)
        peak = self.find(arm.key.get("machine"), arm.key.get("device"), name, arm.key.get("dtype"))
        return of_gpus(peak, arm.key.get("gpus") or 1)

    def find(
        self, machine: str | None, device: str | None, name: str | None, dtype: str | None, or_measured: bool = False
    ) -> Peak | None:
        """Return the peak by the device's name; `or_measured` falls back to a measured one."""
        only_measured = self._context.options.peak == "measured"
        given = self._context.options.peak_tflops
        peak = None if only_measured else known(given, device, name, self._gpu_cores(machine, name), dtype)
        return peak or (self._measured_on(machine, device, dtype) if only_measured or or_measured else None)

    def _measured_on(self, machine: str | None, device: str | None, dtype: str | None) -> Peak | None:
        """Return the highest of the newest valid peaks of each framework and mode, so that a slower framework does
        not lower the peak: the rate of matrix products, so that MFU is a share of an attainable rate."""
        if self._measured is None:
            rows = (_Measured(*row) for row in self._context.tuples(_PEAKS))
            newest = [same[0] for same in by_key(rows, lambda row: row[:6]).values()]  # all but version, run and value
            self._measured = {}
            for place, peaks in by_key(newest, lambda row: (row.machine_hash, row.device, row.dtype)).items():
                best = max(peaks, key=lambda row: row.value)
                source = f"measured by run {best.run}, matmul in {best.framework} {best.framework_version}"
                self._measured[place] = Peak(best.value, source)
        return self._measured.get((machine, device, dtype))

    def _gpu_cores(self, machine: str | None, name: str | None) -> int | None:
        """Read the number of GPU cores from the machine's fingerprint; only Apple's device names do not imply it."""
        if machine is None or not str(name).startswith("Apple"):
            return None
        if machine not in self._cores:
            hash = machine.removeprefix(MERGED)
            stored = self._context.tuples("SELECT data_json FROM fingerprints WHERE hash = ?", [hash])
            self._cores[machine] = read_machine(stored[0][0] if stored else None).gpu_cores
        return self._cores[machine]
