"""Run opcheck: select the operators, do the passes over them, report each verdict."""

from __future__ import annotations

import fnmatch
import math
import os
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness import command_line
from harness.command_line import Options, did_you_mean
from harness.errors import JobError, UsageError
from harness.opcheck import inventory
from harness.opcheck.messages import ERROR, FALLBACK, MISSING, NATIVE, UNCHECKED, VERDICTS, WRONG
from harness.opcheck.sweep import Finding, Sweep, Unit
from harness.parallel import check_threads
from mpsq_report import Reporter

BASIC = (
    *("abs", "add", "addmm", "bmm", "cat", "clamp", "cumsum", "div_no_rounding_mode", "exp", "gather", "index_select"),
    *("linalg_vector_norm", "log", "log_softmax", "masked_fill", "matmul", "mean", "mm", "mul", "neg"),
    *("nn_functional_batch_norm", "nn_functional_conv2d", "nn_functional_cross_entropy", "nn_functional_dropout"),
    *("nn_functional_embedding", "nn_functional_gelu", "nn_functional_layer_norm", "nn_functional_linear"),
    *("nn_functional_max_pool2d", "nn_functional_relu", "nn_functional_scaled_dot_product_attention"),
    *("nn_functional_silu", "pow", "rsqrt", "softmax", "sqrt", "sub", "sum", "tanh", "where"),
)
Key = tuple[str, str, str]
"""Operator, dtype, direction."""
_JOBS = Path(__file__).resolve().parents[2]
CHILD = (
    sys.executable,
    "-c",
    f"import sys; sys.path.insert(0, {str(_JOBS)!r}); from harness.opcheck import child; sys.exit(child.main())",
)
"""Without -m, which would search the current directory for a package `harness` first."""
_TOLD_EVERY = 250
"""Units between two lines of progress."""
_MOST_SHOWN = 40
"""Lines of verdicts other than native; the report has all."""


def main(workload: Mapping[str, Any], argv: Sequence[str] | None = None, child: Sequence[str] = CHILD) -> int:
    """Run the sweep. `child` is the command that checks operators (child.py). Return the exit code."""

    def run(workload: Mapping[str, Any], report: Reporter) -> None:
        options = parse(workload, sys.argv[1:] if argv is None else argv)
        _Runner(workload, options, report, child).run()

    return command_line.run(workload, run)


def parse(workload: Mapping[str, Any], argv: Sequence[str]) -> Options:
    """Parse the common command line, and refuse what does not apply here. Raises: UsageError."""
    options = command_line.parse(workload, argv, "nothing: operators are checked as they are")
    s = options.settings
    if options.compile:
        raise UsageError("opcheck runs operators as they are, not compiled", "--compile off")
    if options.dtype != "fp32":
        raise UsageError("opcheck takes its dtypes from a setting", f"--set types={options.dtype}")
    if options.resume or options.out:
        raise UsageError("this workload has no checkpoints", "remove --resume and --out")
    check_threads(s.threads)
    return options


def need_tables() -> None:
    """Raise JobError if torch's tables cannot be imported: they need a package that torch does not depend on."""
    if find_spec("expecttest") is None:
        raise JobError(
            f"torch's tables of operators need expecttest, which is not installed for {sys.executable}",
            f"{sys.executable} -m pip install expecttest pyyaml",
        )


class _Runner:
    def __init__(self, workload: Mapping[str, Any], options: Options, report: Reporter, child: Sequence[str]) -> None:
        self._workload, self._options, self._report, self._child = workload, options, report, child
        self._found: dict[Key, Finding] = {}
        self._crashes = 0
        self._checked = 0
        self._took_s: dict[str, float] = {}

    def run(self) -> None:
        need_tables()
        from harness.torch_backend.main import Torch

        framework, options = Torch(), self._options
        device = framework.open_device(options.device)
        with self._sweep(str(device), "check") as sweep:
            sweep.start()
            facts = framework.facts(device)
            counted = self._inventory()
            units = self._units(sweep.ops())
            self._hello(device, facts, len(units))
            words = options.settings.types.replace("+", " ")
            print(f"opcheck: {len({unit.op for unit in units})} operators in {words}")
            print(f"device {device}: {device.name}, {options.settings.threads} threads")
            print(f"torch  {facts['versions']['torch']}, seed {options.seed}; {counted}")
            self._report.end("setup")
            with self._report.phase("measure"):
                sweep.run(units, self._tell)
            self._crashes += sweep.restarts
        fallbacks = options.settings.fallbacks
        if fallbacks == "on" or (fallbacks == "auto" and device.kind == "mps"):
            self._fallbacks(str(device))
        self._show()

    def _hello(self, device: Any, facts: Mapping[str, Any], n_units: int) -> None:
        options = self._options
        self._report.hello(
            workload=self._workload["name"],
            framework="torch",
            device=str(device),
            device_name=device.name,
            dtype=options.settings.types,
            seed=options.seed,
            compile=False,
            config=options.config,
            planned_iters=n_units,
            **{**facts, "threads": options.settings.threads},
            settings=vars(options.settings),
        )

    def _sweep(self, device: str, mode: str) -> Sweep:
        s = self._options.settings
        words = {
            "device": device, "mode": mode, "samples": s.samples, "calls": s.calls, "seed": self._options.seed,
            "threads": s.threads,
        }  # fmt: skip
        env = {key: value for key, value in os.environ.items() if key not in _OURS}
        env["PYTORCH_ENABLE_MPS_FALLBACK"] = "0" if mode == "check" else "1"
        if mode == "profile":
            env["PYTORCH_MPS_LOG_PROFILE_INFO"] = "4"
        return Sweep([*self._child, *(f"--{key}={value}" for key, value in words.items())], env, s.limit_s)

    def _units(self, ops: Mapping[str, Sequence[str]]) -> list[Unit]:
        """Return every selected operator in every selected dtype that it accepts."""
        s = self._options.settings
        directions = ("forward",) if s.direction == "forward" else ("forward", "backward")
        names = _chosen(s.ops, list(ops))
        units = [Unit(op, word, directions) for word in s.types.split("+") for op in names if word in ops[op]]
        if not units:
            raise UsageError(f"none of {s.ops} takes {s.types}", "--set types=fp32")
        return units

    def _inventory(self) -> str:
        """Report the counts of native_functions.yaml. Return them in words."""
        file = inventory.path()
        if file is None:
            return "this torch came without native_functions.yaml"
        if find_spec("yaml") is None:
            return f"native_functions.yaml is not counted: {sys.executable} -m pip install pyyaml"
        listed = inventory.read(file)
        for name, value in (
            ("functions", listed.n_functions),
            ("with_mps", len(listed.with_mps)),
            ("without_mps", len(listed.without_mps)),
        ):
            self._report.metric(f"inventory.{name}", value, "functions")
        self._report.note("opcheck_without_mps", " ".join(listed.without_mps))
        return (
            f"{listed.n_functions:,} functions, {len(listed.with_mps)} with an MPS kernel, "
            f"{len(listed.without_mps)} for CPU and CUDA alone"
        )

    def _tell(self, unit: Unit, dur_s: float, findings: Iterable[Finding]) -> None:
        """Report a unit. An iteration is a unit that was checked: it counts progress and measures nothing."""
        self._report.iter(self._checked, dur_s, phase="warmup")
        self._checked += 1
        self._took_s[unit.dtype] = self._took_s.get(unit.dtype, 0.0) + dur_s
        if self._checked % _TOLD_EVERY == 0:
            print(f"{self._checked:,} checked, now {unit.dtype} {unit.op}")
        for finding in findings:
            self._keep(finding)

    def _keep(self, finding: Finding) -> None:
        """Report a verdict. A later one on the same operator replaces an earlier one."""
        self._found[finding.key] = finding
        cell = f"op/{finding.unit.op}/{finding.unit.dtype}/{finding.direction}"
        median_s = statistics.median(finding.times_s) if finding.times_s else math.nan
        self._report.metric(f"{cell}/{finding.verdict}", median_s, "s", i=self._checked - 1)
        if finding.verdict != NATIVE:
            self._report.note("opcheck", _said(finding))

    def _fallbacks(self, device: str) -> None:
        """Check missing operators again with fallbacks on, then find the names of the kernels that fell back."""
        left = {key: finding for key, finding in self._found.items() if finding.verdict in (MISSING, FALLBACK)}
        if not left:
            return
        again = self._pass(device, "fallback", left.values())
        rescued = [finding for finding in again.values() if finding.verdict in (FALLBACK, NATIVE)]
        named = self._pass(device, "profile", rescued)
        for key, finding in again.items():
            self._keep(_with_fallback(left[key], finding, named[key].profiled if key in named else ()))

    def _pass(self, device: str, mode: str, what: Iterable[Finding]) -> dict[Key, Finding]:
        """Check the same units in another mode."""
        directions: dict[tuple[str, str], list[str]] = {}
        for finding in what:
            directions.setdefault((finding.unit.op, finding.unit.dtype), []).append(finding.direction)
        units = [Unit(op, dtype, tuple(wanted)) for (op, dtype), wanted in directions.items()]
        by_key: dict[Key, Finding] = {}
        with self._report.phase("eval"), self._sweep(device, mode) as sweep:
            sweep.run(
                units, lambda unit, dur_s, findings: by_key.update({finding.key: finding for finding in findings})
            )
            self._crashes += sweep.restarts
        return by_key

    def _show(self) -> None:
        """Print counts by dtype and direction, and the operators that are not native."""
        counts = Counter((finding.unit.dtype, finding.direction, finding.verdict) for finding in self._found.values())
        used = [verdict for verdict in VERDICTS if any(key[2] == verdict for key in counts)]
        print(f"{'':<20}" + "".join(f"{verdict:>10}" for verdict in used))
        for dtype, direction in dict.fromkeys((key[0], key[1]) for key in counts):
            print(f"{dtype:<10}{direction:<10}" + "".join(f"{counts[dtype, direction, v]:>10,}" for v in used))
        print("took " + ", ".join(f"{dtype} {dur_s:.0f} s" for dtype, dur_s in self._took_s.items()))
        others = [finding for finding in self._found.values() if finding.verdict != NATIVE]
        order = (WRONG, ERROR, MISSING, FALLBACK, UNCHECKED)
        for finding in sorted(others, key=lambda finding: order.index(finding.verdict))[:_MOST_SHOWN]:
            print(_said(finding))
        if len(others) > _MOST_SHOWN:
            print(f"... and {len(others) - _MOST_SHOWN:,} more: mpsq report ops")
        if self._crashes:
            print(f"the checking process was replaced {self._crashes} times")


_OURS = ("MPSQ_EVENTS", "PYTORCH_MPS_LOG_PROFILE_INFO")
"""Variables withheld from children: one would make them report events, one would slow down the timed calls."""


def _chosen(words: str, known: Sequence[str]) -> list[str]:
    """Return the operators selected by all, basic and patterns, joined by +. Raises: UsageError."""
    chosen: dict[str, None] = {}
    for word in words.split("+"):
        if word == "basic":
            names = [name for name in BASIC if name in known]
        else:
            names = list(known) if word == "all" else fnmatch.filter(known, word.replace(".", "_"))
        if not names:
            hint = did_you_mean(word, known, "such as add+linalg_*")
            raise UsageError(f'ops={words}: torch has no operator "{word}"', hint)
        chosen.update(dict.fromkeys(names))
    return list(chosen)


def _with_fallback(first: Finding, again: Finding, names: Sequence[str]) -> Finding:
    """Return the final verdict on an operator that was missing, or fell back unasked, after the pass with fallbacks."""
    kernels = [name for name in again.detail.split(", ") if name] if again.verdict == FALLBACK else []
    every = ", ".join(dict.fromkeys([*kernels, *names]))
    if again.verdict in (FALLBACK, NATIVE):
        detail = every or f"no kernel is named: {first.detail}"
        return replace(again, unit=first.unit, verdict=FALLBACK, detail=detail)
    if again.verdict == MISSING:
        return first
    return replace(again, unit=first.unit, detail=f"as a fallback: {again.detail}")


def _said(finding: Finding) -> str:
    """Return one line for the log and the store: "svd fp32 backward fallback (2 of 8 samples): aten::linalg_svd"."""
    share = f" ({finding.n_bad} of {finding.n} samples)" if finding.n else ""
    detail = f": {finding.detail}" if finding.detail else ""
    return f"{finding.unit.op} {finding.unit.dtype} {finding.direction} {finding.verdict}{share}{detail}"
