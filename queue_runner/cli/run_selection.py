"""Options of the commands that read stored runs: which runs, and how they form rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queue_runner.cli.common import groups

if TYPE_CHECKING:
    from queue_runner.reports._common.report import Options

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


def read(ctx: typer.Context, ids: Sequence[str], **more: Any) -> Options:
    """Return the options of a report from those of the command; `more` are arguments of read_options that only this
    command has. Raises: UsageError when a value cannot be parsed."""
    from queue_runner.reports._common.options import read_options

    given = ctx.params
    return read_options(
        selectors=[*ids, *groups(given["group"])],
        tags=given["tag"] or (),
        where=given["where"] or (),
        since=given["since"],
        vs=given["vs"],
        group_by=given["group_by"],
        iters=given["iters"],
        include_invalid=given["all"],
        **more,
    )
