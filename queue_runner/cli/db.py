"""mpsq db."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from queue_runner import tables, units
from queue_runner.cli.common import Json, home, new_app, new_home, print_json, say
from queue_runner.errors import DamageError, SchemaError, UsageError
from queue_runner.text import one_line
from queue_runner.units import counted

app = new_app("Query and maintain the database.")

SQL_EPILOG = (
    "The views and their columns: docs/schema.md. "
    'Example: mpsq db sql "SELECT device, count(*) AS runs, avg(median_s) AS s FROM v_run WHERE valid GROUP BY device"'
)


@app.command("sql", epilog=SQL_EPILOG)
def sql(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="One SELECT.")],
    format: Annotated[str, typer.Option(metavar="FORMAT", help="The output format.")] = "table",
    json: Json = False,
    limit: Annotated[int, typer.Option(metavar="ROWS", min=1, help="Show at most this many rows.")] = 10_000,
    timeout: Annotated[str, typer.Option(metavar="DURATION", help="Stop the query after this: 90s, 15m.")] = "10s",
) -> None:
    """Query the database: one SELECT over its views and tables, which cannot change anything."""
    from queue_runner.store import sql as use_case
    from queue_runner.store.read import reading

    format = "json" if json else tables.check_format(format)
    limit_s = units.parse_duration(timeout, "--timeout")
    with reading(home().db) as connection:
        result = use_case.ask(connection, query, limit_s=limit_s, most_rows=limit)
    if format == "json":
        print_json("mpsq.sql/1", columns=result.columns, rows=result.rows, cut=result.cut or None)
    elif result.rows or format == "csv":
        right = {
            name: all(row[name] is None or isinstance(row[name], int | float) for row in result.rows)
            for name in result.columns
        }
        columns = [tables.Column(name, one_line(name), right=right[name]) for name in result.columns]
        print(tables.table(result.rows, columns, format))
    if result.cut:
        say(f"there are more rows: only the first {counted(len(result.rows), 'row')} are shown ({result.cut})")
    if not result.rows:
        say("no rows")


@app.command("path")
def path() -> None:
    """Print the path of the database."""
    print(home().db)


@app.command("upgrade")
def upgrade() -> None:
    """Upgrade the database to the schema of this mpsq, after a backup."""
    from queue_runner.store import migrate
    from queue_runner.store.read import schema_revision

    layout = new_home()
    before = schema_revision(layout.db)
    saved = migrate.upgrade(layout)
    now = schema_revision(layout.db)
    print(
        f"the database is at schema {now}" + (", as it was" if before == now else f" (it was {before or 'not there'})")
    )
    if saved is not None:
        say(f"the old database is kept as {saved}")


@app.command("check")
def check(json: Json = False) -> None:
    """Check the database for damage."""
    from queue_runner.store import backup as use_case
    from queue_runner.store.read import HEAD, no_queue, remedy_of_schema, schema_revision

    layout = home()
    problems = use_case.problems(layout.db)
    revision = None if problems else schema_revision(layout.db)
    if revision is None and not problems:
        raise no_queue(layout.db)
    if json:
        print_json("mpsq.db.check/1", path=str(layout.db), revision=revision, expected=HEAD, problems=problems)
    else:
        print(f"{layout.db}: " + (counted(len(problems), "problem") if problems else f"schema {revision}, sound"))
        for problem in problems:
            print(f"  {problem}")
    if problems:
        raise DamageError("the database is damaged", use_case.remedy(layout))
    if revision != HEAD:
        message = f"the database is at schema {revision}, this mpsq needs {HEAD}"
        raise SchemaError(message, remedy_of_schema(revision))


@app.command("backup")
def backup() -> None:
    """Copy the database to the backups folder, even while it is in use, and check the copy."""
    from queue_runner.store import backup as use_case

    print(use_case.make(home()))


@app.command("restore")
def restore(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Default: the newest that this mpsq can read.")
    ] = None,
    new: Annotated[
        bool, typer.Option("--new", help="Begin a new, empty queue; its ids continue after those of the old one.")
    ] = False,
) -> None:
    """Replace the database by a backup; the old database is kept.

    No worker may run. If jobs wait in the backup, the queue is paused: jobs that have run since would run again.
    """
    from queue_runner.store import restore as use_case

    if new and file is not None:
        raise UsageError("restore takes a file or --new, not both", "--new needs no backup")
    done = use_case.begin_anew(new_home()) if new else use_case.restore(new_home(), file)
    print(f"restored {done.source}; start the worker again" if done.source else "the queue is new and empty")
    if done.old is not None:
        say(f"the old database is kept as {done.old}")
    if done.set_aside is not None:
        say(f"{'runs that are not in the backup' if done.source else 'the old runs'} were moved to {done.set_aside}")
    if done.paused:
        say("the queue is paused: its jobs may have run since the backup. mpsq status shows them, mpsq resume resumes")
