"""mpsq why."""

from __future__ import annotations

import sys

from queue_runner.cli.common import IdsOrLast, Json, Tags, chosen, home, new_app, print_json
from queue_runner.text import for_stream, plain

app = new_app()


@app.command("why")
def why(
    ids: IdsOrLast = None,
    tag: Tags = None,
    json: Json = False,
) -> None:
    """Explain why a job is in its state, and what to do next."""
    from queue_runner.monitor import explanation as use_case
    from queue_runner.store.read import reading

    layout, selectors = home(), chosen(ids, tag, "@last")
    with reading(layout.db) as connection:
        reasons = use_case.explain_all(layout, connection, selectors)
    if json:
        print_json("mpsq.why/1", runs=reasons)
        return
    for reason in reasons:
        print(for_stream(plain(reason.sentence), sys.stdout))
        if reason.next_step:
            print(for_stream(f"    next: {plain(reason.next_step)}", sys.stdout))
