"""mpsq status."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queue_runner import tables
from queue_runner.cli.common import Json, home, new_app, print_json
from queue_runner.errors import UsageError

if TYPE_CHECKING:
    from queue_runner.monitor.eta import Turn
    from queue_runner.monitor.status import Status

app = new_app()


@app.command("status")
def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Keep showing it until Ctrl-C.")] = False,
    all: Annotated[bool, typer.Option("--all", help="Show all waiting jobs, not only the first.")] = False,
    json: Json = False,
) -> None:
    """Show running and waiting jobs, and whether there is a worker.

    --watch redraws the terminal twice a second and takes about 0.4 % of a core. If stdout is not a terminal, or TERM is
    dumb, it prints the status when a run starts or ends.
    """
    from queue_runner.monitor import status as use_case
    from queue_runner.monitor import status_text

    if watch and json:
        raise UsageError(
            "--watch cannot be combined with --json",
            "mpsq status --json prints it once; mpsq wait waits until jobs have ended",
        )
    shown = -1 if all or json else status_text.SHOWN
    if watch:
        from queue_runner.monitor.watch import watch as run_watch

        run_watch(home(), shown)
        return
    found = use_case.read_status(home(), waiting=shown)
    if json:
        _print_json(found)
    else:
        print(status_text.text(found, colour=tables.in_colour()))


def _print_json(found: Status) -> None:
    from queue_runner.monitor.listing import run_object

    running = None
    if found.running is not None and found.progress is not None:
        running = {"run": run_object(found.running), "supervised": found.supervised, "progress": asdict(found.progress)}
    print_json(
        "mpsq.status/1",
        worker={"alive": found.queue.worker, "pid": found.queue.worker_pid},
        lane={key: getattr(found.queue, key) for key in ("blocked_reason", "paused_at", "paused_reason")},
        lanes=[{**asdict(one), "running": one.running and one.running["run"]} for one in found.queue.lanes],
        running=running,
        waiting=[run_object(row) for row in found.waiting],
        waits=[{"run": row["run"]} | asdict(found.reasons[row["run_id"]]) for row in found.waiting],
        ended=[run_object(row) for row in found.ended],
        schedules=list(found.schedules),
        eta={
            **{key: getattr(found.eta, key) for key in ("finish_at", "left_s", "unknown")},
            "turns": [_turn(turn) for turn in found.eta.turns.values()],
        },
        hooks=asdict(found.hooks),
        blocks=[asdict(one) for one in found.blocks],
        disk=asdict(found.disk),
    )


def _turn(turn: Turn) -> dict[str, Any]:
    flat = asdict(turn)
    expected = flat.pop("expected")
    return {**flat, "expected_s": expected["real_s"], "basis": expected["basis"] or None}
