"""mpsq suspend."""

from __future__ import annotations

from queue_runner.cli.common import Ids, Json, Tags, chosen, home, new_app, tell

app = new_app()


@app.command("suspend")
def suspend(ids: Ids = None, tag: Tags = None, json: Json = False) -> None:
    """Let running jobs stand still until mpsq continue; the lane and their memory stay taken.

    Every process of the job is stopped. Memory, the accelerator's memory and the lane stay held: nothing else starts
    meanwhile. --timeout and --stall stand still, and the run's numbers are marked as invalid: an iteration held the
    pause. It works without a worker. What waits is kept from starting by mpsq hold.
    """
    from queue_runner.control import suspend as use_case

    tell("mpsq.suspend/1", use_case.suspend(home(), chosen(ids, tag)), json)
