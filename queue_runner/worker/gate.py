"""The gate: a submission that compares starts when the machine is quiet, or after a time with the caveat `not_quiet`.

A submission waits once: its later runs start at once, with the caveat if the machine is not quiet then. The time that
one of them has waited counts for the others, too.

Right before a run that may use the GPU, the gate measures how busy other programs keep it: during the run, only NVML
can separate their use from its own. Each step looks once, for milliseconds, so that a cancelled, held or paused run
leaves the gate at the next step. The wait is counted from the entry in the run's history, which outlives the worker.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from functools import partial

from msgspec import Struct

from queue_runner import times, units
from queue_runner.analysis.validity import GPU_BUSY_SHARE
from queue_runner.config_file import Config
from queue_runner.host import run_sampler
from queue_runner.host.background import BackgroundCall
from queue_runner.machine_records import SensorSample
from queue_runner.store import jobs, results
from queue_runner.store.engine import Engine, looking, writing
from queue_runner.store.jobs import Claimed, Following
from queue_runner.worker import gate_load
from queue_runner.worker.gate_load import Load

LOOK_S = 0.5
"""Interval between two looks while a run waits: with the window of the readings it starts within 5 s of calm."""
WINDOWS = 5
"""Least number of windows of the processors' load in a wait: a wait of one second uses windows of 0.2 s."""
GPU_LOOK_S = 0.1
"""Interval at which the gate asks whether the look at the GPU has ended."""
MINUTE_S = 60.0
"""A shorter limit is printed as a duration, a longer one as a time of day, which has no seconds."""
TELL_S = 30.0
"""Interval at which the numbers of an unchanged reason are brought up to date."""


class Disturbance(Struct, frozen=True):
    """A reason not to start: `sentence` has {} for its `verb` (present, past). `lasting`: it goes away only when a user
    acts."""

    kind: str
    sentence: str
    verb: tuple[str, str]
    lasting: bool = False

    @property
    def text(self) -> str:
        return self.sentence.replace("{}", self.verb[0])

    @property
    def past(self) -> str:
        return self.sentence.replace("{}", self.verb[1])


_IS = ("is", "was")


def disturbances(now: SensorSample, limits: Config, *, gpu: bool) -> list[Disturbance]:
    """Return the reasons not to start; an unknown value is none. `gpu` if the run may use one."""
    reasons = []
    if (share := now.others_cpu_share) is not None and share > limits.gate_cpu_share:
        limit = _limit(units.percent(limits.gate_cpu_share), "gate_cpu_share")
        use = f"other programs {{}} {units.percent(share)} of the processors ({limit})"
        reasons.append(Disturbance("cpu", use, ("use", "used")))
    if now.thermal_level is not None and now.thermal_level > 0:
        reasons.append(Disturbance("heat", f"thermal pressure {{}} at level {now.thermal_level:.0f}", _IS))
    if limits.gate_battery and now.on_battery:
        battery = "the machine {} on battery (setting gate_battery)"
        reasons.append(Disturbance("battery", battery, ("runs", "ran"), lasting=True))
    if limits.gate_battery and now.low_power:
        reasons.append(Disturbance("low_power", "low power mode {} on (setting gate_battery)", _IS, lasting=True))
    if (free := now.memory_available_bytes) is not None and free < limits.gate_memory_bytes:
        at_least = f"at least {units.size(limits.gate_memory_bytes)} needed, setting gate_memory_bytes"
        memory = f"only {units.size(free)} of memory {{}} available ({at_least})"
        reasons.append(Disturbance("memory", memory, ("are", "were"), lasting=True))
    if gpu and (share := now.gpu_busy_share) is not None and share > limits.gate_gpu_share:
        limit = _limit(units.percent(limits.gate_gpu_share), "gate_gpu_share")
        busy = f"other programs {{}} the GPU {units.percent(share)} busy ({limit})"
        reasons.append(Disturbance("gpu", busy, ("keep", "kept")))
    heat, most = now.gpu_temperature_c, limits.gate_gpu_temperature_c
    if gpu and heat is not None and heat > most:
        hot = f"the GPU {{}} at {heat:.0f} degrees C ({_limit(f'{most:.0f}', 'gate_gpu_temperature_c')})"
        reasons.append(Disturbance("gpu_heat", hot, _IS))
    return reasons


def _limit(value: str, setting: str) -> str:
    return f"limit {value}, setting {setting}"


class Gate:
    """The gate of one lane. `caveat` says how the machine was when it opened for the last run, None: quiet."""

    def __init__(self, engine: Engine, config: Config, load: Load) -> None:
        self._engine, self._config, self._load = engine, config, load
        self._run: Following | None = None
        self._passed: list[Disturbance] | None = None  # what disturbs the run that the gate lets pass
        self._use: BackgroundCall[float | None] | None = None  # the look at the GPU right before the start
        self._gpu_before: float | None = None
        self._since: float | None = None  # monotonic, when its wait began
        self._told = ("", frozenset[str](), 0.0)  # the reason, its kinds, and when it was made
        self._given_up: frozenset[str] = frozenset()
        self._has_asked = False  # another run of the submission has passed the gate
        self._looks_since = 0.0  # monotonic, when it first looked for this run
        self.caveat: str | None = None
        self.waited_s = 0.0
        self.due: float | None = None

    def sample_load(self, roots: Collection[int], *, running: bool) -> None:
        """Note the load now; cheap enough for every step. `roots` are wardens that are not this worker's children."""
        self._load.sample(roots, running=running, **({"every_s": self._config.sample_s} if running else {}))

    @property
    def waits_for(self) -> int | None:
        """The run that is to start next."""
        return self._run.run_id if self._run is not None else None

    @property
    def keeps_lane(self) -> bool:
        """Whether the lane is in use while the run waits."""
        return self._use is not None

    @property
    def is_waiting(self) -> bool:
        """Whether the run waits for a quiet machine."""
        return self._since is not None

    def blocking_reason(self, run: Following) -> str | None:
        """Return why the run must wait: "" while that is not known yet, None if it may start."""
        if self._run is None or self._run.run_id != run.run_id:
            self.leave("another run is next")
            self._run, self._looks_since = run, time.monotonic()
            with looking(self._engine) as connection:
                self._has_asked = jobs.has_group_started(connection, run)
        self.caveat, self.waited_s, self._gpu_before = None, 0.0, None
        if run.id.is_preflight:
            return None
        if run.spec.gate and self._passed is None:
            self.due = time.time() + min(LOOK_S, self._window_s(run))
            if (reason := self._look(run)) is not None:
                return reason
        if run.spec.device != "cpu" and not self._knows_the_gpu():
            self.due = time.time() + GPU_LOOK_S
            return ""
        self.due = None
        if self._passed is not None:
            self._open(self._passed)
        return None

    def _knows_the_gpu(self) -> bool:
        """Measure in the background how busy the GPU is without the run; return whether that has ended."""
        self._use = self._use or BackgroundCall(partial(run_sampler.gpu_use_before, GPU_BUSY_SHARE))
        if not self._use.has_ended():
            return False
        self._gpu_before, self._use = self._use.value, None
        return True

    def _look(self, run: Following) -> str | None:
        """Look at the machine; return as `blocking_reason`, and set what disturbs a run that passes nevertheless."""
        gpu = run.spec.device != "cpu"
        limit_s = self._limit_s(run)
        window_s = self._window_s(run)
        cpu = self._config.gate_cpu_share < 1
        reading = self._load.read(cpu=cpu, gpu=gpu, window_s=window_s)
        if reading is None:
            if not self._has_asked and time.monotonic() - self._looks_since < limit_s:
                return self._told[0]
            known = self._load.read(cpu=cpu, gpu=False, window_s=window_s)
            reading = known or self._load.read(cpu=False, gpu=False) or SensorSample()
        disturbed = disturbances(reading, self._config, gpu=gpu)
        self._given_up &= {disturbance.kind for disturbance in disturbed}
        if self._has_asked or all(disturbance.kind in self._given_up for disturbance in disturbed):
            self._passed = disturbed
            return None
        if self._since is None:
            self._begin(run, disturbed)
        if self._waited_s() >= limit_s:
            self._given_up |= {disturbance.kind for disturbance in disturbed if disturbance.lasting}
            self._passed = disturbed
            return None
        return self._reason(run, disturbed)

    def leave(self, why: str = "nothing may start") -> None:
        """End the wait of the run that was next, and forget it."""
        if self._run is not None and self._since is not None:
            self._record(jobs.LEFT, why)
        self._run = self._since = self.due = self._passed = self._use = None
        self._told = ("", frozenset(), 0.0)

    def look_later(self) -> None:
        """Continue the wait while the lane is not available, because a look needs its locks."""
        self.due = None if self._run is None else time.time() + LOOK_S

    def note(self, run: Claimed) -> None:
        """Store with the claimed run how it started: its wait, and a machine that was not quiet."""
        if run.id.is_preflight:
            return
        waited = {"gate_waited_s": round(self.waited_s, 1)} if run.spec.gate else {}
        looked = {} if self._gpu_before is None else {"gpu_busy_before": self._gpu_before}
        if waited or looked:
            with writing(self._engine) as connection:
                for record in filter(None, (waited, looked)):
                    results.save_condition(connection, run.run_id, time.time(), record)
                if self.caveat is not None:
                    results.save_note(connection, run.run_id, "not_quiet", self.caveat)

    def close(self) -> None:
        """End the tools that are still running."""
        self._load.close()

    def _limit_s(self, run: Following) -> float:
        return self._config.gate_timeout_s if run.spec.gate_s is None else run.spec.gate_s

    def _window_s(self, run: Following) -> float:
        """Return the time (s) before this run over which the processors' load is averaged."""
        return min(gate_load.WINDOW_S, self._limit_s(run) / WINDOWS)

    def _waited_s(self) -> float:
        return 0.0 if self._since is None else time.monotonic() - self._since

    def _begin(self, run: Following, disturbed: list[Disturbance]) -> None:
        """Begin the wait, or continue that of the submission: an earlier worker has only the wall clock in common."""
        with looking(self._engine) as connection:
            waited_s = jobs.group_waited_s(connection, run, time.time())
            is_new = jobs.waits_since(connection, run.run_id) is None
        self._since = time.monotonic() - waited_s
        if is_new:
            self._record(jobs.WAITS, _words(disturbed))

    def _open(self, disturbed: list[Disturbance]) -> None:
        self.waited_s = self._waited_s()
        after = f"after {units.duration(self.waited_s)}"
        waited = f" {after} of waiting" if self._since is not None else ""
        past = "; ".join(disturbance.past for disturbance in disturbed)
        self.caveat = f"the run started{waited}, although {past}" if disturbed else None
        if self._since is not None:
            words = f"{_words(disturbed)}: starting anyway {after}; the confidence intervals will be wider"
            self._record(jobs.NOT_QUIET if disturbed else jobs.QUIET, words if disturbed else after)
        self._since = self._passed = None

    def _reason(self, run: Following, disturbed: list[Disturbance]) -> str:
        now, kinds = time.monotonic(), frozenset(disturbance.kind for disturbance in disturbed)
        if kinds != self._told[1] or now - self._told[2] > TELL_S:
            limit_s = self._limit_s(run)
            end = times.clock(time.time() + limit_s - self._waited_s(), time.time())
            limit = f"until {end} at the latest" if limit_s >= MINUTE_S else f"{units.duration(limit_s)} at most"
            reason = f"run {run.id} waits for a quiet machine, {limit}: {_words(disturbed)}"
            self._told = reason, kinds, now
        return self._told[0]

    def _record(self, verb: str, reason: str) -> None:
        assert self._run is not None
        with writing(self._engine) as connection:
            jobs.record_wait(connection, self._run, verb, reason)


def _words(disturbed: list[Disturbance]) -> str:
    return "; ".join(disturbance.text for disturbance in disturbed)
