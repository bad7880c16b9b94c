"""mpsq pause and mpsq resume."""

from __future__ import annotations

from typing import Annotated

import typer

from queue_runner import units
from queue_runner.cli.common import (
    Ids,
    InLane,
    Json,
    Tags,
    Timeout,
    chosen,
    home,
    new_app,
    print_json,
    say,
    say_obstacles,
    tell,
)
from queue_runner.errors import UsageError
from queue_runner.text import plain

app = new_app()
resume_app = new_app()

STILL_START = "runs that need the whole machine still start; mpsq pause without --lane stops these, too"
"""The limit of pausing one lane of several."""


@app.command("pause", epilog="mpsq resume undoes it: mpsq resume for the queue, mpsq resume 12 for a job.")
def pause(
    ids: Ids = None,
    tag: Tags = None,
    now: Annotated[
        bool, typer.Option("--now", help="Also suspend running jobs: stop their processes until mpsq resume.")
    ] = False,
    when_done: Annotated[
        bool, typer.Option("--when-done", help="Wait until the running jobs have ended, and start no other.")
    ] = False,
    timeout: Timeout = None,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="The reason, which mpsq status shows.")] = None,
    lane: InLane = None,
    json: Json = False,
) -> None:
    """Start no job until mpsq resume; with an id, only not these. Running jobs continue.

    A named job that waits is held. With --now, all processes of a running job are stopped. They keep their memory, the
    accelerator's memory and the lane, so nothing else starts meanwhile. --timeout and --stall of the job do not count
    the time, and the run's numbers are marked as invalid, since an iteration contains the pause.
    """
    from queue_runner.control import pausing

    named = bool(ids or tag)
    if now and when_done:
        raise UsageError("--now and --when-done exclude each other", "use one of them")
    if named and (when_done or lane or reason):
        raise UsageError(
            "--when-done, --lane and --reason apply to the queue, not to jobs", "leave out the ids or these options"
        )
    if timeout and not when_done:
        raise UsageError("--timeout requires --when-done", "mpsq pause --when-done --timeout 2h")
    timeout_s = units.parse_duration(timeout, "--timeout") if timeout else None
    layout = home()
    if named:
        tell("mpsq.pause/1", pausing.pause(layout, chosen(ids, tag), now=now), json, changed=None)
        return
    name = pausing.lane_of(layout, lane)
    changed, runs = pausing.pause_queue(layout, plain(reason or "").strip() or "by hand", name, now=now)
    if json:
        print_json("mpsq.pause/1", changed=changed, runs=runs)
    elif not when_done:
        which = "the queue" if lane is None else f"lane {name}"
        print(f"{which} is paused" if changed else f"{which} was already paused")
        for run in runs:
            print(f"run {run.run} {run.result}")
    if when_done:
        _wait(name if lane is not None else None, timeout_s, json)
    elif lane is not None:
        say(STILL_START)


def _wait(lane: str | None, timeout_s: float | None, quiet: bool) -> None:
    from queue_runner.monitor import awaiting
    from queue_runner.monitor.queue_state import idle

    if not idle(home(), lane):
        say("no new job starts; waiting for the running job to end")
    awaiting.until_idle(home(), timeout_s, lane)
    if quiet:
        return
    if lane is None:
        print("nothing runs now; nothing starts until mpsq resume")
    else:
        print(f"nothing runs on {lane}, and none of its runs starts until mpsq resume --lane {lane}; {STILL_START}")


@resume_app.command("resume")
def resume(ids: Ids = None, tag: Tags = None, lane: InLane = None, json: Json = False) -> None:
    """Undo mpsq pause: for the queue and its suspended jobs; with an id, for these jobs.

    A held job waits again, and a suspended one continues. Jobs that were held by id stay held until they are named.
    """
    from queue_runner.control import pausing

    layout = home()
    if ids or tag:
        if lane:
            raise UsageError("--lane applies to the queue, not to jobs", "leave out the ids or --lane")
        tell("mpsq.resume/1", pausing.resume(layout, chosen(ids, tag)), json, changed=None)
        say_obstacles(layout, always=True)
        return
    name = pausing.lane_of(layout, lane)
    changed, runs = pausing.pause_queue(layout, None, name)
    if json:
        print_json("mpsq.resume/1", changed=changed, runs=runs)
        return
    which = "the queue" if lane is None else f"lane {name}"
    print(f"{which} is resumed" if changed else f"{which} was not paused")
    for run in runs:
        print(f"run {run.run} {run.result}")
    say_obstacles(layout, always=True)
