"""The command line of every workload, from its WORKLOAD literal to the exit code: options, presets, --set key=value.

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from harness import LOOP_KEYS
from harness.errors import EX_ERROR, JobError, UsageError
from mpsq_report import Reporter

DTYPES = ("fp32", "bf16", "fp16")
COMPILE_MODES = ("reduce-overhead", "max-autotune", "no-cudagraphs")
"""Modes of torch.compile besides its default; the last is torch's max-autotune-no-cudagraphs."""
_DEVICE = re.compile(r"cpu|cuda(:\d{1,3})?|mps|auto")
_TYPES = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
_BOOLEANS = {"true": True, "on": True, "yes": True, "1": True, "false": False, "off": False, "no": False, "0": False}
LIMITS = {
    "least": ("at least", "cannot be less than", operator.ge),
    "above": ("above", "must be more than", operator.gt),
    "most": ("at most", "cannot be more than", operator.le),
    "below": ("below", "must be less than", operator.lt),
}
"""Limits of a number in a literal: words for --help, words for an error, and the test of a valid value."""

Failed = Callable[[Exception, JobError | None], int]
"""(exception, the error that explains it or None) to the exit code"""


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

    @property
    def mode(self) -> str:
        """The mode that was requested; train if the workload has no modes."""
        return str(getattr(self.settings, "mode", "train"))


def run(
    workload: Mapping[str, Any],
    work: Callable[[Mapping[str, Any], Reporter], object],
    report: Reporter | None = None,
    failed: Failed | None = None,
) -> int:
    """Call `work` with the resolved literal and a reporter; report and print its error, unless `failed` handles it.

    Return the exit code: 0, 1 (failed), 2 (usage), 69 (device unavailable), 71 (out of memory).
    """
    report = Reporter() if report is None else report
    report.begin("setup", since_start=True)
    literal = resolve(workload)
    try:
        work(literal, report)
    except Exception as error:
        from harness.explain import explain

        problem = explain(error, literal.get("params", {}))
        if failed is not None:
            return failed(error, problem)
        if problem is None:
            import traceback

            traceback.print_exc()
            report.note("error", f"{type(error).__name__}: {error}")
        elif problem.note:
            report.note(problem.note, problem.message)
        report.bye(False)
        return EX_ERROR if problem is None else problem.show()
    report.bye(True)
    return 0


def resolve(workload: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the literal in full: every key of params is a mapping with a unit and a help text, and the entries of the
    workload that "like" names are added. queue_runner/workloads/manifest.py does the same at submit.

    Raises: LookupError if the file named by "like" has no WORKLOAD.
    """
    if "like" in workload:
        from harness.inherited import merge

        workload = merge(workload)
    params = {
        key: param if isinstance(param, Mapping) else {**LOOP_KEYS.get(key, {}), "default": param}
        for key, param in workload.get("params", {}).items()
    }
    for key, param in params.items():
        params[key] = {"unit": "", "help": "", **_required(key, param, workload), **param}
    return {**workload, "params": params, "configs": workload.get("configs", {})}


def _required(key: str, param: Mapping[str, Any], workload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that the loop can work with, for a key declared without them."""
    if key == "mode" and "modes" in workload:
        return {"choices": ["train", *workload["modes"]]}
    if "least" in LOOP_KEYS.get(key, {}) and isinstance(param["default"], int | float):
        return {"least": LOOP_KEYS[key]["least"]}
    return {}


def parse(workload: Mapping[str, Any], argv: Sequence[str], compiler: str = "torch.compile") -> Options:
    """Parse the command line. `compiler` says in --help what --compile on means in this framework.

    Raises: UsageError; SystemExit(0) after --help.
    """
    workload = resolve(workload)
    words = _parser(workload, compiler).parse_args(argv)
    device, configs = words.device.lower(), workload["configs"]
    if not _DEVICE.fullmatch(device):
        raise UsageError(f'no device "{words.device}"', "a device is cpu, cuda, cuda:1, mps or auto")
    if words.dtype not in DTYPES:
        raise UsageError(f'no dtype "{words.dtype}"', did_you_mean(words.dtype, DTYPES, "fp32, bf16 or fp16"))
    compiles, compile_mode = _compile(words.compile.lower(), compiler)
    if words.config not in configs:
        raise UsageError(
            f'workload "{workload["name"]}" has no config "{words.config}"',
            did_you_mean(words.config, configs, "it has: " + ", ".join(configs)),
        )
    values = {name: param["default"] for name, param in workload["params"].items()} | configs[words.config]
    chosen = dict(_setting(workload, text) for text in words.set)
    mode = chosen.get("mode", values.get("mode", ""))
    values |= workload.get("modes", {}).get(mode, {})
    full_iters = values.get("max_iters", 0)
    values |= chosen
    if "max_iters" in chosen and "warmup_iters" in values and "warmup_iters" not in chosen:  # leave half to measure
        values["warmup_iters"] = min(values["warmup_iters"], max(0, (values["max_iters"] - 1) // 2))
    for key, value in values.items():
        if key in workload["params"] and value is not None:
            _check(key, workload["params"][key], value)
    gpus = 1
    if words.gpus != "1":
        from harness.parallel import number_of_gpus

        gpus = number_of_gpus(words.gpus, device, workload, values, mode)
    return Options(
        device=device,
        compile=compiles,
        config=words.config,
        dtype=words.dtype,
        seed=_seed(words.seed),
        settings=SimpleNamespace(**values),
        full_iters=full_iters,
        resume=Path(words.resume) if words.resume else None,
        out=Path(words.out) if words.out else None,
        compile_mode=compile_mode,
        gpus=gpus,
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
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f'did you mean "{matches[0]}"? {otherwise}' if matches else otherwise


class _Parser(argparse.ArgumentParser):
    workload: Mapping[str, Any]

    def format_help(self) -> str:
        from harness.help_text import keys

        self.epilog = keys(self.workload)
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, f"python {self.prog} --help lists the options")


def _parser(workload: Mapping[str, Any], compiler: str) -> argparse.ArgumentParser:
    configs = list(workload["configs"])
    modes = f"; its modes are {', '.join(COMPILE_MODES)}" if compiler == "torch.compile" else ""
    parser = _Parser(
        description=workload["about"],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.workload = workload
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
    parser.add_argument("--gpus", default="1", metavar="N", help="train in N processes, one on each GPU (default 1)")
    parser.add_argument(
        "--seed", default="1337", metavar="N", help="seed of weights, batches and dropout (default 1337)"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="one of the keys below; may be repeated"
    )
    parser.add_argument("--resume", metavar="FILE", help="continue from a checkpoint")
    parser.add_argument(
        "--out", metavar="DIR", help="write a checkpoint here at the end, and every checkpoint_interval iterations"
    )
    return parser


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
        parsed = _BOOLEANS[value.lower()] if kind is bool else kind(value)
        if kind is float and not math.isfinite(parsed):
            raise ValueError
        return key, parsed
    except (ValueError, KeyError):
        raise UsageError(f'{key}: "{value}" is not {_TYPES[kind]}', _meaning(key, param)) from None


def _check(key: str, param: Mapping[str, Any], value: Any) -> None:
    """Raise UsageError for a value that the literal does not accept."""
    choices, accepted = param.get("choices"), param.get("each_of")
    if choices and value not in choices:
        names = [str(choice) for choice in choices]
        raise UsageError(f'{key} cannot be "{value}"', did_you_mean(str(value), names, f"{key} is {join_or(names)}"))
    for word in value.split("+") if accepted else ():
        if word not in accepted:
            hint = did_you_mean(word, accepted, f"{key} takes these, + between: {' '.join(accepted)}")
            raise UsageError(f'{key}={value}: it cannot hold "{word}"', hint)
    for name, (_, words, holds) in LIMITS.items():
        limit = param.get(name)
        if limit is not None and not holds(value, limit):
            raise UsageError(f"{key}={value}: it {words} {limit}", _meaning(key, param))


def _meaning(key: str, param: Mapping[str, Any]) -> str:
    unit = f" ({param['unit']})" if param["unit"] else ""
    return f"{key}{unit}: {param['help']}"


def join_or(words: Sequence[str]) -> str:
    """Join words as in "train, eval or sample"."""
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _seed(text: str) -> int:
    try:
        seed = int(text)
    except ValueError:
        raise UsageError(f'--seed "{text}" is not a whole number') from None
    if not 0 <= seed < 2**63:
        raise UsageError(f"--seed {text} is not between 0 and 2^63")
    return seed
