"""Removal of secrets from a submitter's captured environment and from displayed command lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from queue_runner.errors import UsageError

SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)

_SECRET_WORD = re.compile(r"(?:^|[-_.]|api)(?:token|key|secret|password|passwd|credentials?)$", re.IGNORECASE)
"""As the last word of an option's name: `--api-key` and `auth.token` are secrets, `--max-tokens` is not."""

_OF_THE_TERMINAL = frozenset({"_", "SHLVL", "OLDPWD", "PWD", "TERM", "COLUMNS", "LINES", "PS1", "WINDOWID", "STY"})
"""Variables of the submitting terminal; a job has no terminal."""


def environment(source: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a job inherits: neither ours (MPSQ_*), nor secrets, nor the terminal's."""
    return {
        name: value
        for name, value in source.items()
        if not (name.startswith(("MPSQ_", "TMUX")) or name in _OF_THE_TERMINAL or SECRET.search(name))
    }


def secrets(source: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are never stored: a run gets them from the worker's environment, if set there."""
    return {n: v for n, v in source.items() if SECRET.search(n) and not n.startswith("MPSQ_")}


def names_a_secret(name: str) -> bool:
    """Return whether an option of this name holds a secret."""
    return _SECRET_WORD.search(name) is not None


def assignments(pairs: Iterable[str], option: str) -> dict[str, str]:
    """Parse `K=V` strings into a dict. Raises: UsageError where `=` or the name is missing, or for a name of ours."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UsageError(f'{option} "{pair}" is not NAME=VALUE', f"write {option} NAME=VALUE")
        if option == "--env" and name.startswith("MPSQ_"):
            raise UsageError(f"{name} is reserved for mpsq", "set it for the worker, not for a job")
        if "\0" in pair:
            raise UsageError(f"{option} {name} contains a NUL character", "remove it")
        found[name] = value
    return found


def redact(argv: Iterable[str]) -> list[str]:
    """Return the command line for display, with `--api-key=...` and the word after `--api-key` hidden."""
    shown: list[str] = []
    hide_next = False
    for word in argv:
        if hide_next:
            shown.append("[hidden]")
            hide_next = False
            continue
        name, equals, _value = word.partition("=")
        if names_a_secret(name) and (name.startswith("-") or equals):
            shown.append(f"{name}=[hidden]" if equals else name)
            hide_next = name.startswith("-") and not equals
        else:
            shown.append(word)
    return shown
