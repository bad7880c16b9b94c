"""Import of what another tool saw of the machine: its samples become those of the runs that were going on then."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import func, select

from queue_runner import times, units
from queue_runner.control.import_log import MAX_LOG_BYTES, Imported
from queue_runner.errors import MpsqError, UsageError
from queue_runner.ingest import timelines
from queue_runner.model import RunId, parse_selector
from queue_runner.paths import Layout
from queue_runner.run_dir import read_regular
from queue_runner.store import migrate, resolve, results, schema
from queue_runner.store.engine import Connection, open_engine, writing


def import_timelines(layout: Layout, files: Sequence[Path], tool: str, run: str | None) -> list[Imported]:
    """Add each file's samples to the runs that they overlap in time, or only to `run`; all of them or nothing.

    A run that was imported itself has no time of its own: named, it gets every sample.
    Raises: UsageError (no such file, tool or run, nothing of the tool in it), MpsqError (no overlap; already imported).
    """
    read = [(path, timelines.read(tool, _data(path))) for path in files]
    migrate.ensure(layout)
    found: list[Imported] = []
    with writing(open_engine(layout.db, check=False)) as connection:
        for path, samples in read:
            found += _attach(connection, path, tool, samples, run)
    return found


def _data(path: Path) -> bytes:
    try:
        data = read_regular(path.resolve(), MAX_LOG_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "name the file that the tool wrote") from error
    if len(data) > MAX_LOG_BYTES:
        raise UsageError(f"{path} is larger than {units.size(MAX_LOG_BYTES)}", "import the part that is of the run")
    return data


def _attach(
    connection: Connection, path: Path, tool: str, samples: Sequence[timelines.Sample], run: str | None
) -> list[Imported]:
    first, last = samples[0][0], samples[-1][0]
    if run is not None:
        run_ids = [row["id"] for row in resolve.runs_of(connection, [parse_selector(run)])]
    else:
        run_ids = _overlapping(connection, first, last)
    found = []
    for run_id in run_ids:
        row = connection.execute(select(schema.runs).where(schema.runs.c.id == run_id)).one()
        begin, end = row.started_at, row.ended_at
        inside = [one for one in samples if begin is None or (begin <= one[0] and (end is None or one[0] <= end))]
        before = _count(connection, run_id)
        for at, values in inside:
            results.save_condition(connection, run_id, at, values)
        name = str(RunId(row.job_id, row.number))
        if new := _count(connection, run_id) - before:
            found.append(Imported(name, str(path), tool, 0, None, samples=new))
        elif inside:
            raise MpsqError(f"{path.name} has already been imported into run {name}", f"mpsq show {name} shows it")
    if not found:
        which = f"run {run} was not" if run else "no run was"
        raise MpsqError(
            f"{which} going on while {path.name} was written ({times.clock(first)} to {times.clock(last)})",
            "mpsq list --all shows when runs went on; --run 12.3 names an imported one, which has no times of its own",
        )
    return found


def _overlapping(connection: Connection, first: float, last: float) -> list[int]:
    runs = schema.runs.c
    query = select(runs.id).where(runs.started_at <= last, func.coalesce(runs.ended_at, last) >= first)
    return [*connection.execute(query.order_by(runs.id)).scalars()]


def _count(connection: Connection, run_id: int) -> int:
    query = select(func.count()).where(schema.conditions.c.run_id == run_id)
    return int(connection.execute(query).scalar_one())
