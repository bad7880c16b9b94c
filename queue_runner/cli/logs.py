"""mpsq logs."""

from __future__ import annotations

from typing import Annotated

import typer

from queue_runner.cli.common import home, new_app, say

app = new_app()


@app.command("logs")
def logs(
    id: Annotated[str, typer.Argument(metavar="ID", help="12, 12.3, g4 or @last.")] = "@last",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")] = False,
    stderr: Annotated[bool, typer.Option("--stderr", help="What it wrote to stderr instead.")] = False,
    both: Annotated[bool, typer.Option("--both", help="Both: its stderr goes to ours.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=0, metavar="N", help="Only the last N lines.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="The bytes as they are: progress bars and escapes.")] = False,
) -> None:
    """Print what a job wrote, or follow it.

    Of several runs the one that is running, else the one that started last. Of what a carriage return overwrites only
    the last is shown; on a terminal escape sequences are taken out.
    """
    import sys

    from queue_runner import logs as use_case
    from queue_runner.model import parse_selector

    layout = home()
    row = use_case.choose(layout, parse_selector(id))
    if follow and row["state"] in ("QUEUED", "HELD"):
        say(f"run {row['run']} waits; its log follows when it starts")
        row = use_case.wait_for_start(layout, row)
    folder = use_case.folder_of(layout, row)
    ended = row["state"] == "DONE"

    def goes_on() -> bool:
        return not use_case.has_ended(layout, row["run_id"]) and folder.exit() is None

    sources = []
    for path, out, wanted in (
        (folder.stdout, sys.stdout, both or not stderr),
        (folder.stderr, sys.stderr if both else sys.stdout, both or stderr),
    ):
        if wanted:
            cleaner = None if raw else use_case.Cleaner(terminal=out.isatty())
            pieces = use_case.chunks(path, lines=tail, follow=goes_on if follow and not ended else None)
            sources.append((pieces, use_case.writer(out), cleaner))
    use_case.copy(sources)
