"""mpsq run."""

from __future__ import annotations

import signal
import sys
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from queue_runner.cli.common import Json, hint, new_app, new_home, print_json, queued, remind, say
from queue_runner.cli.typer_options import LikeSubmit, with_options
from queue_runner.errors import UsageError
from queue_runner.model import Selector
from queue_runner.spec import DECIDED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from queue_runner.monitor.awaiting import Awaited
    from queue_runner.monitor.follow import Follower
    from queue_runner.monitor.log_text import Outputs
    from queue_runner.paths import Layout
    from queue_runner.worker.start_worker import WorkerStarter

app = new_app()
_LOG_BYTES = 65_536
"""Bytes at the end of an output in which a number is sought."""

EPILOG = (
    "Without --repeats, two rows or more get rounds until each is decided: at least 3, at most 20, or for --budget. "
    "If no worker runs, mpsq run starts one that exits when the queue is empty. Jobs that were queued earlier run "
    "first. Ctrl-C cancels the jobs and waits for their end; a second Ctrl-C does not wait."
)


@app.command("run", cls=LikeSubmit, epilog=EPILOG)
@with_options
def run(ctx: typer.Context, fields: dict[str, Any], json: Json = False) -> None:
    """Submit jobs, follow their output, and report.

    Exit codes: 0 if all succeeded, 3 if not, 130 after Ctrl-C.
    """
    from queue_runner.monitor.log_text import Outputs
    from queue_runner.worker.start_worker import WorkerStarter

    if fields.get("hold"):
        raise UsageError(
            "run --hold would wait forever", "use mpsq submit --hold to queue it, and mpsq resume ID to release it"
        )
    layout = new_home()
    out = Outputs(sys.stderr if json else sys.stdout, sys.stderr, raw=False)
    starter = WorkerStarter(layout, out.say)  # before Ctrl-C is deferred: its child processes would inherit that
    follower = None
    try:
        from queue_runner.cli.submit import store
        from queue_runner.monitor.forecast import with_short_gate
        from queue_runner.submit import plan as use_case
        from queue_runner.submit.submit_options import Request

        if {"budget_s", "same_within"} & fields.keys():
            fields.setdefault("until", DECIDED)
        planned = use_case.plan(Request(**{**fields, "measures": True}))
        if len(planned.jobs) > 1 and not {"repeats", "until", "find_max", "on"} & fields.keys():
            planned = use_case.until_decided(planned)
        if fields.get("gate_timeout_s") is None:
            planned = with_short_gate(layout, planned)
        remind(planned.warnings, layout, json)
        with _undisturbed():
            stored = store(planned, layout, json)
            runs = [f"{stored.jobs[cell]}.{repeat}" for cell, repeat in planned.order]
            out.say(queued(stored.group, stored.jobs, runs))
            follower = _follower(layout, stored.group, out, starter, several=len(runs) > 1)
        awaited = follower.follow()
    except KeyboardInterrupt:
        if follower is None:
            raise
        awaited = _cancel(layout, stored.group, out, follower)
        if json:
            _print_json(stored.group, awaited)
        raise typer.Exit(130) from None
    except BrokenPipeError:
        out.say(
            f"the output was closed; the jobs continue: mpsq logs -f g{stored.group}, or mpsq cancel g{stored.group}"
        )
        raise
    finally:
        if follower is not None:
            follower.close()
        starter.close()
    if json:
        _print_json(stored.group, awaited)
    else:
        _report(layout, stored.group, awaited)
        if all(job.spec.kind == "command" and not (job.spec.metrics or job.spec.parser) for job in planned.jobs):
            _suggest_metric(layout, awaited)
    awaited.refuse_failures()


def _follower(layout: Layout, group: int, out: Outputs, starter: WorkerStarter, several: bool) -> Follower:
    from queue_runner.monitor import overall
    from queue_runner.monitor.follow import Follower
    from queue_runner.monitor.log_files import opener

    named = Selector(f"g{group}", group=group)
    return Follower(
        layout,
        named,
        opener(out),
        out,
        keep=starter.keep,
        progress=partial(overall.sentence, layout, named) if several else None,
    )


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
    from queue_runner.monitor.run_view import as_json

    print_json("mpsq.run/1", group=group, ok=not awaited.failed, runs=as_json(awaited.runs))


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
    say("")
    print(printing.as_text(name, result, "table", colour=tables.in_colour()))


def _suggest_metric(layout: Layout, awaited: Awaited) -> None:
    """Print the option that compares the rows by a number in the newest log, if it has one."""
    import shlex

    from queue_runner.ingest import log_metrics
    from queue_runner.run_dir import RunDir, read_end

    if awaited.runs and len({run.job_id for run in awaited.runs}) > 1:
        log = read_end(RunDir(layout.run_dir(awaited.runs[-1].run)).stdout, _LOG_BYTES).decode("utf-8", "replace")
        if (suggested := log_metrics.suggest(log)) is not None:
            name, pattern = suggested
            hint(f"the output has numbers: --metric {shlex.quote(f'{name}={pattern}')} compares the rows by {name}")
