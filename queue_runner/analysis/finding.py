"""Sentences of a report that are long by nature: `--explain` prints them, and otherwise a few words or nothing."""

from __future__ import annotations


class Finding(str):
    """A sentence that only --explain prints. `brief` is printed otherwise: a condition that makes a number or a verdict
    less believable is never left out; an explanation is ("")."""

    brief: str

    def __new__(cls, text: str, brief: str = "") -> Finding:
        made = super().__new__(cls, text)
        made.brief = brief
        return made
