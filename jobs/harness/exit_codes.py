"""How every workload begins and ends: the reporter, and an exit code for each kind of error."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import Any

from harness import errors
from harness.workload import resolve
from mpsq_report import Reporter


def run(workload: Mapping[str, Any], work: Callable[[Mapping[str, Any], Reporter], object]) -> int:
    """Call `work` with the resolved literal and the reporter.

    Return the exit code: 0, 1 (failed), 2 (usage), 69 (device unavailable), 71 (out of memory).
    """
    report = Reporter()
    report.begin("setup", since_start=True)
    literal = resolve(workload)
    try:
        work(literal, report)
    except Exception as error:
        problem = errors.explain(error, literal.get("params", {}))
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
