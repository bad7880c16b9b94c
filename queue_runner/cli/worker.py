"""mpsq worker."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from queue_runner.cli.common import new_app

app = new_app()


@app.command("worker")
def worker(
    until_idle: Annotated[bool, typer.Option("--until-idle", help="Exit when no job is waiting or running.")] = False,
    service: Annotated[
        bool,
        typer.Option(
            "--service",
            help="For launchd and systemd: exit with code 0 (so no restart) on errors that a restart cannot fix.",
        ),
    ] = False,
) -> None:
    """Run the queue, one job at a time.

    Ctrl-C ends the worker but not the active run: the next worker takes it over.
    """
    from queue_runner.worker import start_worker

    options = {"--until-idle": until_idle, "--service": service}
    given = [option for option, is_given in options.items() if is_given]
    arguments, environment = start_worker.program("queue_runner.worker", *given)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, arguments, environment)
