"""mpsq judge."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queue_runner.cli.common import Json, new_app, new_home, print_json, remind
from queue_runner.cli.run import Verbose, follow_to_the_end
from queue_runner.cli.typer_options import LikeSubmit, with_options
from queue_runner.referee.decision import Choice

if TYPE_CHECKING:
    from queue_runner.monitor.awaiting import Awaited
    from queue_runner.paths import Layout
    from queue_runner.submit.plan import Plan

app = new_app()

EXIT_CODES = {Choice.KEEP: 0, Choice.DISCARD: 1, Choice.UNDECIDED: 3}

EPILOG = (
    "Both trees are copied, as with --snapshot copy; what git ignores, such as data, is that of the folder. Each "
    "round runs both rows, in mirrored order, with a seed in MPSQ_SEED that both share and nobody knows before. "
    "Rounds follow until the answer is known, at most 20, or until --budget ends (2h by default). "
    "The candidate is kept if it is faster and its metric is not worse, or if its metric is better at no more time. "
    "Not worse means: within a margin, which is twice the spread of the champion's own rounds, or that of "
    "--same-within. From round 4 on, a candidate whose estimate is below half of --gain is discarded. So is one that "
    "fails, or prints no number. Of candidates that gain nothing, at most one in 20 is kept, however often one looks. "
    "--metric 'val_bpb=val_bpb: ([0-9.]+)' finds the metric in the output; --by val_loss takes one that the program "
    "or its --parser reports. A run ends after --timeout, by default after --budget or twice --time-budget. "
    "mpsq report @last --html page.html draws the evidence."
)


class OfCommand(LikeSubmit):
    """The options of a submission for a command that takes no workload."""

    usage = "-- COMMAND ..."


@app.command("judge", cls=OfCommand, epilog=EPILOG)
@with_options
def judge(
    ctx: typer.Context,
    fields: dict[str, Any],
    champion: Annotated[
        str,
        typer.Option(
            metavar="REF", help="The code to beat: a commit, tag, branch or folder, or that of a job, such as 12."
        ),
    ],
    candidate: Annotated[str, typer.Option(metavar="REF", help="The changed code, such as . for this folder.")],
    keep_if: Annotated[
        str | None, typer.Option(metavar="RULE", help="faster, better, or faster,better; by default all that apply.")
    ] = None,
    higher: Annotated[bool, typer.Option("--higher", help="Higher values of the metric are better.")] = False,
    gain: Annotated[
        str | None,
        typer.Option(
            metavar="GAIN,...",
            help="The least gain worth having: 1% (of the time, the default), loss=0.01 (by default its margin).",
        ),
    ] = None,
    time_budget: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="The program trains for this time, given in MPSQ_TIME_BUDGET_S; only the metric counts.",
        ),
    ] = None,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Run a command in two versions of the code, in rounds, and keep or discard the candidate.

    Exit codes: 0 keep, 1 discard, 3 undecided, 2 for every error.
    """
    from queue_runner.referee import request
    from queue_runner.units import parse_duration

    def plan(layout: Layout) -> Plan:
        budget_s = None if time_budget is None else parse_duration(time_budget, "--time-budget")
        options = request.JudgeOptions(champion, candidate, keep_if, higher, gain, budget_s)
        planned = request.plan(layout, options, fields)
        remind(planned.warnings, layout, json)
        return planned

    layout = new_home()
    follow_to_the_end(layout, plan, verbose=verbose, json=json, finish=partial(_answer, layout, json))


def _answer(layout: Layout, json: bool, group: int, awaited: Awaited) -> None:
    """Print the answer, and exit with its code."""
    from queue_runner.referee import answer

    judged = answer.of_group(layout, group)
    if json:
        print_json("mpsq.judge/1", **judged.as_json())
    else:
        print(judged.text())
    raise typer.Exit(EXIT_CODES[judged.ruling.choice])
