"""Options of a submission as given: on a command line, in a line of a file, or in Python.

One function reads them all into the fields of a Request, so that each understands and checks the same.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from queue_runner import units
from queue_runner.errors import UsageError, did_you_mean
from queue_runner.submit import grid
from queue_runner.submit.submit_options import OPTIONS, REMOVED, Kind, Option

Fields = Mapping[str, Any]
"""Values by the field of Request that they set; None for one that is given as null."""

OF_THE_WHOLE = ("order_seed", "until", "by", "same_within", "budget")
"""Options that only the whole file can have, not a single job."""
_BY_FIELD = {option.field: option for option in OPTIONS.values()}
_MOST_DIGITS = 18


def merge(defaults: Fields, fields: Fields) -> dict[str, Any]:
    """Return the options of all jobs merged with those of a single one, which take precedence: settings and variables
    are joined by name, and tags are added. A workload or a command replaces either."""
    replaced = {"workload", "argv"} if {"workload", "argv"} & fields.keys() else set()
    merged = {name: value for name, value in defaults.items() if name not in replaced}
    for name, value in fields.items():
        if value is None:
            merged.pop(name, None)
        elif name == "tags":
            merged[name] = merged.get(name, ()) + value
        else:
            merged[name] = {**merged.get(name, {}), **value} if isinstance(value, Mapping) else value
    return merged


def read(options: Mapping[str, Any], *, whole: bool = False) -> dict[str, Any]:
    """Return the fields of a Request from options: words of a command line, a JSON object, keyword arguments of Python.

    `whole` allows the options that a single job of a file cannot have.

    Raises: UsageError, which names the key, for an unknown key or an invalid value.
    """
    fields: dict[str, Any] = {}
    for key, value in options.items():
        option = _named(key)
        if option.name in OF_THE_WHOLE and not whole:
            raise UsageError(
                f'"{key}" applies to the whole file, not to a single job', f"give {option.flag} on the command line"
            )
        if option.field in fields:
            raise UsageError(f'"{key}" is given twice', f'give "{option.name}" only once')
        typed = None if value is None else _typed(option, value)
        fields[option.field] = option.convert(typed) if option.convert and typed is not None else typed
    return fields


def _named(key: str) -> Option:
    """Return an option by its name or that of its field: both `tag` and `tags`."""
    name = key.replace("-", "_")
    option = OPTIONS.get(name) or _BY_FIELD.get(name)
    if name in REMOVED:
        reason, hint = REMOVED[name]
        raise UsageError(f'"{key}" was removed: {reason}', hint)
    if option is None:
        known = [name for name in OPTIONS if name not in OF_THE_WHOLE]
        raise UsageError(f'no option "{key}"', did_you_mean(name, known, f"the options are {', '.join(known)}"))
    return option


def _typed(option: Option, value: Any) -> Any:
    """Return a value of the option's kind. Pairs become an object with a text or several for each key."""
    name, kind = option.name, option.kind
    if isinstance(value, bool) and kind in (Kind.FLAG, Kind.SWITCH):
        return value
    if kind is Kind.NUMBER and isinstance(value, Integral) and not isinstance(value, bool):
        if abs(value) >= 10**_MOST_DIGITS and option.name != "order_seed":
            raise UsageError(f'"{name}" has more than {_MOST_DIGITS} digits', "give a smaller one")
        return int(value)
    if kind is Kind.DURATION and isinstance(value, Real) and not isinstance(value, bool):
        return _plain_seconds(name, value)
    if isinstance(value, str) and kind in (Kind.TEXT, Kind.DURATION, Kind.LIST):
        text = _text(name, value)
        if kind is Kind.DURATION:
            return units.parse_duration(text, option.flag)
        return grid.names(text, option.flag) if kind is Kind.LIST else text
    if kind is Kind.LIST and not isinstance(value, Mapping):
        return _several(name, value)
    texts = [value] if isinstance(value, str) and kind is not Kind.COMMAND else value
    if kind in (Kind.WORDS, Kind.PAIRS, Kind.COMMAND) and _are_texts(texts) and (texts or kind is not Kind.COMMAND):
        words = tuple(_text(name, word) for word in texts)
        return _pairs(option, words) if kind is Kind.PAIRS else words
    if kind is Kind.PAIRS and isinstance(value, Mapping):
        if unusable := [key for key in value if not key or "=" in key]:
            raise UsageError(
                f'"{name}" contains the invalid name "{unusable[0]}"', "use a name that is not empty and has no ="
            )
        return {_text(name, key): _values(f"{name}.{key}", entry) for key, entry in value.items()}
    raise UsageError(f'"{name}" is {_what(value)}, not {kind.value}', _remedy(name, kind, value))


def _pairs(option: Option, words: Sequence[str]) -> dict[str, str | None]:
    pairs: dict[str, str | None] = {}
    for key, value in (_pair(option, word) for word in words):
        if key in pairs:
            several = option.name == "set" and pairs[key] and value and pairs[key] != value
            raise UsageError(
                f"{option.flag} {key} is given twice",
                f"to sweep it, write --set {key}={pairs[key]},{value}" if several else "give it once",
            )
        pairs[key] = value
    return pairs


def _pair(option: Option, word: str) -> tuple[str, str | None]:
    key, equals, value = word.partition("=")
    if not key:
        raise UsageError(f'{option.flag} "{word}" is not NAME=VALUE', f"write {option.flag} NAME=VALUE")
    return key, value if equals else None


def _remedy(name: str, kind: Kind, value: Any) -> str:
    if kind is Kind.COMMAND and isinstance(value, str):
        try:
            words = shlex.split(value)
        except ValueError:
            words = []
        if words:
            quoted = ", ".join(f'"{word}"' for word in words)
            return f'write "command": [{quoted}]; to use a shell, write ["sh", "-c", "..."]'
    return f'"{name}" takes {kind.value}'


def _are_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(word, str) for word in value)


def _several(name: str, value: Any) -> tuple[str, ...]:
    values = value if isinstance(value, list | tuple) else [value]
    if not values:
        raise UsageError(f'"{name}" is an empty list', "give one value or more, or leave it out")
    texts = [_scalar(name, entry).strip() for entry in values]
    if "" in texts:
        raise UsageError(f'"{name}" has an empty value', "give one value or more, or leave it out")
    return tuple(dict.fromkeys(texts))


def _values(name: str, value: Any) -> str | tuple[str, ...]:
    return _several(name, value) if isinstance(value, list | tuple) else _scalar(name, value)


def _scalar(name: str, value: Any) -> str:
    if isinstance(value, str):
        return _text(name, value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Integral) or (isinstance(value, Real) and math.isfinite(value)):
        return str(value)
    raise UsageError(f'"{name}" contains {_what(value)}', "a value is a string, a number, true or false")


def _plain_seconds(name: str, value: Any) -> float:
    if not 0 <= value <= units.MAX_DURATION_S:
        raise UsageError(f'"{name}" is {value}, which is not a number of seconds', 'write it like 90, "15m" or "2h"')
    return float(value)


def _text(name: str, text: str) -> str:
    if "\0" in text:
        raise UsageError(f'"{name}" contains a NUL character', "leave it out")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f'"{name}" contains an unpaired surrogate (\\ud800 to \\udfff)', "write the whole character"
        ) from error
    return text


def _what(value: Any) -> str:
    """Describe a JSON value in words."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return f'the string "{value[:40]}"'
    if isinstance(value, int | float):
        return f"the number {value}" if math.isfinite(value) else "a number that is too large"
    return "an object" if isinstance(value, Mapping) else "a list" if value else "an empty list"
