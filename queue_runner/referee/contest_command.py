"""mpsq contest."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queue_runner.cli.common import Json, home, new_app, new_home, print_json, say
from queue_runner.cli.run import Verbose, follow_to_the_end
from queue_runner.cli.typer_options import title, with_options
from queue_runner.errors import UsageError
from queue_runner.referee.judge_command import (
    Evaluate,
    Higher,
    KeepIf,
    LeastGain,
    OfCommand,
    TimeBudget,
    follow_stored,
    print_answer,
)

if TYPE_CHECKING:
    from queue_runner.monitor.awaiting import Awaited
    from queue_runner.paths import Layout
    from queue_runner.submit.plan import Plan

app = new_app("Judge many changes, so that few of those that are kept gain nothing.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the contest.")]

EPILOG = (
    "The champion runs once, which shows that the command works. mpsq contest try NAME REF then judges a candidate "
    "against it, and the candidate becomes the champion if it is kept. Of the changes that are kept, at most 10 % are "
    "expected to gain nothing: each planned candidate gets an equal share of that, and each that is kept makes room "
    "for the later ones (e-LOND; docs/simulations.md). Every candidate is judged in the same way, by the options of "
    "mpsq judge. A candidate that runs three times as long as the champion, and a minute, is stopped."
)


class OfContest(OfCommand):
    """The same for a command that takes a name in place of a workload."""

    usage = "NAME -- COMMAND ..."
    n_names = 1


@app.command("new", cls=OfContest, epilog=EPILOG)
@with_options
def new(
    ctx: typer.Context,
    fields: dict[str, Any],
    champion: Annotated[str, typer.Option(metavar="REF", help="The code to beat, as in mpsq judge.")],
    plan: Annotated[int, typer.Option(metavar="N", help="How many candidates are planned.")] = 50,
    keep_if: KeepIf = None,
    higher: Higher = False,
    gain: LeastGain = None,
    time_budget: TimeBudget = None,
    evaluate: Evaluate = None,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Begin a contest with one run of its champion."""
    from queue_runner.referee import request

    if (name := fields.pop("workload", None)) is None:
        raise UsageError("a contest needs a name", "as in mpsq contest new night --champion HEAD -- python train.py")

    def planned(layout: Layout) -> Plan:
        chosen = request.JudgeOptions(keep_if, higher, gain, time_budget, evaluate)
        return request.plan_contest(layout, name, plan, champion, chosen, fields)

    layout = new_home()
    finish = partial(_begun, layout, name, json)
    follow_to_the_end(layout, planned, verbose=verbose, json=json, finish=finish, rounds=1)


def _begun(layout: Layout, name: str, json: bool, _group: int, awaited: Awaited) -> None:
    from queue_runner.referee import contest, night

    awaited.refuse_failures()
    begun = contest.find(layout, name)
    begun.refuse_without_metric(layout)
    begun.refuse_next()
    if json:
        print_json("mpsq.contest/1", **night.as_json(begun, []))
    else:
        print(f"{night.text(begun, [])}; mpsq contest try {name} REF judges a candidate")


@app.command("try")
def try_(
    ctx: typer.Context,
    name: Name,
    candidate: Annotated[str, typer.Argument(metavar="REF", help="The changed code, such as . for this folder.")],
    label: Annotated[str, typer.Option(metavar="TEXT", help="What it changes; by default REF.")] = "",
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Judge the next candidate against the champion.

    If it was killed, the same command follows the candidate to its answer.

    Exit codes: 0 keep, 1 discard, 3 undecided; 2 for every error, and a candidate that is refused before it runs.
    """
    from queue_runner.referee import contest, request

    layout, line = new_home(), title(ctx)

    def planned(layout: Layout) -> Plan:
        return request.plan_candidate(layout, contest.find(layout, name), candidate, label, line)

    try:
        follow_to_the_end(layout, planned, verbose=verbose, json=json, finish=partial(print_answer, layout, json))
    except contest.AlreadyEntered as entered:
        say(entered.message)
        follow_stored(layout, entered.group, verbose, json)


@app.command("show")
def show(name: Name, json: Json = False) -> None:
    """Print the candidates, the champion and the time left."""
    from queue_runner.referee import night

    standing = night.read(home(), name)
    if json:
        print_json("mpsq.contest/1", **night.as_json(*standing))
    else:
        print(night.text(*standing))


@app.command("confirm")
def confirm(
    ctx: typer.Context,
    name: Name,
    rounds: Annotated[int, typer.Option(metavar="N", help="How many fresh rounds.")] = 10,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Measure the gain of the last champion in fresh rounds.

    The other row is the first champion. The gains that were measured when the steps were kept tend to be too large.

    Exit codes: 0 the gain is confirmed, 1 it is not, 3 undecided, 2 for every error.
    """
    from queue_runner.referee import contest, request

    layout, line = new_home(), title(ctx)

    def planned(layout: Layout) -> Plan:
        return request.plan_confirmation(layout, contest.find(layout, name), rounds, line)

    finish = partial(print_answer, layout, json)
    follow_to_the_end(layout, planned, verbose=verbose, json=json, finish=finish, rounds=rounds)
