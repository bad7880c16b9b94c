"""Sentences of a report. A plain string is printed in any case; the kinds below go behind --explain, whole."""

from __future__ import annotations


class Finding(str):
    """A sentence that only --explain prints."""

    def after(self, prefix: str) -> Finding:
        """Return the sentence after a prefix, such as the letter of its table."""
        return type(self)(f"{prefix}{self}")


class OtherAnswer(Finding):
    """An answer on a quantity that does not come first: on a page it stands below the first one. Where a default report
    has several tables, it prints those `in_summary`, too."""

    in_summary: bool

    def __new__(cls, text: str, in_summary: bool = False) -> OtherAnswer:
        made = super().__new__(cls, text)
        made.in_summary = in_summary
        return made

    def after(self, prefix: str) -> OtherAnswer:
        return OtherAnswer(f"{prefix}{self}", self.in_summary)


class Undecided(str):
    """A result without a verdict, which its sentence says first; `measured` is the rest, without the rounds that it
    needs."""

    measured: str

    def __new__(cls, sentence: str, measured: str) -> Undecided:
        made = super().__new__(cls, sentence)
        made.measured = measured
        return made

    def after(self, prefix: str) -> Undecided:
        """Return the sentence after a prefix, such as the letter of its table."""
        return Undecided(f"{prefix}{self}", f"{prefix}{self.measured}")


class Caveat(Finding):
    """A condition that makes a number or a word less believable. The default report names it without its figures, in
    one line with the others, the `minor` ones last. `letter` marks the rows of tables that it is about."""

    sentence: str
    minor: bool
    letter: str

    def __new__(cls, sentence: str, figures: str = "", *, minor: bool = False, letter: str = "") -> Caveat:
        made = super().__new__(cls, sentence + figures)
        made.sentence, made.minor, made.letter = sentence, minor, letter
        return made

    def after(self, prefix: str) -> Caveat:
        return Caveat(f"{prefix}{self.sentence}", self[len(self.sentence) :], minor=self.minor, letter=self.letter)


class NextStep(Finding):
    """A sentence with what to do about it; the default report prints the `command` in its last line."""

    command: str

    def __new__(cls, text: str, command: str) -> NextStep:
        made = super().__new__(cls, text)
        made.command = command
        return made

    def after(self, prefix: str) -> NextStep:
        return NextStep(f"{prefix}{self}", self.command)
