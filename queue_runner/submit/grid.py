"""Grids: the cells of a submission, from the words of its options."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

from queue_runner.errors import UsageError, did_you_mean
from queue_runner.spec import COMPILE_MODES
from queue_runner.workloads.manifest import DTYPES

T = TypeVar("T")


def product(axes: Mapping[str, Sequence[T]]) -> list[dict[str, T]]:
    """Return every combination of the axes, the last axis varying fastest."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def devices(text: str) -> list[str]:
    """Return `cpu,mps` as a list. Raises: UsageError for anything but cpu, cuda, cuda:N, mps, auto."""
    return [_device(word) for word in names(text, "--device")]


def _device(word: str) -> str:
    name, colon, index = word.partition(":")
    if name not in ("cpu", "cuda", "mps", "auto") or (colon and (name != "cuda" or not index.isdecimal())):
        raise UsageError(f'unknown device "{word}"', "use cpu, cuda or cuda:1 (NVIDIA), mps (Apple) or auto")
    return word


def compiles(text: str) -> list[bool | str]:
    """Return off|on|both (or True, False), or a list of them, as booleans, and modes of torch.compile as their names.

    Raises: UsageError.
    """
    meaning: dict[str, list[bool | str]] = {
        **{"off": [False], "false": [False], "on": [True], "true": [True], "both": [False, True], "default": [True]},
        **{mode: [mode] for mode in COMPILE_MODES},
        "max-autotune-no-cudagraphs": ["no-cudagraphs"],
    }
    found: list[bool | str] = []
    for word in names(text, "--compile"):
        if word.lower() not in meaning:
            known = f"use off, on, both, or a mode of torch.compile: {', '.join(COMPILE_MODES)}"
            raise UsageError(f'--compile cannot be "{word}"', did_you_mean(word.lower(), meaning, known))
        found += meaning[word.lower()]
    return list(dict.fromkeys(found))


def dtypes(text: str, known: Sequence[str] = DTYPES) -> list[str]:
    """Return `fp32,bf16` as a list. Raises: UsageError for an unknown type."""
    for word in (found := names(text, "--dtype")):
        if word not in known:
            raise UsageError(f'unknown dtype "{word}"', did_you_mean(word, known, f"use one of {', '.join(known)}"))
    return found


def names(text: str, option: str) -> list[str]:
    """Return comma-separated names as a list without duplicates, in order. Raises: UsageError when one is empty."""
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise UsageError(f'{option} "{text}" has an empty value', f"give one value, or several as {option} a,b")
    return list(dict.fromkeys(words))


def fill(word: str, cell: Mapping[str, str]) -> str:
    """Return a word of a command with the values of the cell: `{key}` is replaced, once; `{{key}}` becomes `{key}`;
    every other brace stays, as those of JSON and of awk."""
    if not cell or "{" not in word:
        return word
    keys = "|".join(map(re.escape, cell))
    return re.sub(
        rf"\{{\{{({keys})\}}\}}?|\{{({keys})\}}",
        lambda found: f"{{{found[1]}}}" if found[1] else cell[found[2]],
        word,
    )


def uses(word: str, key: str) -> bool:
    """Return whether a word of a command has a place for the value of the key."""
    return fill(word, {key: ""}) != fill(word, {key: " "})
