"""mpsq service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from queue_runner.cli.common import Json, home, new_app, new_home, print_json, say
from queue_runner.text import plain

if TYPE_CHECKING:
    from queue_runner.host.services.user_service import UserService
    from queue_runner.paths import Layout

app = new_app("Run the worker as a service of launchd or systemd.")


def _service(layout: Layout) -> UserService:
    from queue_runner import config_file
    from queue_runner.host.services import for_this_machine

    return for_this_machine(layout, config_file.load(layout.config))


def _refuse_lost(layout: Layout) -> Layout:
    """Raise: DamageError for a lost queue, on which the worker would refuse to start."""
    from queue_runner.store import read

    read.is_there(layout.db)
    return layout


@app.command("install")
def install() -> None:
    """Install and start the service.

    Install it again after an upgrade of mpsq.
    """
    layout = _refuse_lost(new_home())
    service = _service(layout)
    print(service.install())
    if service.kind == "launchd":
        say('macOS announces "Background Items Added": if you switch mpsq off there, the worker never starts')
    say("mpsq status shows the queue; the log of the worker is in the logs folder beside the database")


@app.command("uninstall")
def uninstall() -> None:
    """Stop and remove the service.

    The queue stays, and an active run continues.
    """
    print(_service(home()).uninstall())


@app.command("start")
def start() -> None:
    """Start the installed service."""
    print(_service(_refuse_lost(home())).start())


@app.command("stop")
def stop() -> None:
    """Stop the worker.

    mpsq service start starts it again, and so does the next login. An active run continues.
    """
    print(_service(home()).stop())


@app.command("restart")
def restart() -> None:
    """Restart the worker.

    An active run continues.
    """
    print(_service(_refuse_lost(home())).restart())


@app.command("logs")
def logs(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log until Ctrl-C.")] = False,
    tail: Annotated[int, typer.Option("--tail", "-n", min=0, metavar="N", help="Only the last N lines.")] = 50,
) -> None:
    """Print the end of the worker's log."""
    import sys

    from queue_runner.host.low_priority import Wait, descriptor, give_way
    from queue_runner.monitor.log_files import Log
    from queue_runner.monitor.log_text import Outputs

    path = _service(home()).log
    log = Log([path], [Outputs(sys.stdout, sys.stderr, raw=False).text()], tail)
    try:
        if not log.copy() and tail != 0:
            say(f"the worker has written nothing to {path}")
        if follow:
            give_way()
            log.follow(Wait(descriptor(sys.stdout)))
    finally:
        log.end()


@app.command("status")
def status(json: Json = False) -> None:
    """Show the status of the service."""
    service = _service(home())
    status = service.status()
    if json:
        print_json(
            "mpsq.service/1",
            manager=service.kind,
            **{key: getattr(status, key) for key in ("installed", "running", "pid", "detail")},
            problems=[{"problem": problem, "fix": fix} for problem, fix in status.problems],
        )
        return
    print(plain(f"{service.kind}: {status.detail}"))
    for problem, fix in status.problems:
        print(plain(f"problem: {problem}\n    fix: {fix}"))
