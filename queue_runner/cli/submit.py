"""mpsq submit."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import asdict

from queue_runner import paths
from queue_runner.cli.common import (
    DryRun,
    Json,
    hint,
    home,
    new_app,
    new_home,
    print_json,
    queued,
    remark,
    remind,
    say,
    say_obstacles,
)
from queue_runner.cli.typer_options import WithCommand, with_options
from queue_runner.host import wakeup

if TYPE_CHECKING:
    from queue_runner.paths import Layout
    from queue_runner.submit.plan import Plan, Submitted

app = new_app()

EPILOG = (
    "A list is swept: each combination of the values is a job, so --device cpu,mps --compile both --set lr=1e-3,1e-4 "
    "makes 8 jobs. A command goes after --, as in: mpsq submit --parser nanogpt -- python train.py --device={device}. "
    "In the command, mpsq replaces {device}, or the {key} of a --set, with its value in the job, and {cwd} with the "
    "job's folder; write {{key}} for the literal text {key}. Without any of --device, --compile, --dtype, --config and "
    "--set, only {cwd} is replaced. "
    'A line of --from: {"workload": "nanogpt", "device": ["cpu", "mps"], "set": {"lr": 0.001}, "name": "a", '
    '"after": "b"}; options beside --from apply to lines that do not set them.'
)


@app.command("submit", cls=WithCommand, epilog=EPILOG)
@with_options
def submit(
    ctx: typer.Context,
    fields: dict[str, Any],
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Read many jobs: one JSON object per line, with these options as keys; - is stdin.",
        ),
    ] = None,
    dry_run: DryRun = False,
    json: Json = False,
    schedule: Annotated[int | None, typer.Option(hidden=True, help="The schedule whose command line this is.")] = None,
) -> None:
    """Queue a workload or a command, once for each combination of settings."""
    if not dry_run:
        wakeup.ring(paths.layout().fifo, wakeup.SOON)
    planned = _plan(fields, from_)
    if dry_run:
        remark(*planned.warnings)
        print_plan(planned, home(), json)
    else:
        layout = new_home()
        print_stored(planned, store(planned, layout, json, schedule), layout, json)


def _plan(fields: dict[str, Any], path: str | None) -> Plan:
    if path is None:
        from queue_runner.submit import plan as use_case
        from queue_runner.submit.submit_options import Request

        return use_case.plan(Request(**fields))

    from queue_runner.submit import from_file

    if path == "-" and sys.stdin.isatty():
        hint("one JSON object a line; Ctrl-D ends")
    return from_file.plan(path, fields)


def store(planned: Plan, layout: Layout, json: bool = False, schedule: int | None = None) -> Submitted:
    """Store a plan in the queue of this machine, and print the notes on it; `schedule` is the id of the schedule that
    is due."""
    from queue_runner.host import locks
    from queue_runner.submit import plan as use_case

    locks.worker(layout.home)  # report unusable locks before anything is stored
    due = None
    if schedule is not None:
        from queue_runner.submit import timetable

        due = timetable.due_time(layout, schedule)
    stored = use_case.store(layout, planned, due)
    remind([*stored.notes, *planned.warnings], layout, json)  # those on the code are more general
    return stored


def print_stored(planned: Plan, stored: Submitted, layout: Layout, json: bool) -> None:
    """Print the new jobs, and why they do not start if they do not."""
    held = all(job.terms.hold for job in planned.jobs)
    if json:
        print_json("mpsq.submit/1", group=stored.group, jobs=stored.jobs, runs=stored.runs, seed=planned.seed)
    else:
        print(queued(stored.group, stored.jobs, stored.runs, held=held))
    if say_obstacles(layout) and not held:
        hint("mpsq status shows the queue; mpsq wait @last waits until these jobs have ended")


def print_plan(planned: Plan, layout: Layout, json: bool) -> None:
    """Print what would be stored."""
    from queue_runner.host import redact
    from queue_runner.monitor.run_view import JobQuestion
    from queue_runner.workloads import command_line

    lines = [redact.redact(command_line.build_argv(job.spec, layout.snapshots)) for job in planned.jobs]
    if json:
        cells = [
            {k: v for k, v in asdict(job.spec).items() if k in _CELL}
            | {"compile_mode": job.spec.compile_mode or None, "sets": dict(job.spec.params), "argv": line}
            for job, line in zip(planned.jobs, lines, strict=True)
        ]
        order = [{"cell": cell, "repeat": repeat} for cell, repeat in planned.order]
        print_json("mpsq.plan/1", seed=planned.seed, cells=cells, order=order)
        return
    for number, (job, line) in enumerate(zip(planned.jobs, lines, strict=True), start=1):
        question = str(JobQuestion.of_spec(job.spec))
        print(f"row {number}: {job.spec.name}: {question}" if question else f"row {number}: {job.spec.name}")
        print(f"    {shlex.join(line)}")
    print(f"order of the runs (row.round; seed {planned.seed}):")
    print("    " + " ".join(f"{cell + 1}.{repeat}" for cell, repeat in planned.order))
    say("nothing was stored")


_CELL = (
    "kind",
    "name",
    "workload",
    "framework",
    "device",
    "compile",
    "gpus",
    "dtype",
    "config",
    "seed",
    "cwd",
    "python",
    "env_name",
    "mps",
    "timeout_s",
)
