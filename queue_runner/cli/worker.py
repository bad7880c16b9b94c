"""mpsq worker."""

from __future__ import annotations

from typing import Annotated

import typer

from queue_runner.cli.common import new_app

app = new_app()


@app.command("worker")
def worker(
    until_idle: Annotated[bool, typer.Option("--until-idle", help="End when nothing waits or runs any more.")] = False,
) -> None:
    """Run the queue, one job at a time.

    Ctrl-C ends the worker, not the run that is going on: the next worker takes it over.
    """
    import os
    import sys

    from queue_runner.worker import spawn

    arguments, environment = spawn.command(*(["--until-idle"] if until_idle else []))
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, arguments, environment)
