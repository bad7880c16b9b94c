"""What `mpsq show g4` says of a submission: what was asked, how its runs ended, what to look at next."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Sequence

from queue_runner import units
from queue_runner.model import PREFLIGHT, Outcome, Row, Selector, State
from queue_runner.monitor import listing
from queue_runner.monitor.attempts import last_attempts


def of_one_group(selectors: Sequence[Selector], rows: Sequence[Row]) -> bool:
    """Return whether exactly one group was named, and it has several runs."""
    alone = len(selectors) == 1 and (selectors[0].group is not None or selectors[0].last)
    return alone and sum(row["number"] != PREFLIGHT for row in rows) > 1


def facts(connection: sqlite3.Connection, rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Return names and values of the group that the rows of v_run are of."""
    group = rows[0]["group_id"]
    found = connection.execute("SELECT title, created_at, seed FROM groups WHERE id = ?", [group]).fetchone()
    runs = [row for row in rows if row["number"] != PREFLIGHT]
    last = last_attempts(runs)
    jobs = len({row["job_id"] for row in runs})
    ended = [row for row in runs if row["state"] == State.DONE]
    told = [
        ("group", f"g{group}: {units.counted(jobs, 'job')}, {units.counted(len(last), 'run')}"),
        ("asked by", found["title"]),
        ("submitted", time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found["created_at"]))),
        ("ended", _endings(last)),
        ("invalid", _invalid(last)),
    ]
    if real_s := sum(row["real_s"] or 0.0 for row in ended):
        told.append(("took", f"{units.duration(real_s)} in all"))
    told.append(("order seed", str(found["seed"])))
    if notes := sorted({row["note"] for row in runs if row["note"]}):
        told.append(("remark", "\n".join(notes)))
    return [(name, value) for name, value in told if value]


def _endings(last: Sequence[Row]) -> str:
    """Count how the last attempts ended: "7 SUCCEEDED, 1 FAILED(1) (12.3)"."""
    counts = Counter(listing.ending(row) for row in last)
    first = {listing.ending(row): row["run"] for row in reversed(last)}
    ok = {Outcome.SUCCEEDED.value, *(state.value for state in State)}
    return ", ".join(
        f"{units.count(n)} {ending}" + ("" if ending in ok else f" ({'first ' * (n > 1)}{first[ending]})")
        for ending, n in counts.most_common()
    )


def _invalid(last: Sequence[Row]) -> str:
    """Count the runs that succeeded and are not valid, by the kinds of their taints."""
    runs = [row for row in last if row["outcome"] == Outcome.SUCCEEDED and not row["valid"]]
    kinds = Counter(kind for row in runs for kind in (row["taints"] or "").split(",") if kind)
    named = ", ".join(f"{kind} {n}" for kind, n in kinds.most_common())
    return f"{units.counted(len(runs), 'run')} ({named}): in no comparison" if runs else ""
