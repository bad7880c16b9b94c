"""The end of a preflight: its traces are thrown away, and what it says about the runs of its job."""

from __future__ import annotations

import shutil
import time

from queue_runner.host import others_memory
from queue_runner.model import PREFLIGHT, Ending, Outcome
from queue_runner.paths import Layout
from queue_runner.run_dir import RunDir
from queue_runner.spec import JobSpec
from queue_runner.store import preflights
from queue_runner.store.engine import Connection
from queue_runner.store.jobs import PREFLIGHT_LIMIT_S, Claimed
from queue_runner.worker import launch

_SHARED = frozenset(
    {
        *(Outcome.FAILED, Outcome.SPAWN_FAILED, Outcome.DEVICE_UNAVAILABLE, Outcome.OUT_OF_MEMORY),
        *(Outcome.STALLED, Outcome.OUTPUT_LIMIT, Outcome.CODE_CHANGED),
    }
)
"""Outcomes that the runs would share. A lost or cancelled preflight, one killed from outside, one without disk space or
one that only took longer than the limit of preflights says nothing about them."""


def is_one(run: Claimed) -> bool:
    """Return whether a claimed run is a preflight."""
    return run.id.number == PREFLIGHT


def throw_away(layout: Layout, run: Claimed, folder: RunDir) -> None:
    """Remove the output and the compiler cache of a preflight. Its logs and its end stay."""
    shutil.rmtree(folder.out, ignore_errors=True)
    shutil.rmtree(launch.compile_cache(layout, run), ignore_errors=True)


def busy_memory(run: Claimed, ending: Ending) -> bool:
    """Return whether others hold so much memory that lack of it says nothing about the job. May run a program."""
    return ending.outcome is Outcome.OUT_OF_MEMORY and others_memory.is_taken(run.spec.device)


def judge(connection: Connection, run: Claimed, ending: Ending, busy: bool) -> None:
    """Skip the runs of the job if they cannot work; called in the transaction that ends the preflight."""
    preflights.forget_points(connection, run.run_id)
    if is_hopeless(run.spec, ending, busy):
        preflights.skip(connection, run.id.job, ending, time.time())


def is_hopeless(spec: JobSpec, ending: Ending, busy: bool) -> bool:
    """Return whether the runs would end as their preflight did. A `busy` device is none of their doing."""
    if ending.outcome is Outcome.KILLED:
        return ending.reason.endswith("it crashed")
    if ending.outcome is Outcome.TIMED_OUT:  # --timeout, if that is shorter: one iteration is part of every run
        return spec.timeout_s is not None and spec.timeout_s < PREFLIGHT_LIMIT_S
    if ending.outcome is Outcome.OUT_OF_MEMORY and busy:
        return False
    if ending.outcome is Outcome.DEVICE_UNAVAILABLE and "busy" in ending.reason.lower():
        return False
    return ending.outcome in _SHARED
