"""The options of a submission, in one place: submit, run and bench have the same."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature, signature
from typing import Annotated, Any

import typer
from typer.core import TyperCommand


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


class OfWorkload(WithCommand):
    """The same for a command that takes a workload alone."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["[OPTIONS]", "WORKLOAD"]


def _options(
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
    set: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting; VALUE,VALUE is swept. Repeatable."),
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(metavar="N", help="How often each cell runs; 4 allow a verdict.")
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Of the workload; 1337 when not given.")] = None,
    order_seed: Annotated[
        int | None, typer.Option(metavar="N", help="Of the order of the runs; drawn when not given.")
    ] = None,
    priority: Annotated[
        int | None, typer.Option(metavar="N", help="Higher runs first, then older; 0 when not given.")
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="What lists and reports call it.")] = None,
    tag: Annotated[list[str] | None, typer.Option(metavar="WORD", help="A word to find it by. Repeatable.")] = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A variable for the job. Repeatable.")
    ] = None,
    cwd: Annotated[str | None, typer.Option(metavar="FOLDER", help="Where the job runs; here when not given.")] = None,
    python: Annotated[str | None, typer.Option(metavar="PATH", help="The interpreter of a workload.")] = None,
    env_name: Annotated[
        str | None, typer.Option(metavar="LIST", help="Environments of mpsq env; several are swept.")
    ] = None,
    mps: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE,...", help="torch's MPS switches, as fallback=on,fast_math=on. Repeatable: swept."
        ),
    ] = None,
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
    retries: Annotated[
        int | None, typer.Option(metavar="N", help="Try again by itself, N times at most; 0 when not given.")
    ] = None,
    backoff: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Wait before the first retry; twice as long before each next, up to a day."),
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
    find_max: Annotated[
        str | None,
        typer.Option("--find-max", metavar="KEY[=FIRST[:LAST]]", help="Look for the largest batch_size that works."),
    ] = None,
    snapshot: Annotated[
        str | None, typer.Option(metavar="MODE", help="copy: a command runs in a copy of its folder as it is now.")
    ] = None,
    allow_changed: Annotated[
        bool, typer.Option("--allow-changed", help="Run a command even if its code has changed by then.")
    ] = False,
) -> None:
    """The names are those of submit.options.OPTIONS. Nothing has a default here: a file may say it instead."""


_SHARED = signature(_options, eval_str=True).parameters


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give `command(ctx, said, ...)` the options of a submission: `said` are those that were given, by name."""

    def run(ctx: typer.Context, **given: Any) -> None:
        command(ctx, _said(ctx, {name: given.pop(name) for name in _SHARED}), **given)

    own = signature(command, eval_str=True).parameters
    shown = [own["ctx"], *_SHARED.values(), *(one for name, one in own.items() if name not in ("ctx", "said"))]
    run.__signature__ = Signature([one.replace(kind=Parameter.KEYWORD_ONLY) for one in shown])  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in shown}
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


def _said(ctx: typer.Context, given: dict[str, Any]) -> dict[str, Any]:
    words = given.pop("workload") or []
    verb = str(ctx.info_name)
    if len(words) > 1:
        from queue_runner.errors import UsageError

        raise UsageError(
            f'{verb} takes one workload, not "{" ".join(words)}"',
            f"a command goes after --: mpsq {verb} -- {' '.join(words)}",
        )
    said = {name: value for name, value in given.items() if value is not None and value is not False and value != []}
    if words:
        said["workload"] = words[0]
    if command := ctx.meta.get("command"):
        said["command"] = list(command)
    return said


def title(ctx: typer.Context) -> str:
    """The command line, as it may be kept and shown."""
    import shlex

    from queue_runner.redact import redact

    return shlex.join(["mpsq", *redact(ctx.meta["argv"])])
