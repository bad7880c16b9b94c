"""Differences between commands outside --set: arguments of the command line itself, such as --batch_size=8."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from queue_runner import redact
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.analysis.stats import by_key

_KNOWN = re.compile(r"--?(device|compile|dtype|seed)(=.*)?")
"""Arguments that reports distinguish, or pool, by columns of their own."""
_COLUMNS = ("device", "dtype", "config")


def arguments_by_run(rows: Iterable[ReportedRun]) -> dict[int, dict[str, Any]]:
    """Return by run the factor `arguments`: the arguments in which commands of the same subject differ."""
    commands = (row for row in rows if row.kind == "command")
    subjects = by_key(commands, lambda row: row.name)
    factors: dict[int, dict[str, Any]] = {}
    secrets: dict[str, int] = {}
    for runs in subjects.values():
        argvs = {text: _hidden(json.loads(text), secrets) for text in sorted({row.argv_json for row in runs})}
        if len(argvs) > 1:
            common = set.intersection(*map(set, argvs.values()))
            distinct = {row.run_id: _own(argvs[row.argv_json], common, row) for row in runs}
            if len(set(distinct.values())) > 1:
                factors |= {run_id: {"arguments": text} for run_id, text in distinct.items()}
    return factors


def _hidden(argv: Iterable[str], secrets: dict[str, int]) -> list[str]:
    """Return the arguments with a number for each secret: arms that differ in one stay apart."""
    return redact.replaced(argv, lambda word: f"[hidden {secrets.setdefault(word, len(secrets) + 1)}]")


def _own(argv: Iterable[str], common: set[str], row: ReportedRun) -> str | None:
    """Return the arguments that are neither in every command nor given by a column or setting of the run."""
    values = {str(value) for value in json.loads(row.params_json).values()}
    known = common | values | {str(getattr(row, name)) for name in _COLUMNS}
    distinct = [
        argument
        for argument in argv
        if argument not in known and not _KNOWN.fullmatch(argument) and argument.partition("=")[2] not in values
    ]
    return " ".join(distinct) or None
