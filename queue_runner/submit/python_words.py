"""Errors in the words of Python: what the command line calls `--repeats 4` is `repeats=4` there."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, TypeVar

from queue_runner.errors import MpsqError
from queue_runner.submit.submit_options import OPTIONS, Kind

C = TypeVar("C", bound=type)

_VALUE = (
    r"(?:[A-Z]+(?=[\s;,:)]|$)|(?:off|on|both|auto|copy|cpu|cuda|mps|fp32|bf16|fp16)\b[\w,:]*|@last|-?\d[\w.:,]*"
    r"|[\w.]+=[^\s;,)]+)"
)
"""What follows an option as its value, not as a word of the sentence: NAME, on, 90s, lr=0.1."""
_OPTION = re.compile(rf"--([a-z][a-z-]*)(?:[ =]({_VALUE}))?")
_VERBS = "wait|why|cancel|retry|rerun|delete|edit|pause|resume|status"
_COMMAND = re.compile(rf"\bmpsq ({_VERBS})\b((?: (?:@last|g?\d[\d.]*)(?![\w.]*\w))*)")

_WHOLE = re.compile(rf"(mpsq (?!(?:{_VERBS})\b)[^;,]*|mpsq \w+(?: [\w.@]+)* --[^;,]*)")
"""Commands that stay as they are typed: those without a method, and those with options."""


def in_python(text: str) -> str:
    """Return an error's text with options as keyword arguments and commands as methods of a Client.

    `--timeout 2h` becomes `timeout="2h"`, `mpsq why 3.1` becomes `Client.why("3.1")`; other commands stay: they are
    typed in a terminal.
    """
    parts = _WHOLE.split(text)
    return "".join(
        part if at % 2 else _COMMAND.sub(_method, _OPTION.sub(_keyword, part)) for at, part in enumerate(parts)
    )


def _keyword(match: re.Match[str]) -> str:
    name, value = match[1].replace("-", "_"), match[2]
    option = OPTIONS.get(name)
    if value is None:
        return f"{name}=True" if option is not None and option.kind is Kind.FLAG else name
    if option is not None and option.kind is Kind.PAIRS and "=" in value:
        key, _, setting = value.partition("=")
        return f'{name}={{"{key}": {_literal(setting)}}}'
    return f"{name}={_literal(value)}"


def _literal(value: str) -> str:
    if re.fullmatch(r"-?\d+(\.\d+)?(e-?\d+)?", value) or (value.isupper() and value.isalpha()):
        return value
    words = value.split(",")
    return f'"{value}"' if len(words) == 1 else "[" + ", ".join(f'"{word}"' for word in words) + "]"


def _method(match: re.Match[str]) -> str:
    ids = [id if id.isdecimal() else f'"{id}"' for id in match[2].split()]
    return f"Client.{match[1]}({', '.join(ids)})"


def in_python_words(cls: C) -> C:
    """Have the public methods of a class raise their errors in the words of Python."""
    for name, method in [*vars(cls).items()]:
        if callable(method) and not name.startswith("_"):
            setattr(cls, name, _translated(method))
    return cls


def _translated(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **named: Any) -> Any:
        try:
            return method(*args, **named)
        except MpsqError as error:
            error.message, error.hint = in_python(error.message), in_python(error.hint)
            error.args = (error.message,)
            raise

    return call
