"""Retry: new runs of the same jobs, with the code of then; what the old ones said and did is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from queue_runner import wake
from queue_runner.errors import UsageError
from queue_runner.model import Outcome, Selector, State
from queue_runner.paths import Layout

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Retried:
    """`old` is tried again as `new` (12.3)."""

    old: str
    new: str


def retry(
    layout: Layout, selectors: Sequence[Selector], *, succeeded_too: bool = False, resumed: bool = False
) -> list[Retried]:
    """Queue another attempt for the last attempt of each repeat that is named and did not succeed.

    `succeeded_too`: and of what did. `resumed`: each goes on from the last checkpoint of the run before.

    Raises: UsageError where nothing can be tried again, or a run left no checkpoint, with the reason.
    """
    from queue_runner import resume
    from queue_runner.store import attempts, choose
    from queue_runner.store.engine import open_engine, writing

    named = any(selector.number is not None for selector in selectors)
    with writing(open_engine(layout.db)) as connection:
        rows = choose.runs_of(connection, selectors)
        last = _last(choose.siblings(connection, rows))
        again = sorted((row for row in last if _is_meant(row, rows, succeeded_too)), key=_interleaved)
        if not again:
            raise _nothing(rows, named)
        found = []
        for row in again:
            origin = resume.find(connection, layout, row["id"]) if resumed else None
            reason = f"to go on from the checkpoint of run {origin.run}" if origin else "the user asked"
            origin_id = origin.run_id if origin else None
            new = attempts.again(connection, row["id"], actor="user", reason=reason, resumed_from=origin_id)
            found.append(Retried(row["run"], str(new)))
    wake.ring(layout.fifo)
    return found


def _interleaved(row: Row) -> int:
    """Runs were made in the seeded order of their grid: ids keep it, numbers do not."""
    return int(row["id"])


def _last(rows: Sequence[Row]) -> list[Row]:
    last: dict[tuple[int, int], Row] = {}
    for row in rows:
        key = (row["job_id"], row["repeat"])
        if key not in last or row["attempt"] > last[key]["attempt"]:
            last[key] = row
    return list(last.values())


def _is_meant(row: Row, named: Sequence[Row], succeeded_too: bool) -> bool:
    """Whether this last attempt has ended, answers a repeat that was named, and is to be tried again."""
    if row["state"] != State.DONE or row["kind"] == "import" or row["deleted_at"] is not None:
        return False
    asked = [one for one in named if (one["job_id"], one["repeat"]) == (row["job_id"], row["repeat"])]
    return bool(asked) and (succeeded_too or row["outcome"] != Outcome.SUCCEEDED)


def _nothing(rows: Sequence[Row], named: bool) -> UsageError:
    if all(row["kind"] == "import" for row in rows):
        return UsageError("an imported log cannot be run again", "submit the workload or the command itself")
    if all(row["deleted_at"] is not None for row in rows):
        return UsageError("what was deleted cannot be tried again", "submit it anew")
    if any(row["state"] != State.DONE for row in rows):
        return UsageError("nothing that has ended failed; the rest waits or runs", "mpsq status shows it")
    what = "that run" if named else "everything that is named"
    return UsageError(f"{what} succeeded: nothing failed", "--all runs it again; mpsq rerun makes a new job")
