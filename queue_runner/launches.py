"""What a command line says of how it trains: in how many processes, and with flags of a Trainer that are gone.

Only what can be recognised for sure is refused or warned of. The command itself is never changed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath

from queue_runner.errors import UsageError

_LAUNCHERS = {
    "torchrun": ("--nproc_per_node", "--nnodes"),
    "torch.distributed.run": ("--nproc_per_node", "--nnodes"),
    "torch.distributed.launch": ("--nproc_per_node", "--nnodes"),
    "accelerate": ("--num_processes", "--num_machines"),
    "accelerate.commands.launch": ("--num_processes", "--num_machines"),
    "deepspeed": ("--num_gpus", "--num_nodes"),
    "mpirun": ("-np", "-n"),
    "mpiexec": ("-np", "-n"),
    "horovodrun": ("-np",),
}
"""Programs and modules (`python -m`) that start several processes, and the options that say how many."""

GONE = {
    "use_mps_device": "leave it away, the Trainer takes mps by itself where it is available (not with --use_cpu)",
    "no_cuda": "--use_cpu",
    "evaluation_strategy": "--eval_strategy",
    "per_gpu_train_batch_size": "--per_device_train_batch_size",
    "per_gpu_eval_batch_size": "--per_device_eval_batch_size",
    "overwrite_output_dir": "leave it away",
    "logging_dir": "leave it away, and set TENSORBOARD_LOGGING_DIR for TensorBoard",
    "save_safetensors": "leave it away, weights are always saved so",
    "include_tokens_per_second": "--include_num_input_tokens_seen",
    "warmup_ratio": "--warmup_steps, which takes a share below 1 as well",
    "group_by_length": "--train_sampling_strategy group_by_length",
    "torchdynamo": "--torch_compile_backend",
    "half_precision_backend": "leave it away",
    "fp16_backend": "leave it away",
    "jit_mode_eval": "--torch_compile",
    "use_ipex": "leave it away",
    "tpu_num_cores": "leave it away",
    "push_to_hub_model_id": "--hub_model_id",
}
"""Flags of TrainingArguments in transformers 4 and in guides that are not among its fields in 5.23, and what to write
instead."""
_ALONE = frozenset({"use_mps_device", "evaluation_strategy", "per_gpu_train_batch_size", "per_gpu_eval_batch_size"})
"""Those of a name that no other program has."""
_OF_A_TRAINER = frozenset(
    {"output_dir", "model_name_or_path", "per_device_train_batch_size", "do_train", "num_train_epochs", "task_name"}
)
"""Flags by which a Trainer's command line is known."""


def gone(argv: Sequence[str]) -> list[str]:
    """A sentence for each flag of a Trainer in this command that transformers 5 no longer knows."""
    flags = {word[2:].partition("=")[0].replace("-", "_") for word in _words(argv) if word.startswith("--")}
    known = flags & GONE.keys() if flags & _OF_A_TRAINER else flags & _ALONE
    return [
        f"--{flag} is gone from transformers 5, whose Trainer ends on it; instead: {GONE[flag]}"
        for flag in sorted(known)
    ]


def several(argv: Sequence[str]) -> str | None:
    """How a command starts more than one training process, such as `torchrun --nproc_per_node=4`; None where it
    does not, or not for sure."""
    words = list(_words(argv))
    for at, word in enumerate(words):
        name = PurePath(word).name
        if name not in _LAUNCHERS or (name == "accelerate" and words[at + 1 : at + 2] != ["launch"]):
            continue
        options = _LAUNCHERS[name]
        for option, value in _options(words[at + 1 :]):
            if option in options and _is_more_than_one(value):
                return f"{name} {option}{'=' if option.startswith('--') else ' '}{value}"
            if name == "accelerate" and option == "--multi_gpu":
                return "accelerate launch --multi_gpu"
    return None


def refuse_several_on_mps(argv: Sequence[str], device: str | None, environment: Mapping[str, str]) -> None:
    """Raises: UsageError for a launch of several processes that are to train on Apple's GPU."""
    if device != "mps":
        return
    how = several(argv)
    if how is None and re.fullmatch(r"0*[1-9]\d{0,5}", size := environment.get("WORLD_SIZE", "")) and int(size) > 1:
        how = f"WORLD_SIZE={size}"
    if how is not None:
        raise UsageError(
            f"{how}: several processes cannot train on mps together, neither gloo nor nccl takes its tensors",
            "run the program itself, in one process; --device cpu can take several, by gloo",
        )


def _words(argv: Sequence[str]) -> Iterator[str]:
    """The words of a command, and of the one inside `sh -c "..."`."""
    for word in argv:
        try:
            yield from shlex.split(word) if " " in word else (word,)
        except ValueError:  # quotes that do not end
            yield from word.split()


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """A launcher's own options with their values, up to the program that it starts."""
    for at, word in enumerate(words):
        if word.endswith(".py") or word in ("-m", "--module"):
            return
        if word.startswith("-"):
            name, equals, value = word.partition("=")
            option = "--" + name[2:].replace("-", "_") if name.startswith("--") else name
            yield option, value if equals else next(iter(words[at + 1 : at + 2]), "")


def _is_more_than_one(value: str) -> bool:
    counted = value.rpartition(":")[2]  # --nnodes 1:4
    return counted.isdecimal() and len(counted) < 7 and int(counted) > 1
