"""mpsq mcp."""

from __future__ import annotations

import importlib.util

from queue_runner.cli.common import home, new_app
from queue_runner.errors import UsageError

app = new_app()


@app.command("mcp")
def mcp() -> None:
    """Serve tools to the program that starts this: submit, judge, status, report, logs.

    It speaks the Model Context Protocol on stdin and stdout, and runs with your permissions. It needs pip install
    'mcp>=2,<3'.
    """
    home()  # raises if the home belongs to another user
    if importlib.util.find_spec("mcp") is None:
        raise UsageError("mpsq mcp needs the package mcp", "pip install 'mcp>=2,<3'")
    from queue_runner.mcp.tools import make_server

    make_server().run()
