"""mpsq judge."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queue_runner.cli.common import Json, new_app, new_home, print_json
from queue_runner.cli.run import Verbose, follow_again, follow_to_the_end
from queue_runner.cli.typer_options import LikeSubmit, with_options
from queue_runner.errors import UsageError
from queue_runner.referee.decision import Choice

if TYPE_CHECKING:
    from queue_runner.monitor.awaiting import Awaited
    from queue_runner.paths import Layout
    from queue_runner.submit.plan import Plan

app = new_app()

EXIT_CODES = {Choice.KEEP: 0, Choice.DISCARD: 1, Choice.UNDECIDED: 3}

EPILOG = (
    "Both trees are copied, as with --snapshot copy; files that git ignores, such as data, are those of the folder. "
    "Each round runs both rows, in mirrored order, with the same seed in MPSQ_SEED, which nobody knows in advance. "
    "At most 20 rounds run, until the answer is known or --budget ends (2h by default). "
    "The candidate is kept if it is faster and its metric is not worse, or if its metric is better at no more time. "
    "Not worse means: within a margin of twice the spread of the champion's own rounds (for the time, 1 to 10 %), or "
    "that of --same-within. From round 4 on, a candidate whose estimate is below half of --gain is discarded; "
    "if noise may hide ten times --gain, it is undecided. One that fails, diverges, or prints no number, is discarded. "
    "Of candidates that gain nothing, at most one in 20 is kept, however often one looks. "
    "--metric 'val_bpb=val_bpb: ([0-9.]+)' finds the metric in the output; --by val_loss takes one that the program "
    "or its --parser reports. With --evaluate 'python eval.py $MPSQ_TRAINED/ckpt.pt', the champion's code computes it "
    "after each run; MPSQ_TRAINED is the folder of the run. Each run has empty compiler caches and a temporary folder "
    "of its own; of the files that it writes, those in MPSQ_OUT stay. A candidate is refused if its clock contradicts "
    "itself or does not wait, if it ends before the iterations that it announced or leaves some out, or if it ignores "
    "the seed. So is one that reports another seed or other data than the champion, changes files that git ignores, "
    "or mentions MPSQ_SEED, mpsq_report or a clock more often. "
    "A run ends after --timeout, by default after --budget or twice --time-budget. "
    "mpsq report @last --html page.html draws the evidence."
)


class OfCommand(LikeSubmit):
    """The options of a submission for a command that takes no workload."""

    usage = "-- COMMAND ..."
    takes = "its command after --"
    gathers = True

    def lacks(self) -> tuple[str, ...]:
        from queue_runner.referee.request import REFUSED
        from queue_runner.submit.submit_options import OPTIONS

        return *super().lacks(), *(OPTIONS[name].flag for name in REFUSED)


KeepIf = Annotated[
    str | None, typer.Option(metavar="RULE", help="faster, better, or faster,better; by default all that apply.")
]
Higher = Annotated[bool, typer.Option("--higher", help="Higher values of the metric are better.")]
LeastGain = Annotated[
    str | None,
    typer.Option(
        metavar="GAIN,...",
        help="The least gain worth having: 1% (of the time, the default), loss=0.01 (by default its margin).",
    ),
]
TimeBudget = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        help="The program trains for this time, given in MPSQ_TIME_BUDGET_S; only the metric counts.",
    ),
]
Evaluate = Annotated[
    str | None,
    typer.Option(metavar="COMMAND", help="Run this in the champion's code after each run: it prints the metric."),
]


@app.command("judge", cls=OfCommand, epilog=EPILOG)
@with_options
def judge(
    ctx: typer.Context,
    fields: dict[str, Any],
    champion: Annotated[
        str | None,
        typer.Option(
            metavar="REF", help="The code to beat: a commit, tag, branch or folder, or that of a job, such as 12."
        ),
    ] = None,
    candidate: Annotated[
        str | None, typer.Option(metavar="REF", help="The changed code, such as . for this folder.")
    ] = None,
    keep_if: KeepIf = None,
    higher: Higher = False,
    gain: LeastGain = None,
    time_budget: TimeBudget = None,
    evaluate: Evaluate = None,
    again: Annotated[
        str | None,
        typer.Option(metavar="GROUP", help="Follow a stored judgement to its end, and print its answer as of now."),
    ] = None,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Run a command in two versions of the code, in rounds, and keep or discard the candidate.

    Exit codes: 0 keep, 1 discard, 3 undecided; 2 for every error, and a candidate that is refused before it runs.
    """
    from queue_runner.referee import answer, request

    layout = new_home()
    if again is not None:
        follow_stored(layout, answer.group_named(layout, again), verbose, json)
    if champion is None or candidate is None:
        raise UsageError("mpsq judge needs two versions", "name them with --champion REF and --candidate REF")

    def plan(layout: Layout) -> Plan:
        chosen = request.JudgeOptions(keep_if, higher, gain, time_budget, evaluate)
        return request.plan(layout, champion, candidate, chosen, fields)

    follow_to_the_end(layout, plan, verbose=verbose, json=json, finish=partial(print_answer, layout, json))


def follow_stored(layout: Layout, group: int, verbose: bool, json: bool) -> None:
    """Follow a stored judgement to its end, print its answer, and exit with its code."""
    from queue_runner.referee import answer

    until, rounds = answer.until_of(layout, group)
    follow_again(layout, group, until, verbose=verbose, json=json, rounds=rounds)
    print_answer(layout, json, group)


def print_answer(layout: Layout, json: bool, group: int, _awaited: Awaited | None = None) -> None:
    """Print the answer, and exit with its code."""
    from queue_runner.referee import answer

    judged = answer.of_group(layout, group)
    if json:
        print_json("mpsq.judge/1", **judged.as_json())
    else:
        print(judged.text())
    raise typer.Exit(EXIT_CODES[judged.ruling.choice])
