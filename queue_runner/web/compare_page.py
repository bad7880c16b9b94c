"""The page that compares chosen runs: the page of `mpsq report --html`, with the form that asks for another one."""

from __future__ import annotations

import re
import shlex
import sqlite3
import zlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from queue_runner import config_file
from queue_runner.errors import UsageError
from queue_runner.model import Selector, State, parse_selector
from queue_runner.monitor import explanation, group_summary, queue_state, run_view
from queue_runner.monitor.run_view import RunLine
from queue_runner.paths import Layout
from queue_runner.store import read

if TYPE_CHECKING:
    from starlette.datastructures import QueryParams

DEFAULT = "devices"
MOST_PAGES = 4
"""Number of pages that are kept: those that a person goes back to."""
MOST_RUNNING = 4
"""Number of running runs of a submission that its page explains."""
MOST_WAITING = 1000
"""Length of the queue from which on it does not say why a run waits: that depends on all runs before it."""
STATIC = {
    "uPlot/uPlot.min.css": "text/css",
    "uPlot/uPlot.iife.min.js": "text/javascript",
    "plots.js": "text/javascript",
}
"""The files that its charts need."""


class CompareQuery(Struct, frozen=True):
    """The query in the address, as words of the command line. `chosen` if its jobs were ticked in the history."""

    ids: tuple[str, ...]
    vs: str
    where: tuple[str, ...]
    report: str
    chosen: bool = False

    def command(self) -> list[str]:
        """Return the command line that asks for the same."""
        given = ["mpsq", "report", *([self.report] if self.report != DEFAULT else []), *self.ids]
        given += ["--vs", self.vs] if self.vs else []
        return [*given, *(word for condition in self.where for word in ("--where", condition))]


def read_query(given: QueryParams) -> CompareQuery:
    """Return the query of an address: `id` once for each chosen job, or `ids` as they were typed."""
    typed = re.split(r"[\s,]+", given.get("ids", "").strip())
    ids = dict.fromkeys(word for word in (*given.getlist("id"), *typed) if word)
    where = given.get("where", "").split()
    return CompareQuery(
        tuple(ids), given.get("vs", "").strip(), tuple(where), given.get("report") or DEFAULT, "chosen" in given
    )


def form(query: CompareQuery) -> dict[str, Any]:
    """Return the values of the form that asks for it."""
    from queue_runner import reports

    return {
        "ids": " ".join(query.ids),
        "vs": query.vs,
        "where": " ".join(query.where),
        "report": query.report,
        "reports": reports.names(),
    }


class ReportPages:
    """Makes pages of reports. The newest are kept, compressed, until what they show may have changed."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._made: OrderedDict[object, tuple[object, bytes]] = OrderedDict()

    def of_query(self, query: CompareQuery, patience_s: float) -> str:
        """Return the page that compares runs. Raises: UsageError as the report itself, or if none of the history is
        ticked; MpsqError (store)."""
        if query.chosen and not query.ids:
            raise UsageError("no job is ticked", "tick jobs in the history, then press compare")
        with read.reading(self._layout.db, patience_s=patience_s) as connection:
            version = queue_state.history(connection)
            return self._page(query, connection, version, "web/asked.html.j2", form=form(query))

    def of_group(self, group: int, patience_s: float, forms: Any = None, result: object = None) -> str:
        """Return the page of a submission: how far it is, and its report. `forms` gives the tokens of its buttons, if
        it has any; `result` is that of the last one. Raises: UsageError, MpsqError (store)."""
        from queue_runner import reports

        selector = Selector(f"g{group}", group=group)
        with read.reading(self._layout.db, patience_s=patience_s) as connection:
            runs = list(run_view.each_run(connection, RunLine, "group_id = ?", [group]))
            if not runs:
                raise read.names_nothing(selector)
            explained = [run for run in runs if run.state == State.RUNNING][:MOST_RUNNING]
            n_waiting = read.value(connection, "SELECT count(*) FROM runs WHERE state = 'QUEUED'")
            if not explained and n_waiting < MOST_WAITING:
                condition = "group_id = ? AND state <> 'DONE'"
                explained = [*run_view.each_run(connection, RunLine, condition, [group], run_view.QUEUE_ORDER)][:1]
            selectors = [parse_selector(run.run) for run in explained]
            whys = explanation.explain_all(self._layout, connection, selectors) if selectors else []
            workloads, is_open = group_summary.workloads(connection, group)
            return self._page(
                CompareQuery((selector.text,), "", (), reports.suited(workloads, DEFAULT)),
                connection,
                (group_summary.version(connection, group), [run.ending for run in runs], whys, result),
                "web/group.html.j2",
                forms=forms,
                offered=[f"mpsq resume g{group}"] if forms else [],  # it has a button
                result=result,
                group=group,
                progress=group_summary.progress(connection, [group])[group],
                repeats=group_summary.repeats(connection, group),
                open=is_open,
                whys=whys,
                runs=run_view.last_attempts(run for run in runs if not run.is_preflight),
            )

    def _page(
        self, query: CompareQuery, connection: sqlite3.Connection, version: object, layout_name: str, **values: Any
    ) -> str:
        from queue_runner.pages import report_page  # the statistics are 4 MB: loaded when they are used
        from queue_runner.reports._common.report_options import read_options

        peaks = config_file.load(self._layout.config).peak_tflops
        key = (query, layout_name, values.get("forms") is not None)
        version = (version, peaks, self._layout.db.stat().st_ino)
        known, compressed = self._made.pop(key, (None, b""))
        if known != version:
            options = read_options(
                selectors=query.ids, where=query.where, vs=query.vs or None, peak_tflops=peaks, newest=True
            )
            text = report_page.build(
                query.report,
                self._layout,
                connection,
                options,
                command=shlex.join(query.command()),
                static="/static",
                layout_name=layout_name,
                **values,
            )
            compressed = zlib.compress(text.encode(), 1)
        else:
            text = zlib.decompress(compressed).decode()
        self._made[key] = version, compressed
        if len(self._made) > MOST_PAGES:
            self._made.popitem(last=False)
        return text
