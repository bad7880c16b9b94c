"""A command line as a shell reads it, as far as that is needed for its completion."""

from __future__ import annotations

import re

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


def split(line: str) -> list[str]:
    """The words of a line up to the cursor: the last is the one that is being written, perhaps "".

    Quotes need not be closed. Assignments before the command are left out.
    """
    words: list[str] = []
    word, quote, escaped, begun = "", "", False, False
    for letter in line:
        if escaped:
            word, escaped = word + letter, False
        elif letter == "\\" and quote != "'":
            escaped = begun = True
        elif quote:
            word, quote = (word, "") if letter == quote else (word + letter, quote)
        elif letter in "'\"":
            quote, begun = letter, True
        elif letter.isspace():
            if begun:
                words.append(word)
            word, begun = "", False
        else:
            word, begun = word + letter, True
    words.append(word)
    while len(words) > 1 and _ASSIGNMENT.match(words[0]):
        del words[0]
    return words


def text_behind_break(word: str, breaks: str) -> str:
    """What bash takes for the word: `word` behind the last of its COMP_WORDBREAKS. Only that is replaced."""
    at = max((word.rfind(letter) for letter in breaks if letter in "=:"), default=-1)
    return word[at + 1 :]
