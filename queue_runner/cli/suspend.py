"""mpsq suspend."""

from __future__ import annotations

from queue_runner.cli.common import Ids, Json, Tags, chosen, home, new_app, tell

app = new_app()


@app.command("suspend")
def suspend(ids: Ids = None, tag: Tags = None, json: Json = False) -> None:
    """Suspend running jobs until mpsq continue; they keep the lane and their memory.

    All processes of the job are stopped. They keep their memory, the accelerator's memory and the lane, so nothing else
    starts meanwhile. --timeout and --stall do not count the time, and the run's numbers are marked as invalid, since an
    iteration contains the pause. This works without a worker. To keep waiting jobs from starting, use mpsq hold.
    """
    from queue_runner.control import suspend as use_case

    tell("mpsq.suspend/1", use_case.suspend(home(), chosen(ids, tag)), json)
