"""mpsq sql."""

from __future__ import annotations

from typing import Annotated

import typer

from queue_runner import tables, units
from queue_runner.cli.common import Json, home, new_app, print_json, say
from queue_runner.text import one_line

app = new_app()

EPILOG = (
    "The views and their columns: docs/schema.md. "
    'Example: mpsq sql "SELECT device, count(*) AS runs, avg(median_s) AS s FROM v_run WHERE valid GROUP BY device"'
)


@app.command("sql", epilog=EPILOG)
def sql(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="One SELECT.")],
    format: Annotated[str, typer.Option(help="The output format.")] = "table",
    json: Json = False,
    limit: Annotated[int, typer.Option(metavar="ROWS", min=1, help="Show at most this many rows.")] = 10_000,
    timeout: Annotated[str, typer.Option(metavar="TIME", help="Stop the query after this: 90s, 15m.")] = "10s",
) -> None:
    """Ask the database: one SELECT over its views and tables, which cannot change anything."""
    from queue_runner.store import sql as asking
    from queue_runner.store.read import reading

    format = "json" if json else tables.check_format(format)
    limit_s = units.parse_duration(timeout, "--timeout")
    with reading(home().db) as connection:
        answer = asking.ask(connection, query, limit_s=limit_s, most_rows=limit)
    if format == "json":
        print_json("mpsq.sql/1", columns=answer.columns, rows=answer.rows, cut=answer.cut or None)
    elif answer.rows or format == "csv":
        right = {
            name: all(row[name] is None or isinstance(row[name], int | float) for row in answer.rows)
            for name in answer.columns
        }
        print(
            tables.table(answer.rows, [tables.Column(n, one_line(n), right=right[n]) for n in answer.columns], format)
        )
    if answer.cut:
        say(f"there are more rows: only the first {units.counted(len(answer.rows), 'row')} are shown ({answer.cut})")
    if not answer.rows:
        say("no rows")
