"""Options of a submission by name: a command line or a line of a file becomes a Request.

There is one list of names, OPTIONS, and one conversion to a Request, so that a job from a file is checked like one from
the command line. Values are words, as on a command line; `of_json` turns JSON into them.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from enum import Enum
from typing import Any

from queue_runner import units
from queue_runner.errors import UsageError, did_you_mean
from queue_runner.submit.request import DEFAULT_SEED, Request

Said = Mapping[str, Any]
"""Values by option; an option that was not given is absent."""


class Kind(Enum):
    """The type of an option, and its JSON types."""

    TEXT = "a text"
    TIME = 'a time, such as 90, "15m" or "2h"'
    LIST = "a value or a list of values"
    NUMBER = "a whole number"
    FLAG = "true or false"
    WORDS = "a text or a list of texts"
    PAIRS = 'an object, such as {"lr": 0.001}'
    COMMAND = 'a list of words, such as ["python", "train.py"]'


OPTIONS: dict[str, Kind] = {
    "workload": Kind.TEXT,
    "command": Kind.COMMAND,
    "framework": Kind.LIST,
    "device": Kind.LIST,
    "compile": Kind.LIST,
    "config": Kind.LIST,
    "dtype": Kind.LIST,
    "set": Kind.PAIRS,
    "seed": Kind.NUMBER,
    "repeats": Kind.NUMBER,
    "priority": Kind.NUMBER,
    "name": Kind.TEXT,
    "tag": Kind.WORDS,
    "env": Kind.PAIRS,
    "cwd": Kind.TEXT,
    "python": Kind.TEXT,
    "env_name": Kind.LIST,
    "mps": Kind.WORDS,
    "timeout": Kind.TIME,
    "parser": Kind.TEXT,
    "allow_daemons": Kind.FLAG,
    "snapshot": Kind.TEXT,
    "allow_changed": Kind.FLAG,
    "stall": Kind.PAIRS,
    "after": Kind.WORDS,
    "at": Kind.TEXT,
    "deadline": Kind.TEXT,
    "hold": Kind.FLAG,
    "note": Kind.TEXT,
    "retries": Kind.NUMBER,
    "backoff": Kind.TIME,
    "retry_on": Kind.LIST,
    "resume": Kind.FLAG,
    "find_max": Kind.TEXT,
    "order_seed": Kind.NUMBER,
}
"""Every option of a submission."""

OF_THE_WHOLE = ("order_seed",)
"""Options that only the whole file can have, not a single job."""
_ALSO = {"tags": "tag", "sets": "set"}
_SAME = (
    "workload", "framework", "device", "compile", "config", "dtype", "repeats", "priority", "name", "cwd", "python",
    "parser", "allow_daemons", "order_seed", "allow_changed", "at", "deadline", "hold", "note", "retries", "retry_on",
    "resume", "env_name", "find_max",
)  # fmt: skip
"""Options that are passed to a Request unchanged."""
_MOST_DIGITS = 18


def request(said: Said, title: str) -> Request:
    """Return the request that these options describe. Raises: UsageError for an invalid time or mode."""
    timeout, backoff = said.get("timeout"), said.get("backoff")
    return Request(
        **{name: said[name] for name in _SAME if name in said},
        argv=tuple(said.get("command", ())),
        sets=tuple(said.get("set", ())),
        tags=tuple(said.get("tag", ())),
        env=tuple(said.get("env", ())),
        stall=tuple(said.get("stall", ())),
        mps=tuple(said.get("mps", ())),
        after=tuple(said.get("after", ())),
        seed=said.get("seed", DEFAULT_SEED),
        timeout_s=units.parse_duration(timeout, "--timeout") if timeout else None,
        backoff_s=units.parse_duration(backoff, "--backoff") if backoff else 0.0,
        copy=_copies(said.get("snapshot", "off")),
        title=title,
    )


def _copies(snapshot: str) -> bool:
    if snapshot not in ("off", "copy"):
        raise UsageError(f'--snapshot takes off or copy, not "{snapshot}"', "copy runs it in a copy of its folder")
    return snapshot == "copy"


def over(defaults: Said, said: Said) -> dict[str, Any]:
    """Return the options of all jobs merged with those of one, which take precedence: settings and variables are joined
    by name, and tags are added. A workload or a command replaces either."""
    merged = {
        k: v for k, v in defaults.items() if not (k in ("workload", "command") and {*said} & {"workload", "command"})
    }
    for name, value in said.items():
        if value is None:
            merged.pop(name, None)
        elif name == "tag" and name in merged:
            merged[name] = [*merged[name], *value]
        elif OPTIONS[name] is Kind.PAIRS and name in merged:
            own = {pair.partition("=")[0] for pair in value}
            merged[name] = [*(pair for pair in merged[name] if pair.partition("=")[0] not in own), *value]
        else:
            merged[name] = value
    return merged


def of_json(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in a JSON object; None for null, as if the option were not given.

    Raises: UsageError, which names the key, for an unknown key or a value of the wrong kind.
    """
    found: dict[str, Any] = {}
    for key, value in item.items():
        name = _name(key)
        if name in found:
            raise UsageError(f'"{key}" is said twice', f'"{name}" once is enough')
        found[name] = None if value is None else _words(name, value)
    return found


def _name(key: str) -> str:
    name = _ALSO.get(key, key.replace("-", "_"))
    if name in OF_THE_WHOLE:
        raise UsageError(f'"{key}" is of the whole file, not of one job', f"give --{name.replace('_', '-')} beside it")
    if name not in OPTIONS:
        known = [name for name in OPTIONS if name not in OF_THE_WHOLE]
        raise UsageError(f'no key "{key}"', did_you_mean(name, known, f"the keys are {', '.join(known)}"))
    return name


def _words(name: str, value: Any) -> Any:
    kind = OPTIONS[name]
    if kind is Kind.FLAG and isinstance(value, bool):
        return value
    if kind is Kind.NUMBER and isinstance(value, int) and not isinstance(value, bool):
        if abs(value) >= 10**_MOST_DIGITS:
            raise UsageError(f'"{name}" is a number of more than {_MOST_DIGITS} digits', "give a smaller one")
        return value
    if kind is Kind.TIME and isinstance(value, int | float) and not isinstance(value, bool):
        return _plain_seconds(name, value)
    if isinstance(value, str) and kind in (Kind.TEXT, Kind.TIME, Kind.LIST):
        return _text(name, value)
    if kind is Kind.LIST and not isinstance(value, Mapping):
        return _joined(name, value)
    if kind in (Kind.WORDS, Kind.PAIRS) and (isinstance(value, str) or _are_texts(value)):
        return [_text(name, word) for word in ([value] if isinstance(value, str) else value)]
    if kind is Kind.PAIRS and isinstance(value, Mapping):
        return [_text(name, f"{key}={_joined(f'{name}.{key}', one)}") for key, one in value.items()]
    if kind is Kind.COMMAND and value and _are_texts(value):
        return [_text(name, word) for word in value]
    raise UsageError(f'"{name}" is {_what(value)}, not {kind.value}', _remedy(name, kind, value))


def _remedy(name: str, kind: Kind, value: Any) -> str:
    if kind is Kind.COMMAND and isinstance(value, str):
        try:
            words = shlex.split(value)
        except ValueError:
            words = []
        if words:
            quoted = ", ".join(f'"{word}"' for word in words)
            return f'write "command": [{quoted}]; what needs a shell is ["sh", "-c", "..."]'
    return f'"{name}" takes {kind.value}'


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def _joined(name: str, value: Any) -> str:
    """Return a value, or the values of a sweep separated by commas: `--set lr=0.1,0.2`."""
    if not isinstance(value, list):
        return _scalar(name, value)
    words = [_scalar(name, one) for one in value]
    for word in words:
        if "," in word:
            raise UsageError(f'"{name}" holds "{word}", whose comma would part it in two', "give it alone, as a text")
    return ",".join(words)


def _scalar(name: str, value: Any) -> str:
    if isinstance(value, str):
        return _text(name, value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return str(value)
    raise UsageError(f'"{name}" holds {_what(value)}', "a value is a text, a number, true or false")


def _plain_seconds(name: str, value: float) -> str:
    if not 0 <= value <= units.MAX_DURATION_S:
        raise UsageError(f'"{name}" is {value}, which is no number of seconds', 'write it like 90, "15m" or "2h"')
    return f"{value:.9f}"


def _text(name: str, text: str) -> str:
    if "\0" in text:
        raise UsageError(f'"{name}" holds a NUL character', "leave it out")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f'"{name}" holds half a character (\\ud800 to \\udfff)', "write the whole character"
        ) from error
    return text


def _what(value: Any) -> str:
    """Describe a JSON value in words."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return f'the text "{value[:40]}"'
    if isinstance(value, int | float):
        return f"the number {value}" if math.isfinite(value) else "a number that is too large"
    return "an object" if isinstance(value, Mapping) else "a list" if value else "an empty list"
