"""mpsq doctor."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from queue_runner import tables
from queue_runner.cli.common import Json, new_app, print_json
from queue_runner.errors import UsageError
from queue_runner.text import plain

if TYPE_CHECKING:
    from queue_runner.checks import Check

app = new_app()


@app.command("doctor")
def doctor(
    python: Annotated[
        str | None, typer.Option(metavar="PATH", help="The interpreter whose torch is checked; default: that of mpsq.")
    ] = None,
    smoke: Annotated[
        bool,
        typer.Option(
            "--smoke",
            help="With --on: send a job of a minute that examines its node.",
        ),
    ] = False,
    on: Annotated[
        str | None,
        typer.Option("--on", metavar="NAME", help="Check what submit --on NAME needs instead of this machine."),
    ] = None,
    json: Json = False,
) -> None:
    """Check this machine: python, torch, devices, compiler, store.

    --on checks a cluster: commands, controller, options, shared folder, python and mpsq of its nodes.
    Of a box it checks the login, mpsq and the disk there.
    Exit code 1 when a check fails; warnings do not stop the queue.
    """
    from queue_runner import paths
    from queue_runner.doctor import examine as use_case

    layout = paths.layout()  # not home(): what that refuses is a check
    if on is not None and python is not None:
        raise UsageError(
            "--python applies to this machine, and --on to another one", f"mpsq config set on.{on}.python PATH"
        )
    if smoke and on is None:
        raise UsageError(
            "--smoke needs --on", "name the machine to send a job to, or leave out --smoke to try each device here"
        )
    checks = use_case.of_target(layout, on, smoke) if on else use_case.examine(layout, python)
    failed = any(check.verdict == "fail" for check in checks)
    if json:
        print_json("mpsq.doctor/1", ok=not failed, checks=checks)
    else:
        print_checks(checks)
    if failed:
        raise typer.Exit(1)


def print_checks(checks: Sequence[Check]) -> None:
    """Print checks, with the remedies."""
    width = max(len(check.name) for check in checks) + 2
    for check in checks:
        _print(f"{check.verdict:<6}{check.name:<{width}}", plain(check.finding))
        if check.fix and check.verdict != "ok":
            _print(" " * (6 + width), plain(f"fix: {check.fix}"))


def _print(head: str, text: str) -> None:
    """Print a line and its continuation lines. Words are not broken, since most long ones are paths."""
    lines = textwrap.wrap(text, tables.room() - len(head), break_long_words=False, break_on_hyphens=False)
    print(head + f"\n{' ' * len(head)}".join(lines))
