"""The `WORKLOAD` literal of a workload's file, read by ast so that no framework is imported."""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from msgspec import Struct, field

from queue_runner.errors import MpsqError
from queue_runner.paths import jobs_dir
from queue_runner.spec import DTYPES, Value

Number = int | float
LIMITS = {
    "least": ("at least", "cannot be less than", operator.ge),
    "above": ("above", "must be more than", operator.gt),
    "most": ("at most", "cannot be more than", operator.le),
    "below": ("below", "must be less than", operator.lt),
}
"""Limits of a number in a literal: words for a list of keys, words for an error, and the test of a valid value."""


class Param(Struct, frozen=True):
    """One key of `--set`: its default (which gives its type), unit, meaning and accepted values."""

    name: str
    default: Value | None
    unit: str
    help: str
    choices: tuple[Value, ...] = ()
    """the accepted values; empty: not restricted"""
    each_of: tuple[str, ...] = ()
    """the accepted words of a text, joined by +; empty: not restricted"""
    limits: Mapping[str, Number] = field(default_factory=dict)
    """limits of a number, by the names of LIMITS"""
    path_or: tuple[str, ...] | None = None
    """the words accepted instead of a path; None: it is not a path"""
    multiple_of: str | None = None
    """the key whose value must divide this one; build() of the workload refuses others, --find-max skips them"""

    def takes(self) -> str:
        """Return the accepted values in words; empty if all of its type are."""
        if self.choices:
            return " | ".join(map(str, self.choices))
        if self.each_of:
            return f"+ between: {' '.join(self.each_of)}"
        if self.path_or is not None:
            return " | ".join([*filter(None, self.path_or), "PATH"])
        return " and ".join(f"{LIMITS[name][0]} {limit}" for name, limit in self.limits.items())

    def wrong(self, value: Value) -> str:
        """Return the error of a value of its type, as a sentence; empty if it is valid."""
        if self.choices and value not in self.choices:
            return f'{self.name} cannot be "{value}"'
        for word in str(value).split("+") if self.each_of else ():
            if word not in self.each_of:
                return f'{self.name}={value}: it cannot hold "{word}"'
        for name, limit in self.limits.items():
            if not LIMITS[name][2](value, limit):
                return f"{self.name}={value}: it {LIMITS[name][1]} {limit}"
        return ""


class Workload(Struct, frozen=True):
    """A workload as declared by its job file."""

    name: str
    framework: str
    about: str
    source: str
    params: Mapping[str, Param]
    configs: Mapping[str, Mapping[str, Value]]
    file: Path
    dtypes: Sequence[str] = DTYPES
    gone: Mapping[str, str] = field(default_factory=dict)
    """Keys known from guides and other programs, and their replacements here."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Names of other programs for keys, and the keys."""
    prepares: bool = False
    """Whether it computes, in a process before the run, what the run must not measure (jobs/harness/prepared.py)."""
    gpus_divide: str | None = None
    """The key of params whose batches several GPUs share; None: it trains in one process."""


def read(file: Path) -> Workload | None:
    """Return the workload of a file; None if the file has no WORKLOAD literal.

    Raises: MpsqError when the literal exists but cannot be read.
    """
    literal = _literal(file)
    if literal is None:
        return None
    return _built(file, _stamp(file), _stamp(_other(literal, file)) if "like" in literal else None)


@functools.cache
def _built(file: Path, _ours: tuple[int, int] | None, _theirs: tuple[int, int] | None) -> Workload:
    """Return the workload, cached as long as its files are unchanged."""
    try:
        return _workload(_inherited(_literal(file) or {}, file), file)
    except _Wrong as error:
        hint = "docs/workloads.md lists what a key of params can have: choices, least, most, ..."
        raise MpsqError(f"WORKLOAD in {file.name}: {error}", hint) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(file, error) from error


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        state = file.stat()
    except OSError:
        return None
    return state.st_mtime_ns, state.st_size


def _other(literal: Mapping[str, Any], file: Path) -> Path:
    return file.with_name(f"{literal['like']}.py")


def _unreadable(file: Path, error: Exception) -> MpsqError:
    what = str(error).split(": <ast.")[0]  # its position, without a memory address
    return MpsqError(
        f"WORKLOAD in {file.name} cannot be read: {what}",
        "it must be a plain literal with name, framework, about, source, params and configs",
    )


def _inherited(literal: Mapping[str, Any], file: Path) -> Mapping[str, Any]:
    """Return a literal in full, with the one it inherits from ("like")."""
    if "like" not in literal:
        return resolve(literal)
    other = _other(literal, file)
    theirs = _literal(other) if other.is_file() else None
    if theirs is None or "like" in theirs:
        raise MpsqError(
            f"WORKLOAD in {file.name} refers to {other.name}, which has no complete WORKLOAD",
            f"refer to a workload in {file.parent}",
        )
    return resolve(literal, theirs)


def resolve(ours: Mapping[str, Any], theirs: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """Return a literal in full: a bare value in params is the default of a key that jobs/harness/ declares.

    Ours overrides `theirs` per config, per key of params and per word of a key, less the keys in our "without";
    "gpus_divide" belongs to the code and is not inherited.
    jobs/harness/command_line.py does the same for a running workload.
    """
    out, params, loop_keys = ours.get("without", ()), dict[str, Any](), _loop_keys()
    for key, entry in (*theirs.get("params", {}).items(), *ours.get("params", {}).items()):
        if not isinstance(entry, Mapping):
            entry = {**loop_keys.get(key, {}), **params.get(key, {}), "default": entry}
        params[key] = {**params.get(key, {}), **entry}
    both = {**{key: value for key, value in theirs.items() if key != "gpus_divide"}, **ours}
    both["params"] = {key: entry for key, entry in params.items() if key not in out}
    both["configs"] = {
        name: {key: value for key, value in config.items() if key not in out}
        for name, config in {**theirs.get("configs", {}), **ours.get("configs", {})}.items()
    }
    return both


@functools.cache
def _loop_keys() -> Mapping[str, Any]:
    """Return the declarations of the keys that the harness reads, from its source."""
    return _assigned(jobs_dir() / "harness" / "__init__.py", "LOOP_KEYS") or {}


def _literal(file: Path) -> dict[str, Any] | None:
    return _parsed(file, _stamp(file))


@functools.cache
def _parsed(file: Path, _as_of: tuple[int, int] | None) -> dict[str, Any] | None:
    """Parse a file, cached while it is unchanged: a thousand jobs of one submission request the same."""
    return _assigned(file, "WORKLOAD")


def _assigned(file: Path, name: str) -> dict[str, Any] | None:
    """Return the literal that a module assigns to `name`; None if it assigns none. Raises: MpsqError."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError) as error:
        what = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) and error.lineno else str(error)
        raise MpsqError(
            f"{file.name} is not Python: {what}", f"fix the file or remove it from {file.parent}"
        ) from error
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(isinstance(t, ast.Name) and t.id == name for t in targets) and getattr(node, "value", None):
            try:
                return dict(ast.literal_eval(node.value))  # type: ignore[attr-defined]
            except (ValueError, TypeError, AttributeError) as error:
                raise _unreadable(file, error) from error
    return None


def _workload(literal: Mapping[str, Any], file: Path) -> Workload:
    params = {name: _param(name, entry) for name, entry in literal.get("params", {}).items()}
    configs = literal.get("configs", {})
    for param in params.values():
        if param.multiple_of is not None and type(getattr(params.get(param.multiple_of), "default", None)) is not int:
            raise _Wrong(
                f"{param.name}: multiple_of must name a key whose value is a whole number, not {param.multiple_of}"
            )
    for name, values in configs.items():
        _refuse_wrong(params, values, f"config {name}")
    for name, values in literal.get("modes", {}).items():
        _refuse_wrong(params, values, f"mode {name}")
    return Workload(
        name=literal["name"],
        framework=literal["framework"],
        about=literal.get("about", ""),
        source=literal.get("source", ""),
        params=params,
        configs=configs,
        file=file,
        dtypes=tuple(literal.get("dtypes", DTYPES)),
        gone=literal.get("gone", {}),
        aliases=_aliases(literal.get("aliases", {}), params),
        prepares=literal.get("prepares") is True,
        gpus_divide=_divided(literal, params),
    )


def _divided(literal: Mapping[str, Any], params: Mapping[str, Param]) -> str | None:
    """Return "gpus_divide" of a literal."""
    key = literal.get("gpus_divide")
    if key is not None and type(getattr(params.get(key), "default", None)) is not int:
        raise _Wrong(f"gpus_divide must name a key whose value is a whole number, not {key}")
    return key


def _aliases(aliases: Mapping[str, str], params: Mapping[str, Param]) -> Mapping[str, str]:
    for alias, key in aliases.items():
        if alias in params or key not in params:
            raise _Wrong(f"alias {alias} of {key}: {alias} must be a new name, and {key} a key of params")
    return aliases


_LISTS = ("choices", "each_of", "path_or")


class _Wrong(ValueError):
    """The declaration of a key of params is invalid."""


def _param(name: str, entry: Mapping[str, Any]) -> Param:
    if not isinstance(entry, Mapping) or "default" not in entry:
        raise _Wrong(f"{name} has no default")
    default = entry["default"]
    if not (default is None or isinstance(default, bool | int | float | str)):
        raise _Wrong(f"{name}: its default is not a string, a number, true or false")
    for word in ("each_of", "path_or"):
        if entry.get(word) is not None and not isinstance(default, str):
            raise _Wrong(f"{name}: {word} is for strings, but the default of {name} is {default!r}")
    choices, each_of, words = (_several(name, word, entry.get(word), default) for word in _LISTS)
    limits = {word: entry[word] for word in LIMITS if entry.get(word) is not None}
    if limits and (isinstance(default, bool) or not isinstance(default, int | float)):
        raise _Wrong(f"{name}: {next(iter(limits))} applies only to numbers, but the default of {name} is {default!r}")
    for word, limit in limits.items():
        if isinstance(limit, bool) or not isinstance(limit, int | float):
            raise _Wrong(f"{name}: {word} {limit!r} is not a number")
    param = Param(
        name,
        default,
        entry.get("unit", ""),
        entry.get("help", ""),
        choices,
        each_of,
        limits,
        words if "path_or" in entry else None,
        entry.get("multiple_of"),
    )
    _refuse_wrong({name: param}, {name: default}, "its default")
    return param


def _several(name: str, word: str, values: Any, default: Value | None) -> tuple[Any, ...]:
    """Return a list of values of the default's type. A text is rejected: it would be read as a list of letters."""
    if values is None:
        return ()
    kind = type(default) if default is not None else str
    if not isinstance(values, list | tuple) or not (values or word == "path_or"):
        raise _Wrong(f"{name}: {word} is not a list of values")
    for value in values:
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise _Wrong(f"{name}: {word} has {value!r}, which is not of the type of its default {default!r}")
    return tuple(kind(value) for value in values)


def _refuse_wrong(params: Mapping[str, Param], values: Mapping[str, Value | None], where: str) -> None:
    for key, value in values.items():
        if value is not None and key in params and (error := params[key].wrong(value)):
            raise _Wrong(f"{where}: {error}")
