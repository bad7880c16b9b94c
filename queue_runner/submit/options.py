"""Options of a submission as given: on a command line, in a line of a file, or in Python.

All become the words of a command line first, and these a Request: what one understands and checks, all do.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

from queue_runner import units
from queue_runner.errors import UsageError, did_you_mean
from queue_runner.submit.request import OPTIONS, Kind, Option, Request

Said = Mapping[str, Any]
"""Values by option name, as words of a command line; an option that was not given is absent."""

OF_THE_WHOLE = ("order_seed", "until_valid")
"""Options that only the whole file can have, not a single job."""
_BY_FIELD = {option.field: option for option in OPTIONS.values()}
_MOST_DIGITS = 18


def request(said: Said, title: str, **fields: Any) -> Request:
    """Return the request that these options describe; `fields` are those of Request that no option sets.

    Raises: UsageError for an invalid time or mode.
    """
    given = {OPTIONS[name].field: OPTIONS[name].read(value) for name, value in said.items()}
    return Request(**given, title=title, **fields)


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
        elif OPTIONS[name].kind is Kind.PAIRS and name in merged:
            own = {pair.partition("=")[0] for pair in value}
            merged[name] = [*(pair for pair in merged[name] if pair.partition("=")[0] not in own), *value]
        else:
            merged[name] = value
    return merged


def of_json(item: Mapping[str, Any], *, whole: bool = False) -> dict[str, Any]:
    """Return the options in a JSON object, or in the keyword arguments of Python; None for null, as if not given.

    `whole` allows the options that a single job of a file cannot have.

    Raises: UsageError, which names the key, for an unknown key or a value of the wrong kind.
    """
    found: dict[str, Any] = {}
    for key, value in item.items():
        option = _named(key)
        if option.name in OF_THE_WHOLE and not whole:
            raise UsageError(
                f'"{key}" applies to the whole file, not to a single job', f"give {option.flag} on the command line"
            )
        if option.name in found:
            raise UsageError(f'"{key}" is given twice', f'"{option.name}" once is enough')
        found[option.name] = None if value is None else _words(option, value)
    return found


def _named(key: str) -> Option:
    """Return an option by its name or that of its field: both `tag` and `tags`."""
    name = key.replace("-", "_")
    option = OPTIONS.get(name) or _BY_FIELD.get(name)
    if option is None:
        known = [name for name in OPTIONS if name not in OF_THE_WHOLE]
        raise UsageError(f'no option "{key}"', did_you_mean(name, known, f"the options are {', '.join(known)}"))
    return option


def _words(option: Option, value: Any) -> Any:
    name, kind = option.name, option.kind
    if isinstance(value, bool) and (kind in (Kind.FLAG, Kind.SWITCH) or option.convert is not None):
        return value
    if kind is Kind.NUMBER and isinstance(value, Integral) and not isinstance(value, bool):
        if abs(value) >= 10**_MOST_DIGITS:
            raise UsageError(f'"{name}" is a number of more than {_MOST_DIGITS} digits', "give a smaller one")
        return int(value)
    if kind is Kind.TIME and isinstance(value, Real) and not isinstance(value, bool):
        return _plain_seconds(name, value)
    if isinstance(value, str) and kind in (Kind.TEXT, Kind.TIME, Kind.LIST):
        return _text(name, value)
    if kind is Kind.LIST and not isinstance(value, Mapping):
        return _joined(name, value)
    if kind.repeatable and (isinstance(value, str) or _are_texts(value)):
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
    return isinstance(value, list | tuple) and all(isinstance(word, str) for word in value)


def _joined(name: str, value: Any) -> str:
    """Return a value, or the values of a sweep separated by commas: `--set lr=0.1,0.2`."""
    if not isinstance(value, list | tuple):
        return _scalar(name, value)
    words = [_scalar(name, one) for one in value]
    for word in words:
        if "," in word:
            raise UsageError(
                f'"{name}" holds "{word}", and its comma would split it in two', "give it alone, as a text"
            )
    return ",".join(words)


def _scalar(name: str, value: Any) -> str:
    if isinstance(value, str):
        return _text(name, value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Integral) or (isinstance(value, Real) and math.isfinite(value)):
        return str(value)
    raise UsageError(f'"{name}" holds {_what(value)}', "a value is a text, a number, true or false")


def _plain_seconds(name: str, value: Any) -> str:
    if not 0 <= value <= units.MAX_DURATION_S:
        raise UsageError(f'"{name}" is {value}, which is not a number of seconds', 'write it like 90, "15m" or "2h"')
    return f"{value:.9f}"


def _text(name: str, text: str) -> str:
    if "\0" in text:
        raise UsageError(f'"{name}" holds a NUL character', "leave it out")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f'"{name}" contains half a character (\\ud800 to \\udfff)', "write the whole character"
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
