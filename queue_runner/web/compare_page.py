"""The page that compares chosen runs: the page of `mpsq report --html`, with the form that asks for another one."""

from __future__ import annotations

import re
import shlex
import sqlite3
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from queue_runner import config_file
from queue_runner.model import Selector, State
from queue_runner.paths import Layout
from queue_runner.store import read

if TYPE_CHECKING:
    from starlette.datastructures import QueryParams

DEFAULT = "devices"
STATIC = {
    "uPlot/uPlot.min.css": "text/css",
    "uPlot/uPlot.iife.min.js": "text/javascript",
    "plots.js": "text/javascript",
}
"""The files that its charts need."""


@dataclass(frozen=True)
class CompareQuery:
    """The query in the address, as words of the command line."""

    ids: tuple[str, ...]
    vs: str
    where: tuple[str, ...]
    report: str

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
    return CompareQuery(tuple(ids), given.get("vs", "").strip(), tuple(where), given.get("report") or DEFAULT)


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


def page(layout: Layout, query: CompareQuery, patience_s: float) -> str:
    """Return the page. Raises: UsageError as the report itself, MpsqError (store)."""
    with read.reading(layout.db, patience_s=patience_s) as connection:
        return _report(layout, query, connection, "web/asked.html.j2", form=form(query))


def of_group(layout: Layout, group: int, patience_s: float) -> str:
    """Return the page of a submission: how far it is, and its report. Raises: UsageError, MpsqError (store)."""
    from queue_runner import reports
    from queue_runner.monitor import group_summary, run_view

    selector = Selector(f"g{group}", group=group)
    with read.reading(layout.db, patience_s=patience_s) as connection:
        runs = run_view.select(connection, [selector])
        if not runs:
            raise read.names_nothing(selector)
        suited = reports.suited((run.workload for run in runs), DEFAULT)
        return _report(
            layout,
            CompareQuery((selector.text,), "", (), suited),
            connection,
            "web/group.html.j2",
            group=group,
            progress=group_summary.progress(connection, [group])[group],
            open=any(run.state != State.DONE for run in runs),
            runs=[run for run in runs if not run.is_preflight],
        )


def _report(
    layout: Layout, query: CompareQuery, connection: sqlite3.Connection, layout_name: str, **values: Any
) -> str:
    from queue_runner.pages import report_page  # the statistics are 4 MB: loaded when they are used
    from queue_runner.reports._common.report_options import read_options

    options = read_options(
        selectors=query.ids,
        where=query.where,
        vs=query.vs or None,
        peak_tflops=config_file.load(layout.config).peak_tflops,
        newest=True,
    )
    return report_page.build(
        query.report,
        layout,
        connection,
        options,
        command=shlex.join(query.command()),
        static="/static",
        layout_name=layout_name,
        **values,
    )
