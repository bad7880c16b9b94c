"""mpsq gc."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from queue_runner import tables, units
from queue_runner.cli.common import Json, Yes, confirmed, hint, home, new_app, print_json, say
from queue_runner.errors import MpsqError

if TYPE_CHECKING:
    from queue_runner.control.garbage import Item

app = new_app()


@app.command("gc")
def gc(
    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RULE",
            help="Keep files of jobs matching 30d, last:20 or 5GB (the newest that fit). Repeatable; any match counts.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be removed, and remove nothing.")] = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Remove files that are no longer needed.

    Always removed: files of deleted jobs, folders and snapshots that nothing refers to, compiler caches of deleted
    jobs, backups beyond keep_backups. With --keep also logs, checkpoints and working copies of other ended jobs. Never
    removed: results, and files of a job that waits or runs.
    """
    from queue_runner import config_file
    from queue_runner.control import garbage
    from queue_runner.control.retention import parse
    from queue_runner.host import reserve

    rules = parse(keep or ())
    layout = home()
    settings = config_file.load(layout.config)
    if not dry_run:
        reserve.release(layout)  # before the first look, which on some disks needs space too
    items = garbage.find(layout, rules, keep_backups=settings.keep_backups, now=time.time())
    stuck: list[str] = []
    if items and not dry_run:
        freed = units.size(sum(item.size_bytes for item in items))
        if not confirmed(f"remove {units.counted(len(items), 'item')} for good, {freed} (--dry-run lists them)?", yes):
            say("nothing was removed")
            raise typer.Exit(1)
    removed = items if dry_run else garbage.collect(layout, items, stuck.append)
    total = sum(item.size_bytes for item in removed)
    if json:
        shown = [{"kind": i.kind, "name": i.name, "reason": i.reason, "size_bytes": i.size_bytes} for i in removed]
        print_json("mpsq.gc/1", dry_run=dry_run, items=shown, size_bytes=total, stuck=stuck)
    else:
        if removed:
            print(_table(removed, whole=dry_run))
        print(f"{units.size(total)} {'would be freed' if dry_run else 'freed'}")
        if rules.keeps_all:
            say("the files of ended jobs were kept: --keep 30d, last:20 or 5GB removes older ones")
        elif dry_run and removed:
            hint("nothing was removed: leave out --dry-run to remove these files")
    if stuck:
        raise MpsqError("\n".join(["some files could not be removed:", *stuck]), "fix that, then run mpsq gc again")


_SHOWN = 20


def _table(items: Sequence[Item], *, whole: bool) -> str:
    columns = [
        tables.Column("kind", "what"),
        tables.Column("name", "name", flexible=True),
        tables.Column("reason", "why", flexible=True),
        tables.Column("size_bytes", "size", words=units.size, right=True),
    ]
    shown = items if whole else sorted(items, key=lambda item: -item.size_bytes)[:_SHOWN]
    text = tables.table(shown, columns)
    return text if len(shown) == len(items) else f"{text}\n... and {units.count(len(items) - len(shown))} smaller ones"
