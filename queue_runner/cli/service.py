"""mpsq service."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queue_runner.cli.common import Json, home, new_app, print_json, say
from queue_runner.text import plain

if TYPE_CHECKING:
    from queue_runner.host.service import Service
    from queue_runner.paths import Layout

app = new_app("Run the worker as a service of launchd or systemd.")


def _service(layout: Layout) -> Service:
    from queue_runner import config
    from queue_runner.host.service import for_this_machine

    return for_this_machine(layout, config.load(layout.config))


@app.command("install")
def install() -> None:
    """Install and start the service; also after an upgrade."""
    from queue_runner.host.home import ensure_home
    from queue_runner.store import read

    layout = ensure_home()
    read.is_there(layout.db)  # the worker would refuse to start on a lost queue
    print(_service(layout).install())
    say("mpsq status shows the queue; the log of the worker is in the logs folder beside the database")


@app.command("uninstall")
def uninstall() -> None:
    """Stop and remove the service. The queue stays, and an active run continues."""
    print(_service(home()).uninstall())


@app.command("status")
def status(json: Json = False) -> None:
    """Show the status of the service."""
    service = _service(home())
    found = service.status()
    if json:
        print_json(
            "mpsq.service/1",
            manager=service.kind,
            **{key: getattr(found, key) for key in ("installed", "running", "pid", "detail")},
            problems=[{"problem": problem, "fix": fix} for problem, fix in found.problems],
        )
        return
    print(plain(f"{service.kind}: {found.detail}"))
    for problem, fix in found.problems:
        print(plain(f"problem: {problem}\n    fix: {fix}"))
