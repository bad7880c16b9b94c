"""mpsq status."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from queue_runner.cli.common import Json, home, new_app, print_json

if TYPE_CHECKING:
    from queue_runner.render import Column
    from queue_runner.status import Hooks, Progress, Status

app = new_app()

SHOWN = 10


@app.command("status")
def status(
    all: Annotated[bool, typer.Option("--all", help=f"Show all that waits, not the first {SHOWN}.")] = False,
    json: Json = False,
) -> None:
    """Show what runs, what waits, and whether a worker is there."""
    from queue_runner import status as use_case

    found = use_case.read_status(home())
    if json:
        _print_json(found)
    else:
        _print(found, None if all else SHOWN)


def _print_json(found: Status) -> None:
    from dataclasses import asdict

    from queue_runner.listing import run_object

    running = None
    if found.running is not None and found.progress is not None:
        running = {"run": run_object(found.running), "supervised": found.supervised, "progress": asdict(found.progress)}
    print_json(
        "mpsq.status/1",
        worker={"alive": found.queue.worker, "pid": found.queue.worker_pid},
        lane={"blocked_reason": found.queue.blocked_reason, "paused_at": found.queue.paused_at},
        running=running,
        waiting=[run_object(row) for row in found.waiting],
        ended=[run_object(row) for row in found.ended],
        hooks=asdict(found.hooks),
    )


def _print(found: Status, shown: int | None) -> None:
    import textwrap

    from queue_runner import listing, render, units
    from queue_runner.queue_state import START_A_WORKER

    queue = found.queue
    facts = [("worker", _worker(found, START_A_WORKER))]
    if queue.blocked_reason:
        facts.append(("blocked", queue.blocked_reason))
    if queue.paused_at:
        facts.append(("paused", "nothing starts until it is resumed"))
    if found.running is None:
        facts.append(("running", "nothing"))
    else:
        item = listing.run_object(found.running)
        asked = f"{item['run']}  {item['name']}  {listing.question(item)}"
        facts.append(("running", textwrap.fill(asked, 70)))
        if found.progress is not None:
            facts.append(("", _progress(found.progress)))
        if found.running["cancel_requested_at"]:
            facts.append(("", "its end was asked for"))
        if not queue.worker and not found.supervised:
            facts.append(("", "nobody watches it: the next worker finds out how it ended"))
    facts.append(("waiting", f"{units.count(len(found.waiting))} run{'s' * (len(found.waiting) != 1)}"))
    facts += [("hooks" if not n else "", line) for n, line in enumerate(_hooks(found.hooks))]
    print(render.facts(facts))
    rows = [_waiting(row, place, found) for place, row in enumerate(found.waiting[:shown], start=1)]
    if rows:
        columns = [("place", "#"), ("run", "run"), ("name", "name"), ("asks", "asks"), ("waits", "waits for")]
        print("\n" + render.table(rows, [_column(key, title) for key, title in columns]))
    if shown is not None and len(found.waiting) > shown:
        print(f"... and {len(found.waiting) - shown} more: mpsq status --all")
    if found.ended:
        titles = {"run": "run", "name": "name", "asks": "asks", "ending": "ended last", "real_s": "after"}
        ended = [_column(key, title) for key, title in titles.items()]
        print("\n" + render.table([_ended(row) for row in found.ended], ended))


def _column(key: str, title: str) -> Column:
    from queue_runner import render, units

    words = (lambda real_s: units.duration(real_s)) if key == "real_s" else None
    return render.Column(key, title, words=words, right=key == "place", flexible=key == "asks")


def _ended(row: Any) -> dict[str, Any]:
    from queue_runner import listing, render

    return {
        "run": row["run"],
        "name": render.elide(row["name"], 16),
        "asks": listing.question(listing.run_object(row)),
        "ending": listing.ending(row),
        "real_s": row["real_s"],
    }


def _hooks(hooks: Hooks) -> list[str]:
    """Nothing where there is nothing to see to."""
    from queue_runner import listing, render

    lines = [f"{hooks.pending + hooks.running} to be called"] if hooks.pending or hooks.running else []
    for call in hooks.troubled:
        of = f" of run {call['run']}" if call["run"] else ""
        lines.append(render.shorten(f"{call['event']}{of}: {listing.hook_ending(call)}", 68))
    return lines


def _worker(found: Status, start: str) -> str:
    if found.queue.worker:
        return f"process {found.queue.worker_pid}" if found.queue.worker_pid else "running"
    if found.running is not None and found.supervised:
        return f"none; the run goes on under its warden. {start}"
    return f"none. {start}"


def _progress(at: Progress) -> str:
    from queue_runner import units

    where = [f"phase {at.phase}"] if at.phase else []
    if at.iters:
        planned = f" of {units.count(at.planned_iters)}" if at.planned_iters else ""
        where.append(f"iteration {units.count(at.iters)}{planned}")
    if at.median_s is not None:
        where.append(f"{units.ms(at.median_s)} ms/iter")
    if at.loss is not None:
        where.append(f"loss {units.loss(at.loss)}")
    clock = f"{units.duration(at.elapsed_s)} so far"
    if at.left_s:
        clock += f", about {units.duration(at.left_s)} of training left"
    return "\n".join(filter(None, [", ".join(where), clock]))


def _waiting(row: Any, place: int, found: Status) -> dict[str, Any]:
    from queue_runner import listing, render

    item = listing.run_object(row)
    if row["state"] == "HELD":
        reason = "its release"
    elif row["blocked_reason"]:
        reason = row["blocked_reason"]
    elif not found.queue.worker:
        reason = "a worker"
    elif found.queue.blocked_reason or found.queue.paused_at:
        reason = "the lane"
    else:
        before = found.waiting[place - 2]["run"] if place > 1 else found.running["run"] if found.running else None
        reason = before or "nothing: next"
    return {
        "place": place,
        "run": row["run"],
        "name": render.elide(row["name"], 16),
        "asks": listing.question(item),
        "waits": render.shorten(reason, 20),
    }
