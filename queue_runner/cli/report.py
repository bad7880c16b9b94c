"""mpsq report."""

from __future__ import annotations

import textwrap
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct

from queue_runner import tables
from queue_runner.cli.common import added_option, home, new_app, print_json, remark, say
from queue_runner.cli.run_selection import Selection, with_selection
from queue_runner.cli.typer_options import title
from queue_runner.errors import UsageError

if TYPE_CHECKING:
    from queue_runner.monitor.answers.run_query import Options
    from queue_runner.paths import Layout
    from queue_runner.reports._common.document import Result

app = new_app()

EPILOG = (
    "Reports: mpsq report --list. Formats: table, csv, json, md, and tabulate's own, such as github, html, latex. "
    "Example: mpsq report --vs device=cpu,compile=off --where config=tiny"
)


class ReportRequest(Struct, frozen=True):
    """The report that was requested, for an added option: its name, its options, and whether --submit was given."""

    name: str
    layout: Layout
    options: Options
    format: str
    submit: bool
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
            help="The peak FLOP/s for MFU. sourced: as published; measured: as matmul measured it here.",
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
            help="Answer first on this metric, such as loss, then on time. Default: what the jobs were"
            " submitted with, else time.",
        ),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show everything behind the answer: costs, losses, footnotes.")
    ] = False,
    format: Annotated[str, typer.Option(metavar="FORMAT", help="The output format.")] = "table",
    json: Annotated[bool, typer.Option("--json", help="Same as --format json; docs/json.md describes it.")] = False,
    submit: Annotated[
        bool, typer.Option("--submit", help="For `mpsq report missing`: queue the runs that it lists.")
    ] = False,
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
    if submit and name != "missing":
        raise UsageError(f"--submit does not apply to the report {name}", "mpsq report missing g4 --submit")
    options = selection.read(
        ids,
        peak_tflops=config_file.load(layout.config).peak_tflops,
        peak=peak,
        same_within=same_within,
        by=by,
        newest=format not in ("csv", "json"),
    )
    if (write_added := added_option(ctx)) is not None:
        write_added(ReportRequest(name, layout, options, format, submit, title(ctx)))
        return
    with reading(layout.db) as connection:
        result = reports.run(name, connection, options)
    if submit and any(gap.missing for gap in result.items):
        _submit_missing(title(ctx), result, layout, format)
        return
    colour = tables.in_colour()
    print(printing.as_text(name, result, format, explain=explain, colour=colour, command=title(ctx)))
    if submit:
        say("nothing was queued")
    if not result.items and format in ("csv", "json"):
        say("; ".join(result.lines) or "no matching runs")
    if result.exit_code:
        raise typer.Exit(result.exit_code)


def _submit_missing(line: str, result: Result, layout: Layout, format: str) -> None:
    """Queue the missing runs that the report found. With --json, print the same object as submit."""
    from queue_runner.cli.submit import print_stored, store
    from queue_runner.control import resubmission
    from queue_runner.reports._common import printing

    if format != "json":
        print(printing.as_text("missing", result, format) + "\n")
    missing = {gap.jobs[-1]: gap.missing for gap in result.items if gap.missing}
    planned = resubmission.missing(layout, missing, line)
    stored = store(planned, layout, format == "json")
    print_stored(planned, stored, layout, format == "json")
    if resubmission.code_changed(layout, [*missing], stored.jobs):
        remark("the code has changed: reports show old and new runs in separate rows")


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
