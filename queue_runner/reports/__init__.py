"""Reports, one module or package each; this folder is their registry. They only read the store.

A report has NAME, HELP, SQL (one SELECT over the views; `{chosen}` stands for the condition that selects the runs) and
COLUMNS, and optionally `finish(runs, context) -> Result` to return more than a table. READS names those of the options
--by, --vs, --group-by and --iters that it reads; it refuses the others. Where no runs are selected,
NEWEST is the number of comparisons that it shows, or ONLY is the condition on the runs that it shows, so that it reads
no others.
"""

from __future__ import annotations

import pkgutil
import sqlite3
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from typing import cast

from queue_runner.errors import UsageError
from queue_runner.monitor.answers.run_query import Context, Options
from queue_runner.reports._common.document import Report, Result
from queue_runner.store import questions

DEFAULT = "devices"
COMPARE = "compare"
"""The report of mpsq compare, which alone can ask for it."""
SUITED = {"kernels": "kernels", "matmul": "matmul", "opcheck": "ops", "transfer": "transfer"}
"""The default report of runs of one workload alone, where it is not DEFAULT: mpsq run prints it."""


def names() -> list[str]:
    """Return the names of all reports. `time_.py` is the report `time`: no module shares the name of another."""
    return sorted(_files())


@cache
def _files() -> dict[str, str]:
    """Return the modules by report name as typed: `train_vs_infer` is `train-vs-infer`."""
    modules = [m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")]
    return {name.rstrip("_").replace("_", "-"): name for name in modules}


def helps() -> dict[str, str]:
    """Return a one-sentence description of each report."""
    return {name: load(name).HELP for name in names()}


def load(name: str) -> Report:
    """Return the report with that name. Raises: UsageError when there is none."""
    files = _files() | {COMPARE: "_compare"}
    if name == "throughput":
        raise UsageError("the report throughput was removed", "mpsq report train-vs-infer has its rows")
    if name not in files:
        from queue_runner.errors import did_you_mean

        raise UsageError(f'no report "{name}"', did_you_mean(name, files, f"there are {', '.join(sorted(files))}"))
    return cast(Report, import_module(f"{__name__}.{files[name]}"))


def suited(workloads: Iterable[str | None], otherwise: str) -> str:
    """Return the report that is SUITED to the one workload of the runs, else `otherwise`."""
    distinct = set(workloads)
    return SUITED.get(distinct.pop() or "", otherwise) if len(distinct) == 1 else otherwise


def run(name: str, connection: sqlite3.Connection, options: Options | None = None) -> Result:
    """Build a report from an open connection, as store.read.reading returns it.

    Raises: UsageError for an unknown report, column, setting or value in the options, or an option that the report does
    not read; MpsqError when reading fails.
    """
    options = options or Options()
    report = load(name)
    _refuse_unread(report, options)
    n = getattr(report, "NEWEST", 0)
    for context in contexts(connection, options, n):
        try:
            result = _build(report, context)
        except UsageError:
            if not context.n_older:  # else older runs may have the baseline of --vs
                raise
            continue
        if sum(run >= context.since_run for run in result.newest_runs) >= n:
            break
    return result


def _refuse_unread(report: Report, options: Options) -> None:
    """Refuse an option that the report would ignore."""
    given = {"by": options.aim.by is not None}
    given |= {name: bool(getattr(options, name)) for name in ("vs", "group_by", "iters")}
    for option, is_given in given.items():
        if is_given and option not in _read_by(report):
            others = [name for name in names() if option in _read_by(load(name))]
            text = f"--{option.replace('_', '-')} does not apply to the report {report.NAME}"
            raise UsageError(text, f"it applies to {', '.join(others)}; --where selects runs in any report")


def _read_by(report: Report) -> tuple[str, ...]:
    return getattr(report, "READS", ())


def contexts(connection: sqlite3.Connection, options: Options, n: int) -> Iterator[Context]:
    """Yield what to read: the runs of the `n` newest questions, then of more and more, at last all selected runs; only
    these where `n` is 0, or the options select runs or regroup them."""
    from queue_runner.monitor.answers import select_runs

    selected, values = select_runs.condition(connection, options)
    if n and options.newest and not options.chosen and not options.group_by:
        for newest in questions.newest(connection, n):
            jobs = f"job_id IN ({', '.join(map(str, newest.jobs))})"
            yield Context(options, connection, f"{selected} AND {jobs}", values, newest.n_older, newest.since_run)
    yield Context(options, connection, selected, values)


def query(report: Report, context: Context) -> str:
    """Return the SELECT of what the report shows."""
    only = getattr(report, "ONLY", "")
    if not only or context.options.chosen:
        return report.SQL
    return report.SQL.replace("{chosen}", f"{context.chosen} AND {only.replace('{chosen}', context.chosen)}")


def _build(report: Report, context: Context) -> Result:
    sql = query(report, context)
    finish = getattr(report, "finish", None)
    if finish is not None:
        return cast(Result, finish(context.runs(sql), context))
    from queue_runner.monitor.answers import select_runs

    rows = context.read(sql)
    lines = [] if rows else [select_runs.nothing(context, f"for the report {report.NAME}")]
    return Result(report.COLUMNS, rows, lines=lines)
