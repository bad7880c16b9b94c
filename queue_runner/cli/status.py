"""mpsq status."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import asdict

from queue_runner import tables
from queue_runner.cli.common import Json, home, new_app, print_json
from queue_runner.errors import UsageError

if TYPE_CHECKING:
    from queue_runner.monitor.eta import Turn
    from queue_runner.monitor.queue_status import Status

app = new_app()


@app.command("status")
def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Keep showing it until Ctrl-C.")] = False,
    all: Annotated[bool, typer.Option("--all", help="Show all waiting jobs, not only the first few.")] = False,
    json: Json = False,
) -> None:
    """Show running and waiting jobs, and whether there is a worker.

    --watch redraws the terminal twice a second and takes about 0.4 % of a core. If stdout is not a terminal, or TERM is
    dumb, it prints the status when a run starts or ends.
    """
    from queue_runner.monitor import queue_status as use_case
    from queue_runner.monitor import status_text

    if watch and json:
        raise UsageError(
            "--watch cannot be combined with --json",
            "mpsq status --json prints it once; mpsq wait waits until jobs have ended",
        )
    n_waiting = -1 if all or json else status_text.SHOWN
    if watch:
        from queue_runner.monitor.watch import watch as run_watch

        run_watch(home(), n_waiting)
        return
    view = use_case.read_status(home(), waiting=n_waiting)
    if json:
        _print_json(view)
    else:
        print(status_text.text(view, colour=tables.in_colour()))


def _print_json(view: Status) -> None:
    running = None
    if (at := view.running) is not None:
        running = {"run": at.run, "supervised": at.supervision.warden, "progress": at.progress}
    fields = {
        "worker": {"alive": view.queue.worker, "pid": view.queue.worker_pid},
        "lane": {key: getattr(view.queue, key) for key in ("blocked_reason", "paused_at", "paused_reason")},
        "lanes": [{**asdict(lane), "running": lane.running and lane.running.run} for lane in view.queue.lanes],
        "running": running,
        "waiting": view.waiting,
        "waits": [{"run": run.run, **asdict(view.reasons[run.run_id])} for run in view.waiting],
        "ended": view.ended,
        "schedules": view.schedules,
        "eta": {
            **{key: getattr(view.eta, key) for key in ("finish_at", "left_s", "unknown")},
            "turns": [_turn(turn) for turn in view.eta.turns.values()],
        },
        "blocks": view.blocks,
        "disk": {"free_bytes": view.free_bytes},
    }
    print_json("mpsq.status/1", **fields)


def _turn(turn: Turn) -> dict[str, Any]:
    fields = {name: value for name, value in asdict(turn).items() if name != "expected"}
    return {**fields, "expected_s": turn.expected.real_s, "basis": turn.expected.basis or None}
