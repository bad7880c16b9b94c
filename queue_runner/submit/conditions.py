"""How the runs of a submission are started, by its options and its purpose: on a quiet machine, with which
environment."""

from __future__ import annotations

from typing import Any

from queue_runner.errors import UsageError
from queue_runner.spec import JobSpec
from queue_runner.submit.request import Request


def of_request(request: Request, cells: int) -> dict[str, Any]:
    """Return how the runs of all cells of a request are started, as fields of JobSpec.

    The gate waits for those of a comparison, of `mpsq bench` and `mpsq run`, but not of --find-max, and where
    --gate-timeout is given.

    Raises: UsageError when the options contradict each other.
    """
    if request.no_gate and request.gate_timeout_s is not None:
        raise UsageError("--no-gate and --gate-timeout contradict each other", "give one of them")
    gate = request.gate_timeout_s is not None or (_times(request) and (request.measures or cells > 1))
    gate = gate and not request.no_gate
    return {"gate": gate, "gate_s": request.gate_timeout_s if gate else None, "randomize": request.randomize}


def has_layouts(request: Request, cells: int, spec: JobSpec) -> bool:
    """Return whether the size of the environment differs from run to run of a cell: with --randomize of all, else of
    commands that are compared by CPU time alone."""
    compared = _times(request) and (request.measures or cells * request.repeats > 1)
    return request.randomize or (compared and _is_timed_by_clock(spec))


def _times(request: Request) -> bool:
    """Return whether its runs are timed: those of --find-max find out what fits in memory."""
    return request.find_max is None


def _is_timed_by_clock(spec: JobSpec) -> bool:
    """Return whether only the CPU time and the wall time of the run are compared, and no accelerator computes."""
    return spec.kind == "command" and spec.parser is None and spec.device in (None, "cpu")
