"""The tools of `mpsq mcp`, one function each. Their docstrings and types are what the other program reads."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from queue_runner import __version__, config_file, paths, reports
from queue_runner.client import Client
from queue_runner.errors import MpsqError, UsageError
from queue_runner.host.home import ensure_home
from queue_runner.model import parse_selector
from queue_runner.monitor import log_files, run_view
from queue_runner.monitor.log_text import Outputs
from queue_runner.reports._common.report_options import read_options
from queue_runner.store import read
from queue_runner.submit import given_options, plan

P = ParamSpec("P")
T = TypeVar("T")
MOST_LINES = 1_000
"""Lines of a log that one call returns."""


@dataclass(frozen=True)
class QueuedGroup:
    """A submission: its name, such as g4, and the ids of its jobs."""

    group: str
    jobs: list[int]


@dataclass(frozen=True)
class RunState:
    """A run: its id, name and state (HELD, QUEUED, RUNNING, DONE); `outcome` once it is DONE. Its time is the median of
    an iteration."""

    run: str
    name: str
    state: str
    outcome: str | None
    reason: str | None
    median_s: float | None


@dataclass(frozen=True)
class QueueNow:
    """The queue: whether a worker is there to start runs, how many wait, and the runs."""

    worker: bool
    paused: bool
    n_waiting: int
    runs: list[RunState]


@dataclass(frozen=True)
class CandidateAnswer:
    """The answer on a candidate so far: keep, discard or undecided; `is_final` when no round follows."""

    group: str
    answer: str
    is_final: bool
    rounds: int
    reasons: list[str]


@dataclass(frozen=True)
class ReportAnswer:
    """A report: its sentences, and its rows in SI units as docs/json.md describes them."""

    report: str
    sentences: list[str]
    rows: list[dict[str, Any]]


@dataclass(frozen=True)
class LogEnd:
    """The last lines of a run's output."""

    run: str
    text: str


def submit(
    workload: str | None = None, command: list[str] | None = None, options: dict[str, Any] | None = None
) -> QueuedGroup:
    """Queue a workload, or a command given as a list of words, and return at once.

    `options` are those of `mpsq submit` by name: {"device": ["cpu", "mps"], "repeats": 4, "set": {"max_iters": 200}}.
    """
    group = Client().submit(workload, command=command or (), **(options or {}))
    return QueuedGroup(str(group), list(group.jobs))


def status(ids: list[str] | None = None) -> QueueNow:
    """Say what runs and waits. With `ids` (g4, 12, 12.3, @last), the runs of these instead, ended ones included."""
    now = Client().status()
    with read.reading(paths.layout().db) as connection:
        selected = run_view.select(connection, [parse_selector(id) for id in ids or ()])
        chosen = selected or [run for run in run_view.queue(connection) if not run.is_unstored]
    runs = [RunState(run.run, run.name, run.state, run.outcome, run.reason, run.median_s) for run in chosen]
    return QueueNow(now.queue.worker, bool(now.queue.paused_at), now.waiting_runs, runs)


def judge(
    champion: str,
    candidate: str,
    command: list[str],
    cwd: str,
    options: dict[str, Any] | None = None,
    higher: bool = False,
) -> QueuedGroup:
    """Judge a change, while a worker runs: the command runs in both versions, in rounds. `judgement` has the answer.

    A version is a commit, a folder, or "." for the folder `cwd` as it is. `options` are those of `mpsq submit` by name:
    {"metric": {"loss": "loss ([0-9.]+)"}, "budget": "30m"}. Without a metric the candidate is kept if it is faster.
    With one, lower values are better, or with `higher` higher ones.
    """
    from queue_runner.referee import request

    layout = ensure_home(paths.layout().home)
    given = given_options.read({**(options or {}), "command": command, "cwd": cwd}, whole=True)
    fields = {name: value for name, value in given.items() if value is not None}
    fields |= {"title": "mpsq mcp: judge", "home": str(layout.home)}
    stored = plan.store(layout, request.plan(layout, champion, candidate, request.JudgeOptions(higher=higher), fields))
    return QueuedGroup(f"g{stored.group}", list(stored.jobs))


def judgement(group: str) -> CandidateAnswer:
    """Say whether the candidate of a submission by `judge` is kept: keep, discard or undecided."""
    from queue_runner.referee import answer

    layout = paths.layout()
    id = answer.group_named(layout, group)
    with read.reading(layout.db) as connection:  # before its rounds, of which the last may end meanwhile
        (closed_at,) = read.tuples(connection, "SELECT closed_at FROM groups WHERE id = ?", [id]).fetchone()
    judged = answer.of_group(layout, id)
    reasons = list(judged.ruling.reasons)
    return CandidateAnswer(f"g{id}", str(judged.ruling.choice), closed_at is not None, judged.rounds, reasons)


def report(
    name: str = reports.DEFAULT, ids: list[str] | None = None, where: dict[str, str] | None = None
) -> ReportAnswer:
    """Answer a question from the stored runs. `ids` and `where` ({"device": "mps"}) select runs.

    `devices` compares rows, `trend` shows steps over weeks; `mpsq report --list` names all.
    """
    conditions = [f"{key}={value}" for key, value in (where or {}).items()]
    layout = paths.layout()
    peaks = config_file.load(layout.config).peak_tflops
    options = read_options(selectors=ids or (), where=conditions, newest=True, peak_tflops=peaks)
    with read.reading(layout.db) as connection:
        result = reports.run(name, connection, options)
    return ReportAnswer(name, [*map(str, result.lines), *map(str, result.notes)], result.rows)


def logs(id: str = "@last", lines: int = 50) -> LogEnd:
    """Return the last lines of the output of a run: the running one of `id`, else the newest."""
    if not 0 < lines <= MOST_LINES:
        raise UsageError(f"lines cannot be {lines}", f"use 1 to {MOST_LINES}")
    layout = paths.layout()
    with read.reading(layout.db) as connection:
        run = log_files.choose(run_view.select(connection, [parse_selector(id)]))
    out = io.StringIO()
    log = log_files.opener(Outputs(out, out, raw=False))(log_files.folder_of(layout, run), lines)
    log.copy()
    log.end()
    return LogEnd(run.run, out.getvalue())


TOOLS: tuple[Callable[..., Any], ...] = (submit, status, judge, judgement, report, logs)


def make_server() -> MCPServer[Any]:
    """Return the server with its tools, which starts nothing by itself."""
    server: MCPServer[Any] = MCPServer("mpsq", version=__version__, log_level="WARNING")
    for tool in TOOLS:
        server.add_tool(_in_sentences(tool))
    return server


def _in_sentences(tool: Callable[P, T]) -> Callable[P, T]:
    """Return the tool with each error of mpsq as the error of a tool: its sentence and its remedy."""

    @functools.wraps(tool)
    def call(*args: P.args, **named: P.kwargs) -> T:
        try:
            return tool(*args, **named)
        except MpsqError as error:
            raise ToolError(error.with_remedy) from error

    return call
