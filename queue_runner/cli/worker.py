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
) -> None:
    """Run the queue, one job at a time.

    Ctrl-C ends the worker but not the active run: the next worker takes it over.
    """
    from queue_runner.worker import spawn

    arguments, environment = spawn.command(*(["--until-idle"] if until_idle else []))
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, arguments, environment)
