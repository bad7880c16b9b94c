"""The canary: before a run, a fixed second of work on its device, which must take as long as ever.

A device that is too hot or was given a lower clock is slower, whatever its sensors show. Krun also waits until a
machine has cooled, by its temperature sensors (Barrett, Bolz-Tereick, Killick, Mount and Tratt, "Virtual machine warmup
blows hot and cold", OOPSLA 2017). The canary goes by the time itself, because not every machine has sensors.

The work is jobs/canary_torch.py in a process of its own, in the job's interpreter. It inherits the lane's descriptor: a
canary whose worker was killed keeps other runs from the device until it ends, within its own time limit.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import IO, Any

from queue_runner import lanes, units
from queue_runner.analysis import stats
from queue_runner.analysis.gate_rules import Disturbance
from queue_runner.config_file import Config
from queue_runner.host import job_environments
from queue_runner.host.boot import boot_id
from queue_runner.host.job_secrets import Missing
from queue_runner.host.lane_locks import Hold
from queue_runner.paths import Layout, jobs_dir
from queue_runner.spec import JobSpec
from queue_runner.store import read
from queue_runner.store.history import SAME, History
from queue_runner.store.jobs import Following
from queue_runner.text import last_line
from queue_runner.worker import launch

LOOK_S = 0.1
COOL_S = 10.0
"""Pause between two canaries while the device is below its level."""
LIMIT_S = 90.0
FIRST = 5
"""Readings whose median is the level: the first under this boot of the same interpreter, version of torch and device,
with the same variables of _SPEED."""
SLACK = 0.03
"""How much longer than its level a canary may take; more where the first readings themselves spread more."""
MOST_SHARE = 0.05
"""Largest part of the shortest run of a comparison that a canary may cost, unless the setting `canary` is on."""
COST_S = 10.0
"""Assumed cost before the first: most of it is the import of torch."""

KILLED_S = 5.0
"""Longest wait for the end of a canary that was killed: one that hangs in a driver may not end, and holds the lane."""
_SPEED = (
    *("CUDA_", "HIP_", "ROCR_", "NVIDIA_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "VECLIB_"),
    *("TORCH_", "PYTORCH_", "CUBLAS", "MALLOC_", "LD_"),
)
"""Beginnings of variables that change which device computes, with how many threads or by which library."""

_READINGS = """
    SELECT c.data_json FROM conditions c JOIN runs r ON r.id = c.run_id JOIN jobs j ON j.id = r.job_id
    WHERE r.boot_id = ? AND j.device = ? AND json_extract(j.spec_json, '$.python') = ?
      AND json_extract(c.data_json, '$.canary_s') IS NOT NULL
      AND (? IS NULL OR json_extract(c.data_json, '$.canary_of') = ?) ORDER BY c.run_id, c.at LIMIT ?
"""
_COMPARED = """
    SELECT DISTINCT spec_hash, spec_json FROM jobs WHERE deleted_at IS NULL
      AND group_id = (SELECT group_id FROM jobs WHERE id = ?) GROUP BY spec_hash
"""


class Canary:
    """The canary of one lane; one at a time."""

    def __init__(self, layout: Layout, config: Config, log: Callable[[str], None]) -> None:
        self._layout, self._mode, self._log = layout, config.canary, log
        self._broken: set[tuple[str, str | None]] = set()
        self._run_id: int | None = None
        self._wanted = False
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._began = self._next_at = 0.0
        self._slow: Disturbance | None = None
        self.record: dict[str, Any] = {}

    @property
    def at_work(self) -> bool:
        """Whether a canary runs, or will again: the lane is kept meanwhile."""
        return self._run_id is not None and self._wanted

    def look(self, run: Following, lane: Hold, left_s: float) -> tuple[bool, Disturbance | None]:
        """Return whether the run may start, and in what the device is below its level. Never blocks.

        `left_s` is how long the run may still wait; it is asked again after COOL_S until then.
        """
        if self._run_id != run.run_id:
            self.stop()
            self._run_id, self._wanted = run.run_id, self._is_wanted(run)
        if not self._wanted:
            return True, None
        now = time.monotonic()
        if self._process is None:
            if self._slow is not None and left_s <= 0:
                return self._done(self._slow)
            if now >= self._next_at:
                self._start(run.spec, lane)
            return False, self._slow
        code = self._process.poll()
        if code is None:
            if now - self._began > LIMIT_S:
                self._kill()  # looked at again: it holds the lane until it is gone
            return False, self._slow
        if (reading := self._answer(code)) is None:
            self._broken.add((run.spec.python, run.spec.device))
            return self._done(None)
        self._slow = self._judge(run.spec, reading, now - self._began)
        self._next_at = now + COOL_S
        return self._done(self._slow) if self._slow is None or left_s <= 0 else (False, self._slow)

    def stop(self) -> None:
        """End the canary that is running, and forget the run it was for."""
        if self._process is not None:
            self._kill()
            try:
                self._process.wait(KILLED_S)
            except subprocess.TimeoutExpired:
                self._log(f"the canary, process {self._process.pid}, does not end: it holds the lane until it does")
        self._forget()
        self._run_id, self._wanted, self._slow, self._next_at, self.record = None, False, None, 0.0, {}

    def _kill(self) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _done(self, slow: Disturbance | None) -> tuple[bool, Disturbance | None]:
        self._wanted = False
        return True, slow

    def _is_wanted(self, run: Following) -> bool:
        spec = run.spec
        if self._mode == "off" or spec.kind != "workload" or spec.framework != "torch":
            return False
        if (spec.python, spec.device) in self._broken:
            return False
        return self._mode == "on" or self._is_cheap(run)

    def _is_cheap(self, run: Following) -> bool:
        """Return whether every run of the comparison is known to be long enough, so that all arms are treated alike."""
        with read.reading(self._layout.db) as connection:
            history = History(connection)
            rows = connection.execute(_COMPARED, [run.id.job]).fetchall()
            expected = [history.expected(JobSpec.from_json(row["spec_json"]), row["spec_hash"]) for row in rows]
        cost_s = max((one.get("canary_cost_s", COST_S) for one in self._readings(run.spec)), default=COST_S)
        known = [one.real_s for one in expected if one.basis == SAME and one.real_s is not None]
        return len(known) == len(expected) and cost_s <= MOST_SHARE * min(known)

    def _readings(self, spec: JobSpec, canary_of: str | None = None) -> list[dict[str, Any]]:
        """Return the first readings of the interpreter and device; only those of `canary_of` if it is given."""
        with read.reading(self._layout.db) as connection:
            rows = connection.execute(
                _READINGS, [boot_id(), spec.device, spec.python, canary_of, canary_of, FIRST]
            ).fetchall()
        return [json.loads(row["data_json"]) for row in rows]

    def _start(self, spec: JobSpec, lane: Hold) -> None:
        first = next(iter(self._readings(spec)), None)
        count = ["--count", f"{first['canary_count']:.0f}"] if first else []
        script = str(jobs_dir() / "canary_torch.py")
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if spec.device == "cpu" else {}
        self._began = time.monotonic()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - read when the process has ended
        try:
            self._process = subprocess.Popen(
                [spec.python, script, "--device", str(spec.device), *count],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                env={**launch.of_lane(spec), **job_environments.load(self._layout, spec), **hidden},
                pass_fds=lane.fds,
                start_new_session=True,
                cwd="/",
            )
            if spec.affinity and hasattr(os, "sched_setaffinity"):  # before it has any other thread
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(self._process.pid, lanes.processors(spec.affinity))
        except (OSError, Missing) as error:
            self._log(f"the canary could not be started: {error}")
            self._broken.add((spec.python, spec.device))
            self._forget()
            self._wanted = False

    def _answer(self, code: int) -> Mapping[str, Any] | None:
        """Return the reading that the process printed; None, with a line in the log, if it failed or hung."""
        assert self._process is not None and self._output is not None
        hung = time.monotonic() - self._began > LIMIT_S
        self._output.seek(0)
        line = last_line(self._output.read()) or ""
        self._forget()
        try:
            reading = json.loads(line) if code == 0 else None
            if isinstance(reading, dict) and reading["dur_s"] > 0 and reading["count"] > 0:
                return reading
        except (ValueError, KeyError, TypeError):
            pass
        ended = f"it did not end within {LIMIT_S:.0f} s" if hung else f"status {code}: {line}"
        self._log(f"the canary failed and is left out until the worker is restarted: {ended}")
        return None

    def _judge(self, spec: JobSpec, reading: Mapping[str, Any], cost_s: float) -> Disturbance | None:
        """Record a reading; return by how much it is above the level."""
        canary_of = _canary_of(spec, reading)
        first = [earlier["canary_s"] for earlier in self._readings(spec, canary_of)]
        level = stats.median(first) if first else float(reading["dur_s"])
        self.record = {
            "canary_s": round(float(reading["dur_s"]), 5),
            "canary_level_s": round(level, 5),
            "canary_of": canary_of,
            "canary_count": reading["count"],
            "canary_cost_s": round(cost_s, 2),
            "canary_tries": self.record.get("canary_tries", 0) + 1,
        }
        slack = max(SLACK, 3 * stats.MAD_TO_SD * stats.mad(first) / level) if len(first) == FIRST else SLACK
        over = float(reading["dur_s"]) / level - 1
        if over <= slack:
            return None
        took = f"the canary took {units.ms(reading['dur_s'])} ms on {spec.device}, {units.percent(over)} more than its"
        return Disturbance("canary", f"{took} level (at most {units.percent(slack)})")

    def _forget(self) -> None:
        if self._output is not None:
            self._output.close()
        self._process = self._output = None


def _canary_of(spec: JobSpec, reading: Mapping[str, Any]) -> str:
    """Return what besides the interpreter the level belongs to: "NVIDIA H200, torch 2.9.1, OMP_NUM_THREADS=8"."""
    variables = [f"{name}={value}" for name, value in sorted(spec.env.items()) if name.startswith(_SPEED)]
    lane = [f"lane {spec.lane}"] if spec.lane else []
    return ", ".join([str(reading.get("device")), f"torch {reading.get('torch')}", *lane, *variables])
