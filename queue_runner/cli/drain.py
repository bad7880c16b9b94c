"""mpsq drain."""

from __future__ import annotations

from queue_runner import units
from queue_runner.cli.common import STILL_START, InLane, Timeout, home, new_app, say

app = new_app()


@app.command("drain")
def drain(
    timeout: Timeout = None,
    lane: InLane = None,
) -> None:
    """Let the running job finish, start no other, and report when nothing runs.

    The lane stays paused, even after a timeout: mpsq resume resumes it.
    """
    from queue_runner.control import edit
    from queue_runner.monitor import wait
    from queue_runner.monitor.queue_state import idle

    layout = home()
    limit_s = units.parse_duration(timeout, "--timeout") if timeout else None
    name = edit.lane_of(layout, lane)
    of = None if lane is None else name
    edit.pause(layout, "drained", name)
    if not idle(layout, of):
        say("no new job starts; waiting for the running job to end")
    wait.until_idle(layout, limit_s, of)
    if of is None:
        print("nothing runs, and nothing starts until mpsq resume")
    else:
        print(f"nothing runs on {of}, and none of its runs starts until mpsq resume --lane {of}; {STILL_START}")
