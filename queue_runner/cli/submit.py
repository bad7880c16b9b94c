"""mpsq submit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from queue_runner.cli.common import Json, hint, home, new_app, print_json, say

if TYPE_CHECKING:
    from queue_runner.cells import Request
    from queue_runner.submit import Plan

app = new_app()

EPILOG = (
    "Lists are swept: --device cpu,mps --compile both --set lr=1e-3,1e-4 is a grid of 8 jobs. "
    "A command goes after --: mpsq submit --parser nanogpt -- python train.py --device=mps; "
    "{device} or {key} in it stands for the value of that cell."
)


class WithCommand(TyperCommand):
    """What follows `--` is the job's own command line and never ours to read."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            args, ctx.meta["command"] = args[:at], tuple(args[at + 1 :])
        rest: list[str] = super().parse_args(ctx, args)
        return rest

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["[OPTIONS]", "[WORKLOAD | -- COMMAND ...]"]


@app.command("submit", cls=WithCommand, epilog=EPILOG)
def submit(
    ctx: typer.Context,
    workload: Annotated[
        list[str] | None, typer.Argument(metavar="[WORKLOAD]", help="A name of mpsq workloads, or a command after --.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="LIST", help="cpu, mps, cuda, cuda:1 or auto; a list is swept.")
    ] = None,
    compile: Annotated[
        str | None, typer.Option(metavar="MODE", help="off, on or both (False and True are understood).")
    ] = None,
    config: Annotated[str | None, typer.Option(metavar="LIST", help="The workload's preset; a list is swept.")] = None,
    dtype: Annotated[str | None, typer.Option(metavar="LIST", help="fp32, bf16 or fp16; a list is swept.")] = None,
    framework: Annotated[
        str | None, typer.Option(metavar="LIST", help="Where a workload has several; a list is swept.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting; VALUE,VALUE is swept. Repeatable."),
    ] = None,
    repeats: Annotated[int, typer.Option(metavar="N", help="How often each cell runs; 4 allow a verdict.")] = 1,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Of the workload; 1337 when not given.")] = None,
    order_seed: Annotated[
        int | None, typer.Option(metavar="N", help="Of the order of the runs; drawn when not given.")
    ] = None,
    priority: Annotated[int, typer.Option(metavar="N", help="Higher runs first, then older.")] = 0,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="What lists and reports call it.")] = None,
    tag: Annotated[list[str] | None, typer.Option(metavar="WORD", help="A word to find it by. Repeatable.")] = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A variable for the job. Repeatable.")
    ] = None,
    cwd: Annotated[str | None, typer.Option(metavar="FOLDER", help="Where the job runs; here when not given.")] = None,
    python: Annotated[str | None, typer.Option(metavar="PATH", help="The interpreter of a workload.")] = None,
    timeout: Annotated[str | None, typer.Option(metavar="TIME", help="End a run after this: 90s, 15m, 2h.")] = None,
    parser: Annotated[str | None, typer.Option(metavar="NAME", help="Reads a command's output live: nanogpt.")] = None,
    allow_daemons: Annotated[
        bool, typer.Option("--allow-daemons", help="Let what the job leaves running live on.")
    ] = False,
    after: Annotated[
        list[str] | None, typer.Option(metavar="ID[:any|fail]", help="Wait for 12, g4 or @last to be ok. Repeatable.")
    ] = None,
    at: Annotated[str | None, typer.Option(metavar="TIME", help='Not before 22:30, "2026-11-22 06:00" or +2h.')] = None,
    deadline: Annotated[str | None, typer.Option(metavar="TIME", help="Skip it if it has not started by then.")] = None,
    hold: Annotated[bool, typer.Option("--hold", help="Queue it held back: mpsq release lets it go.")] = False,
    note: Annotated[str | None, typer.Option(metavar="TEXT", help="A sentence to keep with it.")] = None,
    retries: Annotated[int, typer.Option(metavar="N", help="Try again by itself, N times at most.")] = 0,
    backoff: Annotated[
        str | None, typer.Option(metavar="TIME", help="Wait before the first retry; twice as long before each next.")
    ] = None,
    retry_on: Annotated[
        str | None, typer.Option(metavar="LIST", help="What is retried: failed (when not given), lost, stalled.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Retries go on from the last checkpoint; lost runs are retried, too.")
    ] = False,
    stall: Annotated[
        list[str] | None,
        typer.Option(metavar="[PHASE=]TIME", help="End a run that reports nothing for so long. Repeatable."),
    ] = None,
    snapshot: Annotated[
        str, typer.Option(metavar="MODE", help="copy: a command runs in a copy of its folder as it is now.")
    ] = "off",
    allow_changed: Annotated[
        bool, typer.Option("--allow-changed", help="Run a command even if its code has changed by then.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the cells and their order; store nothing.")] = False,
    json: Json = False,
) -> None:
    """Queue a workload or a command, over a grid of settings."""
    from queue_runner import cells, units
    from queue_runner import submit as use_case
    from queue_runner.errors import UsageError

    words = workload or []
    if len(words) > 1:
        raise UsageError(
            f'submit takes one workload, not "{" ".join(words)}"',
            f"a command goes after --: mpsq submit -- {' '.join(words)}",
        )
    request = cells.Request(
        workload=words[0] if words else None,
        argv=ctx.meta.get("command", ()),
        framework=framework,
        device=device,
        compile=compile,
        config=config,
        dtype=dtype,
        sets=tuple(set_ or ()),
        seed=cells.DEFAULT_SEED if seed is None else seed,
        repeats=repeats,
        priority=priority,
        name=name,
        tags=tuple(tag or ()),
        env=tuple(env or ()),
        cwd=cwd,
        python=python,
        timeout_s=units.parse_duration(timeout, "--timeout") if timeout else None,
        parser=parser,
        allow_daemons=allow_daemons,
        after=tuple(after or ()),
        at=at,
        deadline=deadline,
        hold=hold,
        note=note,
        retries=retries,
        backoff_s=units.parse_duration(backoff, "--backoff") if backoff else 0.0,
        retry_on=retry_on,
        resume=resume,
        stall=tuple(stall or ()),
        copy=_copies(snapshot),
        allow_changed=allow_changed,
        order_seed=order_seed,
        title=_title(ctx),
    )
    planned = use_case.plan(request)
    for warning in planned.warnings:
        say(f"note: {warning}")
    if ctx.obj is not None:
        _hand_over(ctx, request, dry_run or json)
    elif dry_run:
        _print_plan(planned, json)
    else:
        _store(planned, json)


def _hand_over(ctx: typer.Context, request: Request, looks: bool) -> None:
    """Another command reads this command line and takes the request: mpsq schedule."""
    from queue_runner.errors import UsageError

    if looks:
        raise UsageError("--dry-run and --json mean nothing in a schedule", "leave them out behind the --")
    ctx.obj(request)


def _copies(snapshot: str) -> bool:
    from queue_runner.errors import UsageError

    if snapshot not in ("off", "copy"):
        raise UsageError(f'--snapshot takes off or copy, not "{snapshot}"', "copy runs it in a copy of its folder")
    return snapshot == "copy"


def _title(ctx: typer.Context) -> str:
    """The command line, as it may be kept and shown."""
    import shlex

    from queue_runner.capture import redact

    return shlex.join(["mpsq", *redact(ctx.meta["argv"])])


def _store(planned: Plan, json: bool) -> None:
    from queue_runner import paths, queue_state
    from queue_runner import submit as use_case

    layout = paths.ensure_home()
    queue_state.worker(layout)  # locks that cannot be used: said before anything is stored
    stored = use_case.store(layout, planned)
    for note in stored.notes:
        say(f"note: {note}")
    if json:
        print_json(
            "mpsq.submit/1",
            group=stored.group,
            jobs=list(stored.jobs),
            runs=[f"{stored.jobs[cell]}.{repeat}" for cell, repeat in planned.order],
            seed=planned.seed,
        )
    else:
        print(
            _sentence(
                stored.group, [f"{stored.jobs[cell]}.{repeat}" for cell, repeat in planned.order], len(stored.jobs)
            )
        )
    if queue_state.worker(layout)[0]:
        hint("mpsq status shows where it stands; mpsq wait @last waits for it")
    else:
        say(f"no worker runs this queue. {queue_state.START_A_WORKER}")


def _sentence(group: int, runs: list[str], jobs: int) -> str:
    """`g4: 12 jobs, 36 runs queued (12.1 ... 23.3)`."""
    span = runs[0] if len(runs) == 1 else f"{runs[0]}, {runs[1]}" if len(runs) == 2 else f"{runs[0]} ... {runs[-1]}"
    return f"g{group}: {jobs} job{'s' * (jobs > 1)}, {len(runs)} run{'s' * (len(runs) > 1)} queued ({span})"


def _print_plan(planned: Plan, json: bool) -> None:
    import shlex
    from dataclasses import asdict

    from queue_runner import argv, capture, listing

    snapshots = home().snapshots
    lines = [capture.redact(argv.of(job.spec, snapshots)) for job in planned.jobs]
    if json:
        cells = [
            {k: v for k, v in asdict(job.spec).items() if k in _CELL} | {"sets": dict(job.spec.params), "argv": line}
            for job, line in zip(planned.jobs, lines, strict=True)
        ]
        order = [{"cell": cell, "repeat": repeat} for cell, repeat in planned.order]
        print_json("mpsq.plan/1", seed=planned.seed, cells=cells, order=order)
        return
    for number, (job, line) in enumerate(zip(planned.jobs, lines, strict=True), start=1):
        asked = listing.question({**asdict(job.spec), "sets": job.spec.params})
        print(f"cell {number}: {job.spec.name}: {asked}" if asked else f"cell {number}: {job.spec.name}")
        print(f"    {shlex.join(line)}")
    print(f"order of the runs (cell.repeat; seed {planned.seed}):")
    print("    " + " ".join(f"{cell + 1}.{repeat}" for cell, repeat in planned.order))
    say("nothing was stored")


_CELL = (
    "kind",
    "name",
    "workload",
    "framework",
    "device",
    "compile",
    "dtype",
    "config",
    "seed",
    "cwd",
    "python",
    "timeout_s",
)
