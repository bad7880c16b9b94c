"""How every workload begins and ends: the reporter, and an exit code for each kind of error."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import Any

from harness import errors, processes
from harness.workload import resolve
from mpsq_report import Reporter


def run(workload: Mapping[str, Any], work: Callable[[Mapping[str, Any], Reporter], object]) -> int:
    """Call `work` with the resolved literal and the reporter.

    Return the exit code: 0, 1 (failed), 2 (usage), 69 (device unavailable), 71 (out of memory).
    """
    report = Reporter("" if processes.rank() else None)
    report.begin("setup", since_start=True)
    literal = resolve(workload)
    try:
        work(literal, report)
    except Exception as error:
        problem = errors.explain(error, literal.get("params", {}))
        if processes.is_rank():
            return _of_rank(error, problem)
        if problem is None:
            traceback.print_exc()
            report.note("error", f"{type(error).__name__}: {error}")
            report.bye(False)
            return errors.EX_ERROR
        if problem.note:
            report.note(problem.note, problem.message)
        report.bye(False)
        return problem.show()
    report.bye(True)
    return 0


def _of_rank(error: Exception, problem: errors.JobError | None) -> int:
    """Leave an error to the launcher, which knows what ended the other ranks. Return the exit code."""
    lost = errors.is_lost_peer(error)
    if problem is None:
        if not lost:
            traceback.print_exc()
        problem = errors.JobError(f"{type(error).__name__}: {errors.first_line(error)}", note="error")
    words = {"message": problem.message, "hint": problem.hint, "code": problem.exit_code, "note": problem.note}
    processes.tell_failure({**words, "lost_peer": lost})
    return problem.exit_code
