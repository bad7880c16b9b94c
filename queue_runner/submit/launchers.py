"""Analysis of training command lines: number of processes, and removed flags of a Trainer.

Only certain cases are refused or warned about. The command itself is never changed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath

from queue_runner.errors import UsageError

_LAUNCHERS = {
    **dict.fromkeys(
        ("torchrun", "torch.distributed.run", "torch.distributed.launch"), ("--nproc_per_node", "--nnodes")
    ),
    "accelerate": ("--num_processes", "--num_machines"),
}
"""Programs and modules (`python -m`) that start several processes on a Mac, and the options for their number."""
_SEVERAL = re.compile(r"(?:\d+:)?(?:0*[2-9]|0*[1-9]\d+|cpu)")
"""A number above 1; torchrun also takes a range (1:4) and cpu, one for each core."""
REMOVED = {
    "use_mps_device": "leave it out; the Trainer uses mps automatically where it is available (not with --use_cpu)",
    "evaluation_strategy": "use --eval_strategy",
    "per_gpu_train_batch_size": "use --per_device_train_batch_size",
    "per_gpu_eval_batch_size": "use --per_device_eval_batch_size",
    "overwrite_output_dir": "leave it out",
}
"""Flags in guides that transformers 5.23 no longer has, and what to do instead. No other program uses these names."""


def removed(argv: Sequence[str]) -> list[str]:
    """Return a sentence for each Trainer flag in this command that transformers 5 has removed."""
    flags = {word[2:].partition("=")[0].replace("-", "_") for word in _words(argv) if word.startswith("--")}
    return [
        f"--{flag} was removed in transformers 5, whose Trainer fails on it: {REMOVED[flag]}"
        for flag in sorted(flags & REMOVED.keys())
    ]


def several(argv: Sequence[str]) -> str | None:
    """Return how a command starts several training processes, such as `torchrun --nproc_per_node=4`; None if it does
    not or this is uncertain."""
    words = list(_words(argv))
    for at, word in enumerate(words):
        name = PurePath(word).name
        if name not in _LAUNCHERS or (name == "accelerate" and words[at + 1 : at + 2] != ["launch"]):
            continue
        for option, value in _options(words[at + 1 :]):
            if option == "--multi_gpu":
                return f"{name} launch --multi_gpu"
            if option in _LAUNCHERS[name] and _SEVERAL.fullmatch(value):
                return f"{name} {option}={value}"
    return None


def refuse_several_on_mps(argv: Sequence[str], device: str | None, environment: Mapping[str, str]) -> None:
    """Raise UsageError for a launch of several processes that would train on Apple's GPU."""
    if device != "mps":
        return
    how = several(argv)
    if how is None and _SEVERAL.fullmatch(size := environment.get("WORLD_SIZE", "")):
        how = f"WORLD_SIZE={size}"
    if how is not None:
        raise UsageError(
            f"{how}: several processes cannot train together on mps, as neither gloo nor nccl supports its tensors",
            "start the program without a launcher, in one process; --device cpu supports several, through gloo",
        )


def _words(argv: Sequence[str]) -> Iterator[str]:
    """Yield the words of a command, and of the one inside `sh -c "..."`."""
    for word in argv:
        try:
            yield from shlex.split(word) if " " in word else (word,)
        except ValueError:  # unterminated quotes
            yield from word.split()


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield a launcher's own options with their values, up to the program that it starts."""
    for at, word in enumerate(words):
        if word.endswith(".py") or word in ("-m", "--module") or PurePath(word).name.startswith("python"):
            return
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            yield "--" + name[2:].replace("-", "_"), value if equals else next(iter(words[at + 1 : at + 2]), "")
