"""Catalog of the workloads by name: every file of jobs/ with a `WORKLOAD` literal, and the user's own."""

from __future__ import annotations

import contextlib
import math
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from queue_runner.errors import MpsqError, UsageError, did_you_mean
from queue_runner.spec import Value
from queue_runner.units import BOOLEANS
from queue_runner.workloads.manifest import Param, Workload, read

T = TypeVar("T")


def workloads(folder: Path, user_folder: Path | None = None) -> list[Workload]:
    """Return every workload of the folder, and of the user's folder, sorted by name and framework.

    Raises: MpsqError like read, and for a user's workload that has the name of one of ours.
    """
    known = [w for file in sorted(folder.glob("*.py")) if (w := read(file)) is not None]
    if user_folder is not None:
        ours, files = {w.name for w in known}, {path.name for path in folder.iterdir()}
        for file in _scripts(user_folder):
            if (w := read(file)) is not None:
                _refuse_clash(w, ours, files, known)
                known.append(w)
    return sorted(known, key=lambda w: (w.name, w.framework))


def readable(user_folder: Path) -> list[Workload]:
    """Return the readable workloads among the user's files; a broken one raises only when it is requested."""
    known = []
    for file in _scripts(user_folder):
        with contextlib.suppress(MpsqError):
            known += [w] if (w := read(file)) is not None else []
    return known


def _scripts(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.py") if path.is_file() and not path.name.startswith("."))


def _refuse_clash(workload: Workload, ours: set[str], files: set[str], before: Sequence[Workload]) -> None:
    if workload.name in ours or workload.file.name in files:
        taken = f'the workload "{workload.name}"' if workload.name in ours else f"the file {workload.file.name}"
        raise MpsqError(f"{workload.file} would hide {taken} of mpsq", "give it another name")
    for other in before:
        if (other.name, other.framework) == (workload.name, workload.framework):
            both = f"{other.file.name} and {workload.file.name} in {workload.file.parent}"
            raise MpsqError(
                f'{both} are both "{workload.name}" in {workload.framework}',
                "give one of them another name",
            )


def files_of(user_folder: Path, script: str) -> list[Path]:
    """Return the user's files that a workload needs: its script, and those beside it that are not workloads; none for
    one of ours. Other workloads there do not affect it."""
    scripts = _scripts(user_folder)
    if script not in {path.name for path in scripts}:
        return []
    return [path for path in scripts if path.name == script or not _DECLARES.search(path.read_text("utf-8", "replace"))]


_DECLARES = re.compile(r"^WORKLOAD\b", re.MULTILINE)
_PLAIN = re.compile(r"\w+")


def preferred(named: Sequence[Workload]) -> Workload:
    """Return the one in torch of a workload's versions, else the first."""
    return next((w for w in named if w.framework == "torch"), named[0])


def _otherwise(name: str) -> str:
    """Return the hint for a name that is like no workload's: it may be a program, or a script."""
    lists = "for a list, run mpsq workloads"
    command = f"python {name}" if name.endswith(".py") else name if shutil.which(name) else ""
    return f"{lists}; a command goes after --: mpsq submit -- {command}" if command else lists


def find(folder: Path, name: str, framework: str | None = None, user_folder: Path | None = None) -> Workload:
    """Return the workload of this name; that of torch if no framework is given and several have it. A broken file in
    the user's folder does not affect ours.

    Raises: UsageError when there is none, with similar names.
    """
    if (workload := _by_file_name(folder, name, framework or "torch", user_folder)) is not None:
        return workload
    known = workloads(folder)
    if user_folder is not None and not any(w.name == name for w in known):
        known = workloads(folder, user_folder)
    named = [w for w in known if w.name == name]
    if not named:
        raise UsageError(f'unknown workload "{name}"', did_you_mean(name, {w.name for w in known}, _otherwise(name)))
    if framework is None:
        return preferred(named)
    for workload in named:
        if workload.framework == framework:
            return workload
    has = ", ".join(w.framework for w in named)
    raise UsageError(f'workload "{name}" has no version for framework "{framework}"', f"available: {has}")


def _by_file_name(folder: Path, name: str, framework: str, user_folder: Path | None) -> Workload | None:
    """Return the workload of the file that has the usual name, so that one file is read instead of all."""
    if not _PLAIN.fullmatch(name):
        return None
    files = [folder / f"{name}_{framework}.py"]
    if user_folder is not None and not any(folder.glob(f"{name}_*.py")):
        files.append(user_folder / files[0].name)
    known = (read(file) for file in files if file.is_file())
    return next((w for w in known if w is not None and (w.name, w.framework) == (name, framework)), None)


def config(workload: Workload, name: str) -> Mapping[str, Value]:
    """Return the preset of this name. Raises: UsageError."""
    if name not in workload.configs:
        hint = did_you_mean(name, workload.configs, f"available: {', '.join(workload.configs)}")
        raise UsageError(f'workload "{workload.name}" has no config "{name}"', hint)
    return workload.configs[name]


def value(workload: Workload, key: str, text: str) -> Value:
    """Return `text` converted to the type of the parameter `key`. Raises: UsageError for an unknown key, a wrong type,
    or a value that the workload does not accept."""
    param = named(workload, key)
    kind = type(param.default) if param.default is not None else str
    try:
        converted = BOOLEANS[text.lower()] if kind is bool else kind(text)
        if isinstance(converted, float) and not math.isfinite(converted):
            raise ValueError(text)
    except (ValueError, KeyError) as error:
        hint = f"write a second option, --set {text}: a comma separates values of {key}"
        hint = hint if text.partition("=")[0] in workload.params else _meaning(param)
        raise UsageError(f'{key}: "{text}" is not {_A[kind]}', hint) from error
    refuse(param, converted)
    return converted


def by_own_names(workload: Workload, settings: Mapping[str, T]) -> dict[str, T]:
    """Return settings by the workload's own keys: max_seq_length of run_glue.py is max_length of glue.

    Raises: UsageError where two names of one key are given.
    """
    by_key: dict[str, T] = {}
    for name, values in settings.items():
        key = workload.aliases.get(name, name)
        if key in by_key:
            twice = next(other for other in settings if other != name and workload.aliases.get(other, other) == key)
            raise UsageError(f"{twice} and {name} are the same setting", f"give {key} alone")
        by_key[key] = values
    return by_key


def named(workload: Workload, key: str) -> Param:
    """Return the parameter `key`. Raises: UsageError when there is none."""
    if key not in workload.params:
        otherwise = f"mpsq workloads {workload.name} lists its keys"
        hint = workload.gone.get(key) or did_you_mean(key, workload.params, otherwise)
        raise UsageError(f'workload "{workload.name}" has no key "{key}"', hint)
    return workload.params[key]


def refuse(param: Param, value: Value) -> None:
    """Raise UsageError for a value that the parameter does not accept."""
    message = param.wrong(value)
    if not message:
        return
    if param.choices:
        words = [str(word) for word in param.choices]
        raise UsageError(message, did_you_mean(str(value), words, f"{param.name} is {either(words)}"))
    if param.each_of:
        word = next(word for word in str(value).split("+") if word not in param.each_of)
        takes = f"{param.name} takes these, {param.takes()}"
        raise UsageError(message, did_you_mean(word, param.each_of, takes))
    raise UsageError(message, _meaning(param))


def _meaning(param: Param) -> str:
    unit = f" ({param.unit})" if param.unit else ""
    return f"{param.name}{unit}: {param.help}"


_A = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def either(words: Sequence[str]) -> str:
    """Join words like "train, eval or sample"."""
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
