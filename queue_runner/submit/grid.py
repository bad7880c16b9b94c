"""Grids: the cells of a submission, from the words of its options."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Container, Mapping, Sequence
from typing import TypeVar

from queue_runner.errors import UsageError, did_you_mean
from queue_runner.spec import COMPILE_MODES, DTYPES
from queue_runner.submit import run_order

T = TypeVar("T")


def product(axes: Mapping[str, Sequence[T]]) -> list[dict[str, T]]:
    """Return every combination of the axes, the last axis varying fastest. Raises: UsageError for too many."""
    if (count := math.prod(map(len, axes.values()))) > run_order.MAX_RUNS:
        raise UsageError(f"{count:,} jobs are too many", f"a submission can have at most {run_order.MAX_RUNS:,} runs")
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def devices(words: Sequence[str]) -> Sequence[str]:
    """Return the devices unchanged. Raises: UsageError for anything but cpu, cuda, cuda:N, mps, auto."""
    for word in words:
        name, colon, index = word.partition(":")
        if name not in ("cpu", "cuda", "mps", "auto") or (colon and (name != "cuda" or not index.isdecimal())):
            raise UsageError(f'unknown device "{word}"', "use cpu, cuda or cuda:1 (NVIDIA), mps (Apple) or auto")
    return words


def compiles(words: Sequence[str]) -> list[bool | str]:
    """Return off, on and both (or True, False) as booleans, and modes of torch.compile as their names.

    Raises: UsageError.
    """
    meaning: dict[str, list[bool | str]] = {
        **{"off": [False], "false": [False], "on": [True], "true": [True], "both": [False, True], "default": [True]},
        **{mode: [mode] for mode in COMPILE_MODES},
        "max-autotune-no-cudagraphs": ["no-cudagraphs"],
    }
    for word in words:
        if word.lower() not in meaning:
            known = f"use off, on, both, or a mode of torch.compile: {', '.join(COMPILE_MODES)}"
            raise UsageError(f'--compile cannot be "{word}"', did_you_mean(word.lower(), meaning, known))
    return list(dict.fromkeys(mode for word in words for mode in meaning[word.lower()]))


def dtypes(words: Sequence[str], known: Sequence[str] = DTYPES) -> Sequence[str]:
    """Return the types unchanged. Raises: UsageError for an unknown one."""
    for word in words:
        if word not in known:
            raise UsageError(f'unknown dtype "{word}"', did_you_mean(word, known, f"use one of {', '.join(known)}"))
    return words


def names(text: str, option: str) -> tuple[str, ...]:
    """Return comma-separated names without duplicates, in order. Raises: UsageError when one is empty."""
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        several = f"{option}{'=' if ' ' in option else ' '}a,b"  # --set lr=a,b
        raise UsageError(f'{option} "{text}" has an empty value', f"give one value, or several as {several}")
    return tuple(dict.fromkeys(words))


OPTIONS = ("device", "compile", "dtype", "config")
"""Axes of a command's grid that are not settings: reports handle these separately."""
_NAME = r"[A-Za-z_][\w.-]*"
_PLACEHOLDER = re.compile(rf"(?<![{{$%@])\{{({_NAME})\}}")
_NEEDS_VALUE = re.compile(
    rf"--[\w-]+=\S*|[\w.]+=\{{+{_NAME}\}}+|\S*\{{(?:{'|'.join(OPTIONS)})\}}\S*",
)


def needs_value(word: str) -> bool:
    """Return whether braces in a word of a command ask for a value even where no option gives one: in `--lr={lr}` or
    `lr={lr}`, and in a word with `{device}`. Other words run as typed, as awk's `{print}`."""
    return _NEEDS_VALUE.fullmatch(word) is not None


def fill(word: str, cell: Mapping[str, str], later: str = "") -> str:
    """Return a word of a command with the values of the cell: `{key}` is replaced, once; `{{key}}` becomes `{key}`, but
    for the key that is filled `later`; every other brace stays, as those of JSON and of awk. Without a value, a word
    stays as it is unless it needs one."""
    if "{" not in word or not (cell or needs_value(word)):
        return word
    keys = "|".join([*map(re.escape, cell), _NAME])

    def replaced(match: re.Match[str]) -> str:
        if match[1]:
            return match[0] if match[1] == later else f"{{{match[1]}}}"
        return cell.get(match[2], match[0])

    return re.sub(rf"\{{\{{({keys})\}}\}}?|\{{({keys})\}}", replaced, word)


def uses(word: str, key: str) -> bool:
    """Return whether a word of a command has a place for the value of the key."""
    return fill(word, {key: ""}) != fill(word, {key: " "})


def refuse_unfilled(
    words: Sequence[str], keys: set[str], where: str = "the command", known: Container[str] | None = None
) -> None:
    """Raise UsageError for a placeholder that none of these keys fills; without keys, in words that need a value. With
    `known` names, all others stay as typed."""
    for word in words:
        names = _PLACEHOLDER.findall(word) if keys or needs_value(word) else []
        for name in names:
            if name not in keys and name != "cwd" and (known is None or name in known):
                option = f"--{name} VALUE" if name in OPTIONS else f"--set {name}=VALUE"
                raise UsageError(
                    f"{where} contains {{{name}}}, but no option sets its value",
                    did_you_mean(name, keys, f"add {option}, or write {{{{{name}}}}} for the literal text {{{name}}}"),
                )
