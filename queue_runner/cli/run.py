"""mpsq run."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from queue_runner.cli.common import Json, hint, new_app, new_home, print_json, queued, say
from queue_runner.cli.typer_options import LikeSubmit, with_options
from queue_runner.errors import UsageError
from queue_runner.model import Selector
from queue_runner.spec import DECIDED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from queue_runner.monitor.awaiting import Awaited
    from queue_runner.monitor.follow import Follower
    from queue_runner.monitor.log_text import Outputs
    from queue_runner.paths import Layout
    from queue_runner.spec import Until
    from queue_runner.submit.plan import Plan
    from queue_runner.worker.start_worker import WorkerStarter

app = new_app()
_LOG_BYTES = 65_536
"""Bytes at the end of an output in which a number is sought."""

EPILOG = (
    "Without --repeats, two or more jobs run in rounds: each job once, in random order. In all, 3 to "
    "20 rounds run, until each row of the report has a verdict (faster, slower or the same) or the --budget is used up."
    " If no worker runs, mpsq run starts one that exits when the queue is empty. Jobs that were queued earlier run "
    "first. Ctrl-C cancels the jobs of this command and waits for their end; pressed again, it leaves at once."
)


Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print the output of each run, in place of one line for each round.")
]


class OfFollowed(LikeSubmit):
    """The options of a submission that is followed to its end."""

    def lacks(self) -> tuple[str, ...]:
        return *super().lacks(), "--hold"


@app.command("run", cls=OfFollowed, epilog=EPILOG)
@with_options
def run(ctx: typer.Context, fields: dict[str, Any], verbose: Verbose = False, json: Json = False) -> None:
    """Submit jobs, show their progress, and report.

    Several commands, each in quotes, are compared: mpsq run 'sleep 0.2' 'sleep 0.4'.

    Exit codes: 0 if all runs succeeded, 3 if not, 130 after Ctrl-C.
    """
    refuse_hold(fields, "run", "submit")
    follow_to_the_end(new_home(), lambda _: plan_of(fields), verbose=verbose, json=json)


def refuse_hold(fields: Mapping[str, Any], command: str, other: str) -> None:
    """Raise UsageError for a held job in a command that waits for it; the `other` one does not."""
    if fields.get("hold"):
        remedy = f"use mpsq {other} --hold to queue it, and mpsq resume ID to release it"
        raise UsageError(f"{command} --hold would wait forever", remedy)


def plan_of(fields: Mapping[str, Any]) -> Plan:
    """Return the plan of a comparison: two rows or more get rounds until they are decided, unless their number is
    given. Raises: UsageError."""
    from queue_runner.spec import Until
    from queue_runner.submit import plan as use_case
    from queue_runner.submit.submit_options import Request

    goal = {"until": DECIDED} if "budget_s" in fields and "repeats" not in fields else {}
    is_fixed = bool({"repeats", "until", "find_max", "on"} & {*goal, *fields})
    trial = {} if is_fixed else {"preflight": False}  # the first round tries each row
    if commands := fields.get("commands"):
        from queue_runner.submit import from_file

        defaults = {name: value for name, value in fields.items() if name != "commands"}
        planned = from_file.plan_of_commands(commands, {**goal, **defaults})
    else:
        planned = use_case.plan(Request(**{**goal, **trial, **fields, "measures": True}))
    return planned if is_fixed or len(planned.jobs) < 2 else use_case.in_rounds(planned, Until())


Finish = Callable[[int, "Awaited"], None]
"""Called with a submission and its runs once they have ended."""


def follow_to_the_end(
    layout: Layout,
    plan: Callable[[Layout], Plan],
    *,
    verbose: bool,
    json: bool,
    finish: Finish | None = None,
    rounds: int | None = None,
) -> None:
    """Store what `plan` returns, follow it and report, or `finish`. Ctrl-C cancels it, and reports what there is. No
    round follows those of the plan if they are this many `rounds`.

    Raises: WaitedJobFailed when not all runs succeeded.
    """
    from queue_runner.monitor.forecast import with_short_gate
    from queue_runner.monitor.log_text import Outputs
    from queue_runner.worker.start_worker import WorkerStarter

    out = Outputs(sys.stderr if json else sys.stdout, sys.stderr, raw=False)
    starter = WorkerStarter(layout, out.say)  # before Ctrl-C is deferred: its child processes would inherit that
    with ExitStack() as stack:
        stack.callback(starter.close)
        from queue_runner.cli.submit import store

        planned = with_short_gate(layout, plan(layout))
        with _undisturbed():
            stored = store(planned, layout, json)
            out.say(queued(stored.group, stored.jobs, stored.runs))
            several = len(stored.runs) > 1
            follower = _follower(layout, stored.group, planned.until, out, starter, stack, verbose, several, rounds)
        stack.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, _leave))
        try:
            awaited = follower.follow()
        except KeyboardInterrupt:
            awaited = _cancel(layout, stored.group, out, follower)
            stack.close()
            if json and finish is None:
                _print_json(stored.group, awaited)
            elif not json and any(run.succeeded for run in awaited.runs):
                _report(layout, stored.group, awaited)
            raise typer.Exit(130) from None
        except (BrokenPipeError, SystemExit) as error:
            name = f"g{stored.group}"
            why = "ended by SIGTERM" if isinstance(error, SystemExit) else "the output was closed"
            out.say(f"{why}; the jobs continue: mpsq logs -f {name}, or mpsq cancel {name}")
            raise
    if finish is not None:
        finish(stored.group, awaited)
        return
    if json:
        _print_json(stored.group, awaited)
    else:
        _report(layout, stored.group, awaited)
        if all(job.spec.kind == "command" and not (job.spec.metrics or job.spec.parser) for job in planned.jobs):
            _suggest_metric(layout, awaited)
    awaited.refuse_failures()


def follow_again(
    layout: Layout, group: int, until: Until, *, verbose: bool, json: bool, rounds: int | None = None
) -> None:
    """Follow a stored submission with rounds, or so many `rounds`, until it has ended. A worker is started if none
    runs."""
    from queue_runner.monitor.log_text import Outputs
    from queue_runner.worker.start_worker import WorkerStarter

    out = Outputs(sys.stderr if json else sys.stdout, sys.stderr, raw=False)
    starter = WorkerStarter(layout, out.say)
    with ExitStack() as stack:
        stack.callback(starter.close)
        _follower(layout, group, until, out, starter, stack, verbose, True, rounds).follow()


def _follower(
    layout: Layout,
    group: int,
    until: Until | None,
    out: Outputs,
    starter: WorkerStarter,
    stack: ExitStack,
    verbose: bool,
    several: bool,
    rounds: int | None = None,
) -> Follower:
    """Return a follower, which `stack` closes: of the rounds with `until`, and of the output of each run without it or
    if `verbose`."""
    from queue_runner.monitor import progress as progress_of_runs
    from queue_runner.monitor.follow import Follower
    from queue_runner.monitor.log_files import opener

    named = Selector(f"g{group}", group=group)
    open_logs = opener(out, apart=True) if verbose or until is None else None
    if until is not None:
        from queue_runner.monitor.round_table import RoundTable

        table = RoundTable(layout, group, until.limit_s, sys.stderr, rounds=rounds, live=not verbose)

        def step() -> str:
            from queue_runner import reports

            reports.load(reports.DEFAULT)  # not only when somebody waits for it
            return table.step()

        follower = Follower(
            layout, named, open_logs, out.say if verbose else table.say, keep=starter.keep, progress=step
        )
        stack.callback(table.close)
    else:
        progress = partial(progress_of_runs.of_submission, layout, named) if several else None
        follower = Follower(layout, named, open_logs, out.say, keep=starter.keep, progress=progress)
    stack.callback(follower.close)
    return follower


def _leave(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Defer Ctrl-C until it is known what to cancel, and until the cancellation has been requested."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def _cancel(layout: Layout, group: int, out: Outputs, follower: Follower) -> Awaited:
    """Cancel the group and wait for its end. A second Ctrl-C leaves; the cancellation continues."""
    from queue_runner.control import cancellation

    with _undisturbed():
        cancellation.cancel(layout, [Selector(f"g{group}", group=group)], grace_s=None, within_s=0.0)
        out.say(f"\ncancelling g{group}: press Ctrl-C again to leave at once; the cancellation continues")
    return follower.follow()


def _print_json(group: int, awaited: Awaited) -> None:
    print_json("mpsq.run/1", group=group, ok=not awaited.failed, runs=awaited.runs)


def _report(layout: Layout, group: int, awaited: Awaited) -> None:
    """Print the default report if there are iterations or several jobs to compare, else that of times."""
    from queue_runner import config_file, reports, tables
    from queue_runner.monitor.answers.run_query import Options
    from queue_runner.reports._common import printing
    from queue_runner.store.read import reading

    peaks = config_file.load(layout.config).peak_tflops
    options = Options(selectors=[Selector(f"g{group}", group=group)], peak_tflops=peaks)
    several = len({run.job_id for run in awaited.runs}) > 1
    name = reports.DEFAULT if several or any(run.n_iters for run in awaited.runs) else "time"
    name = reports.suited((run.workload for run in awaited.runs), otherwise=name)
    name = "scaling" if any(run.is_probe for run in awaited.runs) else name
    with reading(layout.db) as connection:
        result = reports.run(name, connection, options)
    command = " ".join(["mpsq", "report", *([name] if name != reports.DEFAULT else []), f"g{group}"])
    say("")
    print(printing.as_text(name, result, "table", colour=tables.in_colour(), command=command))


def _suggest_metric(layout: Layout, awaited: Awaited) -> None:
    """Print the option that compares the rows by a number in the newest log, if it has one."""
    import shlex

    from queue_runner.host.run_dir import RunDir, read_end
    from queue_runner.ingest import log_metrics

    if awaited.runs and len({run.job_id for run in awaited.runs}) > 1:
        log = read_end(RunDir(layout.run_dir(awaited.runs[-1].run)).stdout, _LOG_BYTES).decode("utf-8", "replace")
        if (suggested := log_metrics.suggest(log)) is not None:
            name, pattern = suggested
            hint(f"the output has numbers: --metric {shlex.quote(f'{name}={pattern}')} compares the rows by {name}")
