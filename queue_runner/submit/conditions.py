"""How the runs of a submission are started, by its options and its purpose: on a quiet machine, with which
environment."""

from __future__ import annotations

from collections.abc import Sequence

from queue_runner.errors import UsageError
from queue_runner.spec import JobSpec
from queue_runner.submit.request import Request


def with_conditions(request: Request, specs: Sequence[JobSpec], seed: int) -> list[JobSpec]:
    """Return the cells with how their runs are started.

    The gate waits for those of a comparison, of `mpsq bench` and `mpsq run`, but not of --find-max, and where
    --gate-timeout is given. The environments of commands that are compared by CPU time alone, or with --randomize of
    all, differ in size from run to run, by `seed`.

    Raises: UsageError when the options contradict each other.
    """
    if request.no_gate and request.gate_timeout_s is not None:
        raise UsageError("--no-gate and --gate-timeout contradict each other", "give one of them")
    times = request.find_max is None  # else its runs find out what fits in memory
    gate = request.gate_timeout_s is not None or (times and (request.measures or len(specs) > 1))
    gate = gate and not request.no_gate
    compared = times and (request.measures or len(specs) * request.repeats > 1)
    return [
        spec.changed(
            gate=gate,
            gate_s=request.gate_timeout_s if gate else None,
            layout_seed=seed if request.randomize or (compared and _is_timed_by_clock(spec)) else None,
            randomize=request.randomize,
        )
        for spec in specs
    ]


def _is_timed_by_clock(spec: JobSpec) -> bool:
    """Return whether only the CPU time and the wall time of the run are compared, and no accelerator computes."""
    return spec.kind == "command" and spec.parser is None and spec.device in (None, "cpu")
