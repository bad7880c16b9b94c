"""Analysis of training command lines: number of processes, and removed flags of a Trainer.

Only what is recognized with certainty is refused or warned about. The command itself is never changed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath

from queue_runner.errors import UsageError

_TORCHRUN = ("--nproc_per_node", "--nnodes")
_ACCELERATE = ("--num_processes", "--num_machines")
_MPI = ("-np", "-n", "-c", "--np", "--n")
_LAUNCHERS = {
    "torchrun": _TORCHRUN,
    "torch.distributed.run": _TORCHRUN,
    "torch.distributed.launch": _TORCHRUN,
    "accelerate": _ACCELERATE,
    "accelerate.commands.launch": _ACCELERATE,
    "deepspeed": ("--num_gpus", "--num_nodes"),
    "mpirun": _MPI,
    "mpiexec": _MPI,
    "horovodrun": ("-np", "--num_proc"),
    "srun": ("-n", "--ntasks"),
}
"""Programs and modules (`python -m`) that start several processes, and the options for their number."""
_MODULES = {
    "torchrun": "torch.distributed.run",
    "accelerate": "accelerate.commands.launch, without the word launch,",
    "deepspeed": "deepspeed.launcher.runner",
}
"""The same launchers for `python -m`."""
_SPREAD = re.compile(r"MULTI_(?!CPU)\w+|FSDP|DEEPSPEED|MEGATRON_LM")
"""Values of distributed_type in accelerate's configuration that start num_processes; others start one."""
_CONFIG = re.compile(r"(?:^|[{,])\s*[\"']?(num_processes|num_machines|distributed_type)[\"']?\s*:\s*[\"']?(\w+)", re.M)
_MOST_CONFIG_BYTES = 65_536

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
"""Flags of TrainingArguments in transformers 4 and in guides that are not fields in 5.23, and their replacements."""
_ALONE = frozenset({"use_mps_device", "evaluation_strategy", "per_gpu_train_batch_size", "per_gpu_eval_batch_size"})
"""Removed flags whose names no other program uses."""
_OF_A_TRAINER = frozenset(
    {"output_dir", "model_name_or_path", "per_device_train_batch_size", "do_train", "num_train_epochs", "task_name"}
)
"""Flags that identify the command line of a Trainer."""


def gone(argv: Sequence[str]) -> list[str]:
    """Return a sentence for each Trainer flag in this command that transformers 5 has removed."""
    flags = {word[2:].partition("=")[0].replace("-", "_") for word in _words(argv) if word.startswith("--")}
    known = flags & GONE.keys() if flags & _OF_A_TRAINER else flags & _ALONE
    return [
        f"--{flag} is gone from transformers 5, whose Trainer ends on it; instead: {GONE[flag]}"
        for flag in sorted(known)
    ]


def several(argv: Sequence[str], environment: Mapping[str, str] | None = None, folder: str = ".") -> str | None:
    """Return how a command starts several training processes, such as `torchrun --nproc_per_node=4`; None if it does
    not or this is uncertain. `environment` and `folder` are those of the job: accelerate's configuration and torchrun's
    variables are looked up there."""
    words, environment = list(_words(argv)), environment or {}
    for at, word in enumerate(words):
        name = PurePath(word).name
        if name not in _LAUNCHERS or (name == "accelerate" and words[at + 1 : at + 2] != ["launch"]):
            continue
        said: dict[str, str] = {}
        for option, value in _options(words[at + 1 :]):
            said[_whole(option, _LAUNCHERS[name])] = value
        if name.startswith("accelerate"):
            if (how := _by_accelerate(said, environment, folder)) is not None:
                return how
        elif _LAUNCHERS[name] == _TORCHRUN:
            for option in _TORCHRUN:
                if option not in said and (value := environment.get(f"PET_{option[2:].upper()}", "")):
                    said[option] = value  # torchrun also reads its options from these
        for option in _LAUNCHERS[name]:
            if _is_more_than_one(value := said.get(option, "")):
                return f"{name} {option}{'=' if option.startswith('--') else ' '}{value}"
    return None


def _by_accelerate(said: Mapping[str, str], environment: Mapping[str, str], folder: str) -> str | None:
    """Return how `accelerate launch` starts several processes without a number: by a flag, or by its configuration."""
    if "--multi_gpu" in said:
        return "accelerate launch --multi_gpu"
    if "--num_processes" in said or "--cpu" in said:
        return None
    if (named := said.get("--config_file")) is not None:
        path = Path(folder, Path(named).expanduser())
    else:
        cache = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME") or Path.home(), ".cache")
        hub = environment.get("HF_HOME") or Path(cache, "huggingface")
        path = Path(hub, "accelerate", "default_config.yaml")
    try:
        with path.open("rb") as stream:
            text = stream.read(_MOST_CONFIG_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    told = dict(_CONFIG.findall(text))
    number = told.get("num_processes", "")
    if _is_more_than_one(number) and _SPREAD.fullmatch(told.get("distributed_type", "")):
        return f"accelerate launch, whose configuration {path} says num_processes: {number}"
    return None


def instead(program: str) -> str:
    """Return the hint for a missing program: launchers are also modules of an interpreter."""
    if (module := _MODULES.get(program)) is None:
        return "give its path, or see what PATH holds"
    return (
        f"it is beside the python that has it: give its path (VENV/bin/{program}), or write python -m {module} in the "
        f"place of {program}; one process needs no launcher"
    )


def refuse_several_on_mps(
    argv: Sequence[str], device: str | None, environment: Mapping[str, str], folder: str = "."
) -> None:
    """Raise UsageError for a launch of several processes that would train on Apple's GPU."""
    if device != "mps":
        return
    how = several(argv, environment, folder)
    if how is None and re.fullmatch(r"0*[1-9]\d{0,5}", size := environment.get("WORLD_SIZE", "")) and int(size) > 1:
        how = f"WORLD_SIZE={size}"
    if how is not None:
        raise UsageError(
            f"{how}: several processes cannot train on mps together, neither gloo nor nccl takes its tensors",
            "run the program itself, in one process; --device cpu can take several, by gloo",
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


def _whole(option: str, known: Sequence[str]) -> str:
    """Return the full name of an abbreviated option: argparse accepts `--nproc` for --nproc_per_node."""
    return next((whole for whole in known if len(option) > 5 and whole.startswith(option)), option)


def _is_more_than_one(value: str) -> bool:
    counted = value.rpartition(":")[2]  # --nnodes 1:4
    if counted == "cpu":  # of torchrun: one per core
        return True
    return counted.isdecimal() and len(counted) < 7 and int(counted) > 1
