"""The workloads: every file of jobs/ with a `WORKLOAD` literal, read by ast so that no framework is imported."""

from __future__ import annotations

import ast
import contextlib
import difflib
import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from queue_runner.errors import MpsqError, UsageError
from queue_runner.spec import Value

DTYPES = ("fp32", "bf16", "fp16")
"""What a workload computes in unless it says otherwise ("dtypes" in its literal)."""


@dataclass(frozen=True)
class Param:
    """One key of `--set`: its default (whose type it has), unit and meaning."""

    name: str
    default: Value | None
    unit: str
    help: str


@dataclass(frozen=True)
class Workload:
    """What a job file says of itself."""

    name: str
    framework: str
    about: str
    source: str
    params: Mapping[str, Param]
    configs: Mapping[str, Mapping[str, Value]]
    file: Path
    dtypes: Sequence[str] = DTYPES
    gone: Mapping[str, str] = field(default_factory=dict)
    """Keys that guides and other programs know, and what to write here instead."""


def read(file: Path) -> Workload | None:
    """The workload in one file; None where the file has no WORKLOAD literal.

    Raises: MpsqError when the literal is there but cannot be read.
    """
    literal = _literal(file)
    if literal is None:
        return None
    return _built(file, _stamp(file), _stamp(_other(literal, file)) if "like" in literal else None)


@functools.cache
def _built(file: Path, _ours: tuple[int, int] | None, _theirs: tuple[int, int] | None) -> Workload:
    """A workload is made once while the files that it is made of stay as they are."""
    try:
        return _workload(_whole(_literal(file) or {}, file), file)
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
    what = str(error).split(": <ast.")[0]  # where it is, without an address in memory
    return MpsqError(
        f"WORKLOAD in {file.name} cannot be read: {what}",
        "it must be a plain literal with name, framework, about, source, params and configs",
    )


def _whole(literal: Mapping[str, Any], file: Path) -> Mapping[str, Any]:
    """A literal with what it takes from another ("like")."""
    if "like" not in literal:
        return literal
    other = _other(literal, file)
    theirs = _literal(other) if other.is_file() else None
    if theirs is None or "like" in theirs:
        raise MpsqError(
            f"WORKLOAD in {file.name} is like {other.name}, which has no whole one", f"name a workload of {file.parent}"
        )
    return joined(theirs, literal)


def joined(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """Another workload's literal with ours over it, key by key in params and configs, and without the keys that we
    leave out. jobs/harness/workload.py does the same for a workload that runs."""
    out = ours.get("without", ())
    both = {**theirs, **ours}
    for part in ("params", "configs"):
        both[part] = {**theirs.get(part, {}), **ours.get(part, {})}
    both["params"] = {key: value for key, value in both["params"].items() if key not in out}
    both["configs"] = {
        name: {key: value for key, value in config.items() if key not in out}
        for name, config in both["configs"].items()
    }
    return both


def _literal(file: Path) -> dict[str, Any] | None:
    state = file.stat()
    return _parsed(file, state.st_mtime_ns, state.st_size)


@functools.cache
def _parsed(file: Path, _mtime_ns: int, _size_bytes: int) -> dict[str, Any] | None:
    """A file is parsed once while it stays as it is: a thousand jobs of one submission ask for the same."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError) as error:
        what = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) and error.lineno else str(error)
        raise MpsqError(
            f"{file.name} is not Python: {what}", f"mend the file or take it out of {file.parent}"
        ) from error
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(isinstance(t, ast.Name) and t.id == "WORKLOAD" for t in targets) and getattr(node, "value", None):
            try:
                return dict(ast.literal_eval(node.value))  # type: ignore[attr-defined]
            except (ValueError, TypeError, AttributeError) as error:
                raise _unreadable(file, error) from error
    return None


def _workload(literal: Mapping[str, Any], file: Path) -> Workload:
    params = {
        name: Param(name, entry["default"], entry.get("unit", ""), entry.get("help", ""))
        for name, entry in literal.get("params", {}).items()
    }
    return Workload(
        name=literal["name"],
        framework=literal["framework"],
        about=literal.get("about", ""),
        source=literal.get("source", ""),
        params=params,
        configs=literal.get("configs", {}),
        file=file,
        dtypes=tuple(literal.get("dtypes", DTYPES)),
        gone=literal.get("gone", {}),
    )


def workloads(folder: Path, own: Path | None = None) -> list[Workload]:
    """Every workload of the folder, and of the user's `own`, by name and framework.

    Raises: MpsqError as read, and for one of the user's that takes the name of one of ours.
    """
    found = [w for file in sorted(folder.glob("*.py")) if (w := read(file)) is not None]
    if own is not None:
        ours, files = {w.name for w in found}, {path.name for path in folder.iterdir()}
        for file in _scripts(own):
            if (w := read(file)) is not None:
                _refuse_clash(w, ours, files, found)
                found.append(w)
    return sorted(found, key=lambda w: (w.name, w.framework))


def readable(own: Path) -> list[Workload]:
    """The workloads among the user's files that can be read; a broken one is for whoever asks for it."""
    found = []
    for file in _scripts(own):
        with contextlib.suppress(MpsqError):
            found += [w] if (w := read(file)) is not None else []
    return found


def _scripts(own: Path) -> list[Path]:
    return sorted(path for path in own.glob("*.py") if path.is_file() and not path.name.startswith("."))


def _refuse_clash(one: Workload, ours: set[str], files: set[str], before: Sequence[Workload]) -> None:
    if one.name in ours or one.file.name in files:
        taken = f'the workload "{one.name}"' if one.name in ours else f"the file {one.file.name}"
        raise MpsqError(f"{one.file} would take the place of {taken} of mpsq", "give it another name")
    for other in before:
        if (other.name, other.framework) == (one.name, one.framework):
            raise MpsqError(
                f'{other.file.name} and {one.file.name} in {one.file.parent} are both "{one.name}" in {one.framework}',
                "give one of them another name",
            )


def files_of(own: Path, script: str) -> list[Path]:
    """What a workload of the user's needs besides ours: its file, and those beside it that are no workloads; nothing
    for one of ours. Another workload there changes nothing for it."""
    scripts = _scripts(own)
    if script not in {path.name for path in scripts}:
        return []
    return [path for path in scripts if path.name == script or not _DECLARES.search(path.read_text("utf-8", "replace"))]


_DECLARES = re.compile(r"^WORKLOAD\b", re.MULTILINE)


def find(folder: Path, name: str, framework: str | None = None, *, own: Path | None = None) -> Workload:
    """The workload of this name; torch where no framework is named and several offer it. What is wrong with a file in
    the user's `own` folder does not keep ours from being found.

    Raises: UsageError when there is none, with what is close.
    """
    known = workloads(folder)
    if own is not None and not any(w.name == name for w in known):
        known = workloads(folder, own)
    named = [w for w in known if w.name == name]
    if not named:
        raise UsageError(
            f'no workload "{name}"', did_you_mean(name, {w.name for w in known}, "mpsq workloads lists them")
        )
    if framework is None:
        return next((w for w in named if w.framework == "torch"), named[0])
    for workload in named:
        if workload.framework == framework:
            return workload
    has = ", ".join(w.framework for w in named)
    raise UsageError(f'workload "{name}" has no version in "{framework}"', f"it has: {has}")


def config(workload: Workload, name: str) -> Mapping[str, Value]:
    """The preset of this name. Raises: UsageError."""
    if name not in workload.configs:
        hint = did_you_mean(name, workload.configs, f"it has: {', '.join(workload.configs)}")
        raise UsageError(f'workload "{workload.name}" has no config "{name}"', hint)
    return workload.configs[name]


def value(workload: Workload, key: str, text: str) -> Value:
    """`text` as the type of the parameter `key`. Raises: UsageError for an unknown key or a wrong type."""
    param = workload.params.get(key)
    if param is None:
        otherwise = f"mpsq workloads {workload.name} lists its keys"
        hint = workload.gone.get(key) or did_you_mean(key, workload.params, otherwise)
        raise UsageError(f'workload "{workload.name}" has no key "{key}"', hint)
    kind = type(param.default) if param.default is not None else str
    try:
        if kind is bool:
            return _boolean(text)
        return kind(text)
    except ValueError as error:
        unit = f" ({param.unit})" if param.unit else ""
        raise UsageError(f'{key}={text}: "{text}" is not {_A[kind]}', f"{key}{unit}: {param.help}") from error


_A = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def _boolean(text: str) -> bool:
    words = {"true": True, "on": True, "yes": True, "1": True, "false": False, "off": False, "no": False, "0": False}
    if text.lower() not in words:
        raise ValueError(text)
    return words[text.lower()]


def did_you_mean(word: str, known: Sequence[str] | set[str] | Mapping[str, object], otherwise: str) -> str:
    """A hint that names the nearest known word, and where the others are listed."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f'did you mean "{near[0]}"? {otherwise}' if near else otherwise
