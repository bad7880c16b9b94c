"""What five documents on training with Apple's GPU claim, whether it is so, how we know, and how to test it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from queue_runner.errors import UsageError


class Status(StrEnum):
    """What has become of a claim."""

    HOLDS = "holds"
    OUTDATED = "outdated"
    FALSE = "false"
    NEEDS_A_MAC = "needs a Mac"
    OUT_OF_SCOPE = "out of scope"


class Basis(StrEnum):
    """How that is known."""

    LOGS = "logs"
    MEASURED = "run"
    READ = "read"
    NOTHING = "unknown"


DOCUMENTS = {
    "metal-post": "State of training on Metal",
    "accelerated-pytorch": "Accelerated PyTorch training on Mac",
    "trainer": "PyTorch training on Apple silicon (Trainer)",
    "pytorch-on-metal-guide": "Running PyTorch on Metal (guide)",
    "lightning": "Accelerated training with Lightning",
}
"""Their short names, which are those of the pages in docs/recipes/, and their titles."""

BASES = {
    Basis.LOGS: "the logs that the post published, imported; a test holds the numbers",
    Basis.MEASURED: "a program that was run here, on Linux",
    Basis.READ: "source code, wheels for macOS, or what others reported",
    Basis.NOTHING: "not known: nobody has run the commands on a Mac yet",
}


@dataclass(frozen=True)
class Claim:
    """One sentence of a document, in our words. `evidence` says what is known, `commands` what tests it."""

    number: int
    document: str
    text: str
    status: Status
    basis: Basis
    evidence: str
    commands: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Of the document."""
        return DOCUMENTS[self.document]


def choose(
    claims: Sequence[Claim], numbers: Collection[int] = (), document: str | None = None, status: str | None = None
) -> list[Claim]:
    """Those of the claims that are asked for; of `status`, several with commas between.

    Raises: UsageError for a number, document or status that there is not.
    """
    from queue_runner.errors import did_you_mean

    known = {claim.number for claim in claims}
    for number in numbers:
        if number not in known:
            raise UsageError(f"there is no claim {number}", f"they are 1 to {max(known)}: mpsq claims lists them")
    if document is not None and document not in DOCUMENTS:
        raise UsageError(f'no document "{document}"', did_you_mean(document, DOCUMENTS, f"one of {_any(DOCUMENTS)}"))
    wanted = _statuses(status)
    return [
        claim
        for claim in claims
        if (not numbers or claim.number in numbers) and document in (None, claim.document) and claim.status in wanted
    ]


def _statuses(text: str | None) -> Collection[Status]:
    from queue_runner.errors import did_you_mean

    if text is None:
        return tuple(Status)
    by_word = {_plain(status): status for status in Status}
    found = []
    for word in text.split(","):
        if (status := by_word.get(_plain(word))) is None:
            raise UsageError(f'no status "{word}"', did_you_mean(word, [*Status], f"one of {_any([*Status])}"))
        found.append(status)
    return found


def _plain(word: str) -> str:
    return "-".join(word.strip().lower().replace("-", " ").split())


def _any(words: Collection[str]) -> str:
    return ", ".join(words)


def counts(claims: Sequence[Claim]) -> str:
    """How many have each status: `5 holds, 17 needs a Mac`."""
    told = {status: sum(claim.status is status for claim in claims) for status in Status}
    return ", ".join(f"{count} {status}" for status, count in told.items() if count)


def page(claims: Sequence[Claim]) -> str:
    """docs/claims.md."""
    parts = [_HEAD + "\n".join(f"| {basis} | {about} |" for basis, about in BASES.items())]
    parts.append(f"Of {len(claims)}: {counts(claims)}.")
    for name, title in DOCUMENTS.items():
        parts.append(f"## {title}\n\nHow to measure it, step by step: [recipes/{name}.md](recipes/{name}.md).")
        parts += [_markdown(claim) for claim in claims if claim.document == name]
    return "\n\n".join([*parts, _CORE_ML]) + "\n"


def _markdown(claim: Claim) -> str:
    known = f" ({claim.basis})" if claim.status is not Status.OUT_OF_SCOPE else ""
    lines = [f"### {claim.number}. {claim.text}", f"**{claim.status}**{known}. {claim.evidence}"]
    if claim.commands:
        lines.append("```text\n" + "\n".join(claim.commands) + "\n```")
    return "\n\n".join(lines)


_HEAD = """\
# What is claimed, and what of it is so

Five documents are what people read before they train on a Mac. Each of their sentences that can be checked stands here
in our words, with what is known of it and the command that tests it on your machine. `mpsq claims` prints the same;
this page is made by `make docs`, and a test keeps the two alike.

mpsq's authors have no Mac. **holds**, **outdated** and **false** are said only where logs, source code or a run decide;
what only a Mac can decide **needs a Mac**, whatever seems likely. In brackets stands how it is known:

| word | meaning |
|---|---|
"""

_CORE_ML = """\
## Core ML is out of scope

mpsq compares training: iterations with a forward, a backward and an update, the same on every device, whose
losses can be compared. Core ML runs a model that was converted before. It has no training loop to put a clock around,
chooses between CPU, GPU and Neural Engine by itself, so that "which device" has no answer that a job could set, and the
conversion changes the program that is measured. A number of it beside ours would compare two different things. What
documents say of Core ML and of converters is therefore listed, and not tested."""
