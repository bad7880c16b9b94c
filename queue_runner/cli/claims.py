"""mpsq claims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from queue_runner.cli.common import Json, new_app, print_json, say

if TYPE_CHECKING:
    from queue_runner.cli.claims_text import Claim

app = new_app()

EPILOG = (
    "Documents: metal-post, accelerated-pytorch, trainer, pytorch-on-metal-guide, lightning; each has a recipe in "
    "docs/recipes. Statuses: holds, outdated, false, needs-a-mac, out-of-scope. "
    "Example: mpsq claims --status false,outdated"
)


@app.command("claims", epilog=EPILOG)
def claims(
    numbers: Annotated[
        list[int] | None, typer.Argument(metavar="[NUMBER]...", help="All that is known of these.")
    ] = None,
    document: Annotated[str | None, typer.Option(metavar="NAME", help="Only those of this document.")] = None,
    status: Annotated[str | None, typer.Option(metavar="LIST", help="Only those of which this is so.")] = None,
    json: Json = False,
) -> None:
    """Say what is claimed of training on Apple's GPU, what of it is so, and what tests it."""
    from dataclasses import asdict

    from queue_runner.cli import claims_text as use_case
    from queue_runner.cli.claims_list import CLAIMS

    chosen = use_case.choose(CLAIMS, numbers or (), document, status)
    if json:
        print_json("mpsq.claims/1", claims=[{**asdict(claim), "title": claim.title} for claim in chosen])
    elif numbers:
        print("\n\n".join(map(_full, chosen)))
    else:
        print(_list(chosen) or "no claim is like that")
        if chosen:
            say(f"\n{use_case.counts(chosen)}")
            say(f"mpsq claims {chosen[0].number} says how that is known, and what tests it")


def _full(claim: Claim) -> str:
    from shutil import get_terminal_size

    from queue_runner import tables
    from queue_runner.cli.claims_text import BASES, Status

    facts = [
        ("claim", f"{claim.number}. {claim.text}"),
        ("document", f"{claim.title} ({claim.document})"),
        ("status", str(claim.status)),
        ("known by", BASES[claim.basis]),
        ("because", claim.evidence),
    ]
    if claim.status is Status.OUT_OF_SCOPE:
        del facts[3]
    told = tables.facts(facts, prose=[name for name, _ in facts])
    columns = get_terminal_size().columns
    return "\n".join([told, *(_command(line, columns) for line in claim.commands)])


def _command(line: str, columns: int) -> str:
    """The command as a shell takes it, on several lines where it is long."""
    from queue_runner.text import wrap

    first, *others = wrap(line, columns - 6)
    return " \\\n".join([f"  $ {first}", *(f"    {part}" for part in others)])


def _list(chosen: Sequence[Claim]) -> str:
    import textwrap
    from shutil import get_terminal_size

    lines: list[str] = []
    for number, claim in enumerate(chosen):
        if number == 0 or chosen[number - 1].document != claim.document:
            lines += ["", f"{claim.title} ({claim.document}):"]
        head = f"{claim.number:>4}  {claim.status:<13} "
        width = max(get_terminal_size().columns, 60)
        lines += textwrap.wrap(claim.text, width, initial_indent=head, subsequent_indent=" " * len(head))
    return "\n".join(lines[1:])
