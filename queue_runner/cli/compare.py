"""mpsq compare."""

from __future__ import annotations

from typing import Annotated

import typer

from queue_runner import tables
from queue_runner.cli.common import added_option, home, new_app
from queue_runner.cli.typer_options import title

app = new_app()

EPILOG = "Examples: mpsq compare 12 14, mpsq compare g4 g5, mpsq compare lr=1e-3 lr=1e-4."


@app.command("compare", epilog=EPILOG)
def compare(
    ctx: typer.Context,
    first: Annotated[str, typer.Argument(metavar="A", help="Job 12, run 12.3, group g4, @last, a name or KEY=VALUE.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Another one. A is the baseline.")],
    same_within: Annotated[
        str | None, typer.Option(metavar="MARGIN,...", help="As in mpsq report: 1%, loss=0.01.")
    ] = None,
    format: Annotated[str, typer.Option(metavar="FORMAT", help="The output format, such as md.")] = "table",
    json: Annotated[bool, typer.Option("--json", help="Same as --format json; docs/json.md describes it.")] = False,
) -> None:
    """Show two jobs, runs or groups side by side: the differences, the results, and which is faster."""
    from queue_runner import config_file, reports
    from queue_runner.cli.report import ReportRequest
    from queue_runner.reports._common import printing
    from queue_runner.reports._common.report_options import read_options, read_side
    from queue_runner.store.read import reading

    format = "json" if json else tables.check_format(format)
    layout = home()
    options = read_options(
        sides=[read_side(first), read_side(second)],
        peak_tflops=config_file.load(layout.config).peak_tflops,
        same_within=same_within,
    )
    if (write_added := added_option(ctx)) is not None:
        write_added(ReportRequest(reports.COMPARE, layout, options, format, title(ctx)))
        return
    with reading(layout.db) as connection:
        result = reports.run(reports.COMPARE, connection, options)
    print(printing.as_text(reports.COMPARE, result, format, explain=True, colour=tables.in_colour()))
