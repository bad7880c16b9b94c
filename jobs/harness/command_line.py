"""The command line of every workload, derived from its WORKLOAD literal: options, presets, and --set key=value.

The values that a key accepts (choices, each_of, least, most, above, below) are checked here and nowhere else.
queue_runner/workloads/manifest.py applies the same rules at submit.
"""

from __future__ import annotations

import argparse
import difflib
import math
import operator
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from harness.errors import UsageError
from harness.workload import resolve

DTYPES = ("fp32", "bf16", "fp16")
_DEVICE = re.compile(r"cpu|cuda(:\d{1,3})?|mps|auto")
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
_LIMITS = {
    "least": ("at least", "cannot be less than", operator.ge),
    "above": ("above", "must be more than", operator.gt),
    "most": ("at most", "cannot be more than", operator.le),
    "below": ("below", "must be less than", operator.lt),
}
"""Limits of a number in a literal: words for --help, words for an error, and the test of a valid value."""
COMPILE_MODES = ("reduce-overhead", "max-autotune", "no-cudagraphs")
"""Modes of torch.compile besides its default; the last is torch's max-autotune-no-cudagraphs."""
_BOOLEANS = {"true": True, "on": True, "yes": True, "1": True, "false": False, "off": False, "no": False, "0": False}


@dataclass(frozen=True)
class Options:
    """A parsed command line. `settings` has every key of the workload's params, in the type of its default."""

    device: str
    compile: bool
    config: str
    dtype: str
    seed: int
    settings: SimpleNamespace
    full_iters: int
    """max_iters of the preset: how long the whole training is, of which `--set max_iters` may take a part"""
    resume: Path | None
    out: Path | None
    compile_mode: str = ""
    """one of COMPILE_MODES; empty: the compiler's default"""
    gpus: int = 1
    """processes that train together, each on a GPU of its own, or on the CPU"""


def parse(workload: Mapping[str, Any], argv: Sequence[str], compiler: str = "torch.compile") -> Options:
    """Parse the command line. `compiler` says in --help what --compile on means in this framework.

    Raises: UsageError; SystemExit(0) after --help.
    """
    workload = resolve(workload)
    said = _parser(workload, compiler).parse_args(argv)
    device = said.device.lower()
    if not _DEVICE.fullmatch(device):
        raise UsageError(f'no device "{said.device}"', "a device is cpu, cuda, cuda:1, mps or auto")
    if said.dtype not in DTYPES:
        raise UsageError(f'no dtype "{said.dtype}"', did_you_mean(said.dtype, DTYPES, "fp32, bf16 or fp16"))
    compiles, compile_mode = _compile(said.compile.lower(), compiler)
    configs = workload["configs"]
    if said.config not in configs:
        raise UsageError(
            f'workload "{workload["name"]}" has no config "{said.config}"',
            did_you_mean(said.config, configs, "it has: " + ", ".join(configs)),
        )
    values = {name: param["default"] for name, param in workload["params"].items()} | configs[said.config]
    chosen = dict(_setting(workload, text) for text in said.set)
    mode = chosen.get("mode", values.get("mode", ""))
    values |= workload.get("modes", {}).get(mode, {})
    full_iters = values.get("max_iters", 0)
    values |= chosen
    for key, value in values.items():
        if key in workload["params"] and value is not None:
            _refuse(key, workload["params"][key], value)
    return Options(
        device=device,
        compile=compiles,
        config=said.config,
        dtype=said.dtype,
        seed=_seed(said.seed),
        settings=SimpleNamespace(**values),
        full_iters=full_iters,
        resume=Path(said.resume) if said.resume else None,
        out=Path(said.out) if said.out else None,
        compile_mode=compile_mode,
        gpus=_gpus(said.gpus, device, workload, values, mode),
    )


def _compile(word: str, compiler: str) -> tuple[bool, str]:
    """Return whether to compile, and the mode. Raises: UsageError for a mode that only torch.compile has."""
    if word in _BOOLEANS:
        return _BOOLEANS[word], ""
    if word not in COMPILE_MODES:
        raise UsageError(f'--compile cannot be "{word}"', f"it is off, on or, in torch, {join_or(COMPILE_MODES)}")
    if compiler != "torch.compile":
        raise UsageError(f"{word} is a mode of torch.compile, and {compiler} has no modes", "--compile on")
    return True, word


def did_you_mean(word: str, known: Iterable[str], otherwise: str) -> str:
    """Return a hint: the closest known word, if one is close, followed by `otherwise`."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f'did you mean "{found[0]}"? {otherwise}' if found else otherwise


def _gpus(text: str, device: str, workload: Mapping[str, Any], values: Mapping[str, Any], mode: str) -> int:
    """Return the number of processes. Raises: UsageError where the workload, the mode or the device has one only."""
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f'--gpus "{text}" is not a number of GPUs', "such as --gpus 2")
    gpus, key = int(text), workload.get("gpus_divide")
    if gpus == 1:
        return gpus
    if key is None or mode not in ("", "train"):
        what = f"mode={mode}" if key else f"{workload['name']} in {workload['framework']}"
        raise UsageError(f"--gpus {gpus}: {what} runs in one process", "remove --gpus")
    if device == "mps" or ":" in device:
        raise UsageError(f"--gpus {gpus}: {device} is one GPU", "--device cuda, or cpu for as many processes")
    if values[key] % gpus:
        raise UsageError(
            f"--gpus {gpus}: the processes share the {key}={values[key]} batches of an iteration, which {gpus} does "
            "not divide",
            f"for example --set {key}={gpus * max(1, values[key] // gpus)}",
        )
    return gpus


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message, f"python {self.prog} --help lists the options")


def _parser(workload: Mapping[str, Any], compiler: str) -> argparse.ArgumentParser:
    configs = list(workload["configs"])
    modes = f"; its modes are {', '.join(COMPILE_MODES)}" if compiler == "torch.compile" else ""
    parser = _Parser(
        description=workload["about"],
        epilog=_keys(workload),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--device",
        default="auto",
        metavar="NAME",
        help="cpu, cuda[:n], mps or auto (default): the fastest that computes",
    )
    parser.add_argument("--compile", default="off", metavar="off|on", help=f"{compiler} (default off){modes}")
    parser.add_argument(
        "--config", default=configs[0], metavar="NAME", help=f"a preset: {', '.join(configs)} (default {configs[0]})"
    )
    parser.add_argument("--dtype", default="fp32", metavar="TYPE", help="fp32 (default), bf16 or fp16")
    parser.add_argument(
        "--gpus", default="1", metavar="N", help="train in N processes, each on a GPU of its own (default 1)"
    )
    parser.add_argument("--seed", default="1337", metavar="N", help="of weights, batches and dropout (default 1337)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="one of the keys below; may be repeated"
    )
    parser.add_argument("--resume", metavar="FILE", help="go on from a checkpoint")
    parser.add_argument(
        "--out", metavar="DIR", help="write a checkpoint here at the end, and every checkpoint_interval iterations"
    )
    return parser


def _keys(workload: Mapping[str, Any]) -> str:
    lines = ["keys of --set, with their defaults:"]
    for name, param in workload["params"].items():
        unit = f" [{param['unit']}]" if param["unit"] else ""
        takes = f" ({said})" if (said := _takes(param)) else ""
        lines.append(f"  {name}={_shown(param['default'])}{unit}{takes}  {param['help']}".replace("%", "%%"))
    return "\n".join(lines)


def _takes(param: Mapping[str, Any]) -> str:
    if param.get("choices"):
        return " | ".join(map(_shown, param["choices"]))
    if param.get("each_of"):
        return f"+ between: {' '.join(param['each_of'])}"
    if param.get("path_or") is not None:
        return " | ".join([*filter(None, param["path_or"]), "PATH"])
    said = {words: param.get(name) for name, (words, *_) in _LIMITS.items()}
    return " and ".join(f"{words} {limit}" for words, limit in said.items() if limit is not None)


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _setting(workload: Mapping[str, Any], text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f'--set "{text}" is not KEY=VALUE', "such as --set max_iters=20")
    params = workload["params"]
    key = workload.get("aliases", {}).get(key, key)
    if key not in params:
        raise UsageError(
            f'workload "{workload["name"]}" has no key "{key}"',
            workload.get("gone", {}).get(key)
            or did_you_mean(key, params, f"python {Path(sys.argv[0]).name} --help lists its keys"),
        )
    param = params[key]
    kind = str if param["default"] is None else type(param["default"])
    try:
        return key, _BOOLEANS[value.lower()] if kind is bool else _finite(kind(value))
    except (ValueError, KeyError):
        raise UsageError(f'{key}={value}: "{value}" is not {_KINDS[kind]}', _meaning(key, param)) from None


def _refuse(key: str, param: Mapping[str, Any], value: Any) -> None:
    """Raise UsageError for a value that the literal does not accept."""
    choices, words = param.get("choices"), param.get("each_of")
    if choices and value not in choices:
        names = [str(choice) for choice in choices]
        raise UsageError(f'{key} cannot be "{value}"', did_you_mean(str(value), names, f"{key} is {join_or(names)}"))
    for word in value.split("+") if words else ():
        if word not in words:
            hint = did_you_mean(word, words, f"{key} takes these, + between: {' '.join(words)}")
            raise UsageError(f'{key}={value}: it cannot hold "{word}"', hint)
    for name, (_, said, holds) in _LIMITS.items():
        limit = param.get(name)
        if limit is not None and not holds(value, limit):
            raise UsageError(f"{key}={value}: it {said} {limit}", _meaning(key, param))


def _meaning(key: str, param: Mapping[str, Any]) -> str:
    unit = f" ({param['unit']})" if param["unit"] else ""
    return f"{key}{unit}: {param['help']}"


def join_or(words: Sequence[str]) -> str:
    """Join words as in "train, eval or sample"."""
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError
    return value


def _seed(text: str) -> int:
    try:
        seed = int(text)
    except ValueError:
        raise UsageError(f'--seed "{text}" is not a whole number') from None
    if not 0 <= seed < 2**63:
        raise UsageError(f"--seed {text} is not between 0 and 2^63")
    return seed
