"""mpsq report."""

from __future__ import annotations

from typing import Annotated

import typer

from queue_runner.cli.common import home, new_app, say

app = new_app()

EPILOG = (
    "Reports: mpsq report --list. Formats: table, csv, json, md, and tabulate's own, such as github, html, latex. "
    "Example: mpsq report --vs device=cpu,compile=off --where config=tiny"
)


@app.command("report", epilog=EPILOG)
def report(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME] [ID]...", help="The report; the device x compile table when not given. Of these only."
        ),
    ] = None,
    vs: Annotated[
        str | None, typer.Option(metavar="KEY=VALUE,...", help="The baseline: device=cpu,compile=off.")
    ] = None,
    where: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE,...", help="Only runs like this; values are alternatives.")
    ] = None,
    group: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Only this group: g4 or @last. Repeatable.")
    ] = None,
    group_by: Annotated[str | None, typer.Option(metavar="KEY,...", help="What makes a row.")] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="Only runs since then: 2h, 3d, 2026-11-20.")] = None,
    iters: Annotated[str | None, typer.Option(metavar="A:B", help="Only iterations A to B, both included.")] = None,
    all: Annotated[bool, typer.Option("--all", help="Count invalid runs in.")] = False,
    format: Annotated[str, typer.Option(help="How it is printed.")] = "table",
    json: Annotated[bool, typer.Option("--json", help="As --format json; docs/json.md describes it.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="List the reports there are.")] = False,
) -> None:
    """Answer a question from the runs that are stored."""
    from queue_runner import config, printing, render, reports
    from queue_runner.reports._options import read_options
    from queue_runner.store.read import reading

    format = "json" if json else render.check_format(format)
    if list_:
        _list(format)
        return
    layout = home()
    ids = list(words or ())
    name = ids.pop(0) if ids and not _is_id(ids[0]) else reports.DEFAULT
    groups = [f"g{text}" if text.isdecimal() else text for text in group or ()]
    reports.load(name)
    options = read_options(
        selectors=[*ids, *groups],
        where=where or (),
        since=since,
        vs=vs,
        group_by=group_by,
        iters=iters,
        include_invalid=all,
        peak_tflops=config.load(layout.config).peak_tflops,
    )
    with reading(layout.db) as connection:
        result = reports.run(name, connection, options)
    print(printing.as_text(name, result, format))
    if not result.rows and format in ("csv", "json"):
        say("no run fits")


def _is_id(word: str) -> bool:
    return word.startswith("@") or word[-1:].isdigit()


def _list(format: str) -> None:
    from queue_runner import render, reports

    rows = [{"name": name, "help": text} for name, text in reports.helps().items()]
    if format == "json":
        print(render.envelope("mpsq.reports/1", reports=rows))
    elif format == "table":
        import textwrap

        room = render.WIDTH - max(len(row["name"]) for row in rows) - 2
        print(render.facts([(row["name"], textwrap.fill(row["help"], room)) for row in rows]))
    else:
        print(render.table(rows, [render.Column("name", "report"), render.Column("help", "shows")], format))
