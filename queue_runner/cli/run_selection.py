"""Options of the commands that read stored runs: which runs, and how they form rows."""

from __future__ import annotations

from typing import Annotated

import typer

Where = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE,...", help="Only runs with these values; several values of a key are alternatives."
    ),
]
Group = Annotated[list[str] | None, typer.Option(metavar="ID", help="Only this group: g4 or @last. Repeatable.")]
Since = Annotated[str | None, typer.Option(metavar="TIME", help="Only runs since then: 2h, 3d, 2026-11-20.")]
Vs = Annotated[
    str | None, typer.Option(metavar="KEY=VALUE,...", help="The baseline, for example device=cpu,compile=off.")
]
GroupBy = Annotated[str | None, typer.Option(metavar="KEY,...", help="The keys that form a row.")]
Iters = Annotated[str | None, typer.Option(metavar="A:B", help="Only iterations A to B, both included.")]
