"""mpsq wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from queue_runner import units
from queue_runner.cli.common import IdsOrLast, Json, Tags, Timeout, chosen, home, new_app, print_json, say
from queue_runner.errors import UsageError
from queue_runner.model import Row
from queue_runner.text import plain

app = new_app()


@app.command("wait")
def wait(
    ids: IdsOrLast = None,
    tag: Tags = None,
    timeout: Timeout = None,
    all_: Annotated[bool, typer.Option("--all", help="Wait for every job that waits or runs.")] = False,
    json: Json = False,
) -> None:
    """Wait until jobs have ended: the named ones, else the newest group, which is said.

    Exit codes: 0 if all succeeded, 3 if not, 124 after a timeout.
    """
    from queue_runner.monitor import listing, queue_state
    from queue_runner.monitor import wait as use_case
    from queue_runner.monitor.attempts import last_attempts

    layout = home()
    if all_ and (ids or tag):
        raise UsageError("wait --all takes no id and no tag", "leave out one of them")
    selectors = use_case.open_jobs(layout) if all_ else chosen(ids, tag, "@last")
    if not selectors:
        if json:
            print_json("mpsq.wait/1", ok=True, runs=[])
        else:
            print("nothing waits or runs")
        return
    timeout_s = units.parse_duration(timeout, "--timeout") if timeout else None

    said: set[str] = set()

    def once(sentence: str) -> None:
        if sentence not in said:
            said.add(sentence)
            say(sentence)

    def on_waiting(rows: Sequence[Row], silent: Sequence[str]) -> None:
        if not ids and not tag:
            once(use_case.awaited_sentence(rows))
        if not queue_state.worker(layout)[0]:
            once(f"no worker runs this queue: waiting jobs will not start. {queue_state.START_A_WORKER}")
        if held := use_case.held(rows):
            once(use_case.held_sentence(held))
        for sentence in silent:
            once(plain(sentence))

    rows = use_case.until_done(layout, selectors, timeout_s, on_waiting)
    counted = last_attempts(rows)
    failed = use_case.failed(rows)
    if json:
        print_json("mpsq.wait/1", ok=not failed, runs=[listing.run_object(row) for row in rows])
    else:
        probed = [row for row in counted if row["outcome"] == "OUT_OF_MEMORY" and row not in failed]
        too_large = f"; {len(probed)} found a value that does not fit into memory" if probed else ""
        succeeded = len(counted) - len(failed) - len(probed)
        print(f"{succeeded} of {len(counted)} runs succeeded{too_large}")
        for line in use_case.failures(failed):
            print(plain(line))
    use_case.refuse_failures(rows)
