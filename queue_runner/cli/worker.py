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
    from pathlib import Path

    import queue_runner

    root = Path(queue_runner.__file__).resolve().parents[1]
    environment = dict(os.environ)
    if root.name not in ("site-packages", "dist-packages"):  # a checkout
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), environment.get("PYTHONPATH")]))
    # -P: a file named like a module in the folder where the user stands must not take its place
    arguments = [sys.executable, "-P", "-m", "queue_runner.daemon", *(["--until-idle"] if until_idle else [])]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, arguments, environment)
