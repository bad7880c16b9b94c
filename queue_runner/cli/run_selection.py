"""The options that select stored runs and form rows of them: report and export have them, declared here once."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queue_runner.cli.common import Tags
from queue_runner.cli.typer_options import declared

if TYPE_CHECKING:
    from queue_runner.monitor.answers.run_query import Options

_SELECTION = {
    "where": Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE,...",
            help="Only runs with these values. A key may have several values: compile=on,device=cpu,mps selects"
            " compiled runs on cpu or mps.",
        ),
    ],
    "tag": Tags,
    "since": Annotated[str | None, typer.Option(metavar="TIME", help="Only runs since then: 2h, 3d, 2026-11-20.")],
}
_ROWS = {
    "vs": Annotated[
        str | None, typer.Option(metavar="KEY=VALUE,...", help="The baseline, for example device=cpu,compile=off.")
    ],
    "group_by": Annotated[
        str | None, typer.Option(metavar="KEY,...", help="Make one row for each combination of these keys.")
    ],
    "iters": Annotated[str | None, typer.Option(metavar="A:B", help="Only iterations A to B, both included.")],
    "include_invalid": Annotated[bool, typer.Option("--all", help="Include runs that were left out as invalid.")],
}


class Selection:
    """The selection that a command was given."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values
        self.given = any(values.values())

    def read(self, ids: list[str], **more: Any) -> Options:
        """Return the options of a report; `more` are arguments of read_options that only this command has.

        Raises: UsageError when a value cannot be parsed.
        """
        from queue_runner.reports._common.report_options import read_options

        values = dict(self.values)
        tags, where = values.pop("tag") or (), values.pop("where") or ()
        return read_options(selectors=ids, tags=tags, where=where, **values, **more)


def with_selection(command: Callable[..., None], *, rows: bool = False) -> Callable[..., None]:
    """Give `command(..., selection, ...)` the options that select runs; with `rows`, also those that form rows."""
    annotations = _SELECTION | (_ROWS if rows else {})

    def run(**values: Any) -> None:
        command(selection=Selection({name: values.pop(name) for name in annotations}), **values)

    options = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=False if name == "include_invalid" else None, annotation=kind)
        for name, kind in annotations.items()
    ]
    return declared(run, command, "selection", options)
