"""`mpsq bench`: the grid that a person would want of a workload on this machine, and how long it will take."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from queue_runner import catalog, config, doctor, eta, listing, units, venvs, when
from queue_runner.asking import Said
from queue_runner.errors import UsageError
from queue_runner.paths import Layout, jobs_dir, layout
from queue_runner.store import read
from queue_runner.submit import Plan

REPEATS = 4
"""The fewest with which a comparison can come to a verdict."""


@dataclass(frozen=True)
class Forecast:
    """What a plan will take: seconds a run by job (None: not known yet), of all of it, and when it would be done."""

    run_s: tuple[float | None, ...]
    total_s: float
    unknown: int
    alike: int
    waits_s: float
    n_runs: int

    def sentence(self, now: float) -> str:
        """`16 runs: about 40 min, until 09:10`."""
        runs = f"{units.count(self.n_runs)} run{'s' * (self.n_runs > 1)}"
        if self.unknown == self.n_runs:
            return f"{runs}; how long they take is not known yet: none was asked before on this machine"
        until = when.clock(now + self.waits_s + self.total_s, now)
        told = f"{runs}: {'at least' if self.unknown else 'about'} {units.duration(self.total_s)}, until {until}"
        if self.waits_s:
            told += f", as what waits already takes {units.duration(self.waits_s)}"
        if self.unknown:
            told += f"; {units.count(self.unknown)} of them have no history"
        return told + (f"; {units.count(self.alike)} by runs that are alike" if self.alike else "")


def preset(said: Said) -> tuple[dict[str, Any], list[str]]:
    """What was said, with what a benchmark wants where nothing was: every device that computes, eager and compiled,
    REPEATS times. Returns it with notes on what was left out. torch is asked in a process of its own.

    Raises: UsageError for an unknown workload, no workload, or a machine on which no device computes.
    """
    if not said.get("workload") or said.get("command"):
        raise UsageError(
            "bench takes a workload", "mpsq workloads lists them; a command: mpsq submit --repeats 4 -- ..."
        )
    full: dict[str, Any] = {**({} if "find_max" in said else {"repeats": REPEATS}), **said}
    notes: list[str] = []
    framework = catalog.find(
        jobs_dir(), said["workload"], _one(said.get("framework")), own=layout().workloads
    ).framework
    if "device" not in said:
        if said.get("mps"):
            full["device"] = "mps"  # its switches mean nothing to others
        elif framework == "torch":
            devices = doctor.computing_devices(said.get("python") or _first(said.get("env_name")))
            if not devices:
                raise UsageError("no device computes here", "mpsq doctor says why; --device names one all the same")
            full["device"] = ",".join(devices)
        else:
            notes.append(f"which devices {framework} finds is not looked for: it is auto; --device names others")
    if "compile" not in said:
        checked = doctor.compiler()
        full["compile"] = "both" if checked.verdict == "ok" else "off"
        if checked.verdict != "ok":
            notes.append(f"eager only: {checked.finding}")
    return full, notes


def _first(environments: str | None) -> str | None:
    """The interpreter of the first environment that is named: it stands for all when devices are looked for."""
    names = [name for name in (environments or "").split(",") if name.strip()]
    return str(venvs.find(layout(), names[0].strip()).python) if names else None


def _one(frameworks: str | None) -> str | None:
    """A framework to look the workload up by; of a list the torch one, whose devices can be asked for."""
    names = [name.strip() for name in (frameworks or "").split(",") if name.strip()]
    return "torch" if "torch" in names else names[0] if names else None


def forecast(layout: Layout, planned: Plan) -> Forecast:
    """How long a plan takes, behind what waits already; without a queue nothing is known."""
    specs = [(job.spec, job.repeats) for job in planned.jobs]
    n_runs = len(planned.order)
    if not layout.db.exists():
        return Forecast((None,) * len(specs), 0.0, n_runs, 0, 0.0, n_runs)
    gap_s = config.load(layout.config).cooldown_s
    with read.reading(layout.db) as connection:
        history = eta.History(connection)
        total_s, unknown, alike = eta.of_plan(history, specs, gap_s)
        waits_s = eta.estimate(connection, read.queue(connection), time.time(), gap_s=gap_s).left_s
        return Forecast(tuple(history.expected(s).real_s for s, _ in specs), total_s, unknown, alike, waits_s, n_runs)


def lines(planned: Plan, foreseen: Forecast) -> Sequence[tuple[str, str]]:
    """For each cell its question and what a run of it takes, in words."""
    found = []
    for job, run_s in zip(planned.jobs, foreseen.run_s, strict=True):
        told = "not known yet" if run_s is None else f"about {units.duration(run_s)} a run"
        asked = listing.question({**vars(job.spec), "sets": job.spec.params})
        found.append((f"{job.spec.name}: {asked}", told if job.repeats == 1 else f"{job.repeats} x, {told}"))
    return found
