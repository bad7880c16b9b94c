"""mpsq report."""

from __future__ import annotations

import textwrap
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct

from queue_runner import tables
from queue_runner.cli.common import added_option, home, new_app, print_json, say
from queue_runner.cli.run_selection import Selection, with_selection
from queue_runner.cli.typer_options import title

if TYPE_CHECKING:
    from queue_runner.monitor.answers.run_query import Options
    from queue_runner.paths import Layout

app = new_app()

EPILOG = (
    "Reports: mpsq report --list. Formats: table, csv, json, md, and tabulate's own, such as github, html, latex. "
    "Example: mpsq report --vs device=cpu,compile=off --where config=tiny"
)


class ReportRequest(Struct, frozen=True):
    """The report that was requested, for an added option."""

    name: str
    layout: Layout
    options: Options
    format: str
    command_line: str


@app.command("report", epilog=EPILOG)
@partial(with_selection, rows=True)
def report(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME] [ID]...", help="The report (default: the device x compile table), and the jobs it covers."
        ),
    ] = None,
    *,
    selection: Selection,
    peak: Annotated[
        str,
        typer.Option(
            metavar="FROM",
            help="The peak FLOP/s for MFU. sourced: as published; measured: by matmul on this machine.",
        ),
    ] = "sourced",
    same_within: Annotated[
        str | None,
        typer.Option(
            metavar="MARGIN,...",
            help="Call two rows the same if they differ by less than MARGIN: by default 1% of the measured time."
            " loss=0.01 sets the margin of a metric, in its unit.",
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC",
            help="Compare rows by this metric first, such as loss, then by time. Default: what the jobs were"
            " submitted with, else time.",
        ),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Show all tables, training losses and footnotes."),
    ] = False,
    format: Annotated[str, typer.Option(metavar="FORMAT", help="The output format.")] = "table",
    json: Annotated[bool, typer.Option("--json", help="Same as --format json; docs/json.md describes it.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="List the reports.")] = False,
) -> None:
    """Answer a question from the stored runs."""
    from queue_runner import config_file, reports
    from queue_runner.reports._common import printing
    from queue_runner.store.read import reading

    format = "json" if json else tables.check_format(format)
    if list_:
        _list(format == "json")
        return
    layout = home()
    ids = list(words or ())
    name = ids.pop(0) if ids and _is_report(ids[0], layout) else reports.DEFAULT
    reports.load(name)
    options = selection.read(
        ids,
        peak_tflops=config_file.load(layout.config).peak_tflops,
        peak=peak,
        same_within=same_within,
        by=by,
        newest=format not in ("csv", "json"),
    )
    if (write_added := added_option(ctx)) is not None:
        write_added(ReportRequest(name, layout, options, format, title(ctx)))
        return
    with reading(layout.db) as connection:
        result = reports.run(name, connection, options)
    colour = tables.in_colour()
    print(printing.as_text(name, result, format, explain=explain, colour=colour, command=title(ctx)))
    if not result.items and format in ("csv", "json"):
        say("; ".join(result.lines) or "no matching runs")
    if result.exit_code:
        raise typer.Exit(result.exit_code)


def _is_report(word: str, layout: Layout) -> bool:
    """Return whether the first word is that of a report, perhaps a misspelt one, and not one that selects jobs."""
    from queue_runner import reports
    from queue_runner.model import parse_selector
    from queue_runner.store import read

    if word in reports.names() or parse_selector(word).name is None:
        return word in reports.names()
    if not layout.db.exists():
        return True
    with read.reading(layout.db) as connection:
        return not connection.execute("SELECT 1 FROM jobs WHERE name = ? LIMIT 1", [word]).fetchone()


def _list(json: bool) -> None:
    from queue_runner import reports

    helps = reports.helps()
    if json:
        print_json("mpsq.reports/1", reports=[{"name": name, "help": text} for name, text in helps.items()])
        return
    room = tables.WIDTH - max(map(len, helps)) - 2
    print(tables.facts([(name, textwrap.fill(text, room)) for name, text in helps.items()]))
