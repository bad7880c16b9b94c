"""mpsq why."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from queue_runner import units
from queue_runner.cli.common import IdsOrLast, Json, Tags, chosen, home, new_app, print_json
from queue_runner.text import for_stream, plain

if TYPE_CHECKING:
    from queue_runner.monitor.explanation import Why

app = new_app()

MOST_NAMED = 8
"""Runs that share a reason and are named; the rest is counted."""


@app.command("why")
def why(
    ids: IdsOrLast = None,
    tag: Tags = None,
    json: Json = False,
) -> None:
    """Explain why a job is in its state, and what to do next."""
    from queue_runner.analysis.stats import by_key
    from queue_runner.monitor import explanation as use_case
    from queue_runner.store.read import reading

    layout, selectors = home(), chosen(ids, tag, "@last")
    with reading(layout.db) as connection:
        reasons = use_case.explain_all(layout, connection, selectors)
    if json:
        print_json("mpsq.why/1", runs=reasons)
        return
    for same_step in by_key(reasons, lambda reason: _shared(reason, reason.next_step)).values():
        for same in by_key(same_step, lambda reason: _shared(reason, reason.sentence)).values():
            others = units.listed([reason.run for reason in same[1:]], MOST_NAMED)
            _print(same[0].sentence + (f" (the same holds for {others})" if others else ""))
        if step := same_step[0].next_step:
            _print(f"    next: {step}")


def _print(line: str) -> None:
    print(for_stream(plain(line), sys.stdout))


def _shared(reason: Why, text: str) -> str:
    """Return a text without the ids of the reason's run and job: what the reasons of several runs may share."""
    job = reason.run.partition(".")[0]
    return re.sub(rf"\b(run|job|mpsq \w+) ({re.escape(reason.run)}|{job})(?!\.?\d)", r"\1", text)
