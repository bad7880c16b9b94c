"""Differences between commands outside --set: words of the command line itself, such as --batch_size=8."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

_TOLD = re.compile(r"--?(device|compile|dtype|seed)(=.*)?")
"""Words that reports already distinguish, or pool, by columns of their own."""
_ASKED = ("device", "dtype", "config")


def arguments_by_run(rows: Iterable[Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return by run the words in which the commands of one subject differ, as the factor `arguments`."""
    subjects: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["kind"] == "command":
            subjects.setdefault(row["workload"] or row["name"], []).append(row)
    found: dict[int, dict[str, Any]] = {}
    for runs in subjects.values():
        words = {text: json.loads(text) for text in {row["argv_json"] for row in runs}}
        if len(words) > 1:
            common = set.intersection(*map(set, words.values()))
            left = {row["run_id"]: _left(words[row["argv_json"]], common, row) for row in runs}
            if len(set(left.values())) > 1:
                found |= {run_id: {"arguments": text} for run_id, text in left.items()}
    return found


def _left(argv: Iterable[str], common: set[str], row: Mapping[str, Any]) -> str | None:
    """Return the words that are neither in every command nor given by a column or setting of the run."""
    values = {str(value) for value in json.loads(row["params_json"]).values()}
    told = {str(row[name]) for name in _ASKED} | values

    def says_more(word: str) -> bool:
        return word not in common | told and not _TOLD.fullmatch(word) and word.partition("=")[2] not in values

    return " ".join(filter(says_more, argv)) or None
