"""Analysis of training command lines: number of processes, and removed flags of a Trainer.

Only what is recognized with certainty is refused or warned about. The command itself is never changed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath

from queue_runner.errors import UsageError

_TORCHRUN = ("--nproc_per_node", "--nnodes")
_MPI = ("-np", "-n", "-c", "--np", "--n")
_LAUNCHERS = {
    "torchrun": _TORCHRUN,
    "torch.distributed.run": _TORCHRUN,
    "torch.distributed.launch": _TORCHRUN,
    "accelerate": ("--num_processes", "--num_machines"),
    "mpirun": _MPI,
    "mpiexec": _MPI,
}
"""Programs and modules (`python -m`) that start several processes on a Mac, and the options for their number."""
_SEVERAL = re.compile(r"(?:\d+:)?(?:0*[2-9]|0*[1-9]\d+|cpu)")
"""A number above 1; torchrun also takes a range (1:4) and cpu, one for each core."""
_MODULES = {
    "torchrun": "torch.distributed.run",
    "accelerate": "accelerate.commands.launch, without the word launch,",
    "deepspeed": "deepspeed.launcher.runner",
}
"""The same launchers for `python -m`."""

GONE = {
    "use_mps_device": "remove it: the Trainer uses mps automatically where it is available (not with --use_cpu)",
    "no_cuda": "--use_cpu",
    "evaluation_strategy": "--eval_strategy",
    "per_gpu_train_batch_size": "--per_device_train_batch_size",
    "per_gpu_eval_batch_size": "--per_device_eval_batch_size",
    "overwrite_output_dir": "remove it",
    "logging_dir": "remove it, and set TENSORBOARD_LOGGING_DIR for TensorBoard",
    "save_safetensors": "remove it: weights are always saved this way",
    "include_tokens_per_second": "--include_num_input_tokens_seen",
    "warmup_ratio": "--warmup_steps, which takes a share below 1 as well",
    "group_by_length": "--train_sampling_strategy group_by_length",
    "torchdynamo": "--torch_compile_backend",
    "half_precision_backend": "remove it",
    "fp16_backend": "remove it",
    "jit_mode_eval": "--torch_compile",
    "use_ipex": "remove it",
    "tpu_num_cores": "remove it",
    "push_to_hub_model_id": "--hub_model_id",
}
"""Flags of TrainingArguments in transformers 4 and in guides that are not fields in 5.23, and their replacements."""
_ALONE = frozenset({"use_mps_device", "evaluation_strategy", "per_gpu_train_batch_size", "per_gpu_eval_batch_size"})
"""Removed flags whose names no other program uses."""
_OF_A_TRAINER = frozenset(
    {"output_dir", "model_name_or_path", "per_device_train_batch_size", "do_train", "num_train_epochs", "task_name"}
)
"""Flags that identify the command line of a Trainer."""


def gone(argv: Sequence[str]) -> list[str]:
    """Return a sentence for each Trainer flag in this command that transformers 5 has removed."""
    if not any("--" in word for word in argv):
        return []
    flags = {word[2:].partition("=")[0].replace("-", "_") for word in _words(argv) if word.startswith("--")}
    known = flags & GONE.keys() if flags & _OF_A_TRAINER else flags & _ALONE
    return [
        f"--{flag} was removed in transformers 5, whose Trainer fails on it; instead: {GONE[flag]}"
        for flag in sorted(known)
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
                return f"{name} {option}{'=' if option.startswith('--') else ' '}{value}"
    return None


def instead(program: str) -> str:
    """Return the hint for a missing program: launchers are also modules of an interpreter."""
    if (module := _MODULES.get(program)) is None:
        return "give its path, or check PATH"
    return (
        f"it is beside the python that has it: give its path (VENV/bin/{program}), or write python -m {module} "
        f"instead of {program}; one process needs no launcher"
    )


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
            "run the program itself, in one process; --device cpu supports several, through gloo",
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
        if word.startswith("-"):
            name, equals, value = word.partition("=")
            option = "--" + name[2:].replace("-", "_") if name.startswith("--") else name
            yield option, value if equals else next(iter(words[at + 1 : at + 2]), "")
