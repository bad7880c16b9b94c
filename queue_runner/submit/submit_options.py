"""Request of a submission: each option of `mpsq submit` is declared here, once, with its type, help and target.

The command line (cli/typer_options.py), the lines of --from and the Python client (submit/given_options.py), and
completion derive from the declarations.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from queue_runner.errors import UsageError
from queue_runner.ingest import log_metrics, parsers
from queue_runner.model import PHASES
from queue_runner.spec import DECIDED, DEFAULT_SEED, compared_by
from queue_runner.units import parse_duration, parse_margins, parse_percent

if TYPE_CHECKING:
    from queue_runner.submit.find_max.search import SearchRange


STALLING = PHASES[:6]
"""Phases of a run that can have their own limit."""


class Kind(Enum):
    """The type of an option, described as the type of a JSON value."""

    TEXT = "a string"
    DURATION = 'a duration, such as 90, "15m" or "2h"'
    LIST = "a value or a list of values"
    NUMBER = "a whole number"
    FLAG = "true or false"
    SWITCH = "true, false or null"
    """Like FLAG, with a --no- form; None if neither is given."""
    WORDS = "a string or a list of strings"
    PAIRS = 'an object, such as {"lr": 0.001}'
    COMMAND = 'a list of strings, such as ["python", "train.py"]'


@dataclass(frozen=True)
class Option:
    """The declaration of an option: its name as in a file (`env_name`), on a command line (--env-name), and the field
    that it sets.

    `convert` returns the field's value from a value of its kind. Raises: UsageError.
    """

    name: str
    flag: str
    field: str
    kind: Kind
    help: str
    metavar: str
    convert: Callable[[Any], Any] | None


_EMPTY: Mapping[Kind, Any] = {Kind.LIST: (), Kind.WORDS: (), Kind.COMMAND: (), Kind.FLAG: False}


def _option(
    kind: Kind,
    help: str,
    metavar: str = "",
    *,
    default: Any = None,
    name: str = "",
    convert: Callable[[Any], Any] | None = None,
) -> Any:
    metadata = {"option": Option(name, "", "", kind, help, metavar, convert)}
    if kind is Kind.PAIRS:
        return field(default_factory=dict, metadata=metadata)
    return field(default=_EMPTY.get(kind, default), metadata=metadata)


SNAPSHOTS = ("auto", "copy", "off")
"""Values of --snapshot."""


def snapshot_mode(text: str) -> str:
    """Return a value of --snapshot. Raises: UsageError."""
    if text not in SNAPSHOTS:
        raise UsageError(f'--snapshot takes auto, copy or off, not "{text}"', "auto is the default")
    return text


def _settings(pairs: Mapping[str, str | tuple[str, ...] | None]) -> dict[str, tuple[str, ...]]:
    """Return the values of each setting; `1,2` stands for two."""
    from queue_runner.submit.grid import names

    values: dict[str, tuple[str, ...]] = {}
    for key, value in pairs.items():
        if value is None:
            raise UsageError(f'--set "{key}" is not NAME=VALUE', "write --set NAME=VALUE")
        values[key] = names(value, f"--set {key}") if isinstance(value, str) else value
    return values


def _variables(pairs: Mapping[str, str | tuple[str, ...] | None]) -> dict[str, str]:
    """Return the variables of --env; NAME alone takes its value from the shell."""
    for name, value in pairs.items():
        if value is None and name not in os.environ:
            raise UsageError(
                f"--env {name}: the variable is not set in this shell", f"give it a value: --env {name}=VALUE"
            )
        if name.startswith("MPSQ_"):
            raise UsageError(f"{name} is reserved for mpsq", "set it for the worker, not for a job")
    return {name: os.environ[name] if value is None else _joined(value) for name, value in pairs.items()}


def _stall_limits(pairs: Mapping[str, str | tuple[str, ...] | None]) -> dict[str, float]:
    """Return the limits in seconds by phase. A time without a phase holds for every phase that is not named: `*`."""
    limits = {}
    for key, value in pairs.items():
        phase, text = ("", key) if value is None else (key, _joined(value))
        if phase and phase not in STALLING:
            raise UsageError(
                f'unknown phase "{phase}"', f"use --stall DURATION, or PHASE=DURATION with {', '.join(STALLING)}"
            )
        if (phase or "*") in limits:
            raise UsageError(f"--stall has two limits: {text} is the second", "give one, or PHASE=DURATION for a phase")
        limits[phase or "*"] = parse_duration(text, "--stall")
        if limits[phase or "*"] <= 0:
            raise UsageError(f"--stall {text} would stop every run at once", "give a duration above 0")
    return limits


def _metrics(pairs: Mapping[str, str | tuple[str, ...] | None]) -> dict[str, str]:
    """Return the regular expressions of --metric by name. Raises: UsageError for one that finds no number."""
    patterns = {name: _joined(value or "") for name, value in pairs.items()}
    for name, pattern in patterns.items():
        if not pattern:
            raise UsageError(f"--metric {name} has no pattern", f"write --metric '{name}={name} ([0-9.]+)'")
        if not log_metrics.NAME.fullmatch(name):
            raise UsageError(
                f'--metric: "{name}" is not a name',
                "write --metric 'loss=loss ([0-9.]+)', or loss:min=... or loss:mean=...",
            )
        try:
            n_groups = re.compile(pattern).groups
        except re.error as error:
            raise UsageError(
                f'--metric {name}: "{pattern}" is not a regular expression ({error.msg})',
                "write a literal ( or [ as \\( or \\[",
            ) from None
        if n_groups != 1:
            raise UsageError(
                f'--metric {name}: "{pattern}" has {n_groups} groups, not one',
                "put parentheses around the number, as in 'loss ([0-9.]+)', and use (?:...) for other groups",
            )
    return patterns


def _joined(value: str | tuple[str, ...]) -> str:
    return value if isinstance(value, str) else ",".join(value)


def _goal(text: str) -> str:
    """Return the goal of --until. Raises: UsageError."""
    if text.strip() != DECIDED:
        try:
            parse_percent(text if text.rstrip().endswith("%") else "", "--until")
        except UsageError:
            message = f'--until "{text}" is neither "{DECIDED}" nor an interval width like 1% (up to 50%)'
            raise UsageError(message, f"use --until {DECIDED}, or for example --until 1%") from None
    return text.strip()


def _metric(text: str) -> str:
    """Return the metric of --by. Raises: UsageError."""
    if not text.strip():
        raise UsageError("--by names no metric", "for example --by loss")
    return compared_by(text)


def _budget(budget_s: float) -> float:
    """Return the seconds of --budget. Raises: UsageError."""
    if not budget_s:
        raise UsageError("--budget 0 would run nothing", "give a duration above 0, as in 10m")
    return budget_s


def _search(text: str) -> SearchRange:
    from queue_runner.submit.find_max import search

    return search.parse(text)


@dataclass(frozen=True)
class Request:
    """A request for either a workload or a command (argv), never both. Several values of a field are swept.

    A field's order is that of `mpsq submit --help`.
    """

    workload: str | None = _option(
        Kind.TEXT, "The name of a workload (see mpsq workloads), or a command after --.", "[WORKLOAD]"
    )
    argv: tuple[str, ...] = _option(Kind.COMMAND, "The command after --.", name="command")
    device: tuple[str, ...] = _option(Kind.LIST, "cpu, mps, cuda, cuda:1 or auto; a list is swept.", "LIST")
    compile: tuple[str, ...] = _option(
        Kind.LIST, "off, on, both, reduce-overhead, max-autotune or no-cudagraphs; a list is swept.", "MODE"
    )
    config: tuple[str, ...] = _option(Kind.LIST, "The workload's preset; a list is swept.", "LIST")
    dtype: tuple[str, ...] = _option(Kind.LIST, "fp32, bf16 or fp16; a list is swept.", "LIST")
    framework: tuple[str, ...] = _option(
        Kind.LIST, "The framework, if the workload has several; a list is swept.", "LIST"
    )
    gpus: int | None = _option(Kind.NUMBER, "GPUs for each run; 1 by default.", "N")
    sets: Mapping[str, tuple[str, ...]] = _option(
        Kind.PAIRS, "A setting; VALUE,VALUE is swept. Repeatable.", "KEY=VALUE", name="set", convert=_settings
    )
    repeats: int = _option(Kind.NUMBER, "Runs of each combination; a verdict needs 3 or more.", "N", default=1)
    until: str | None = _option(
        Kind.TEXT,
        "decided: run 3 to 20 rounds, until each row of the report has a verdict. 1%: until the confidence interval of"
        " each speedup, or of a lone row's time, is at most 1% wide. A round is one run of each job.",
        "GOAL",
        convert=_goal,
    )
    by: str | None = _option(
        Kind.TEXT,
        "Compare rows by this metric first, such as loss, then by time; --until needs verdicts on both. Default: time.",
        "METRIC",
        convert=_metric,
    )
    same_within: Mapping[str, float] | None = _option(
        Kind.TEXT,
        "Call two rows the same if they differ by less than MARGIN: by default 1% of the measured time. loss=0.01"
        " sets the margin of a metric, in its unit.",
        "MARGIN,...",
        convert=parse_margins,
    )
    budget_s: float | None = _option(
        Kind.DURATION,
        "With --until: start no new round after this time, such as 30m. Default: 10m, but at least 3 rounds.",
        "DURATION",
        name="budget",
        convert=_budget,
    )
    seed: int | None = _option(
        Kind.NUMBER,
        f"Use the seed N in every round. By default round 1 uses {DEFAULT_SEED}, round 2 {DEFAULT_SEED + 1}, and so"
        " on.",
        "N",
    )
    order_seed: int | None = _option(Kind.NUMBER, "Seed of the order of the runs; random by default.", "N")
    priority: int = _option(
        Kind.NUMBER, "Higher priorities run first, equal ones in order of submission; 0 by default.", "N", default=0
    )
    name: str | None = _option(Kind.TEXT, "The job's name in lists and reports.", "NAME")
    tags: tuple[str, ...] = _option(Kind.WORDS, "A tag for selecting the job. Repeatable.", "WORD", name="tag")
    env: Mapping[str, str] = _option(
        Kind.PAIRS,
        "An environment variable of the job; NAME alone takes its value from your shell. Repeatable.",
        "NAME[=VALUE]",
        convert=_variables,
    )
    secrets: tuple[str, ...] = _option(
        Kind.WORDS,
        "An environment variable whose value is in MPSQ_HOME/secrets/NAME. Repeatable.",
        "NAME",
        name="secret",
    )
    allow_plain: bool = _option(
        Kind.FLAG, "Accept a command line that contains an access token, which is stored as plain text."
    )
    cwd: str | None = _option(Kind.TEXT, "The job's working directory; the current one by default.", "FOLDER")
    python: str | None = _option(Kind.TEXT, "The Python interpreter that runs the workload.", "PATH")
    env_name: tuple[str, ...] = _option(Kind.LIST, "Python environments from mpsq env; a list is swept.", "LIST")
    mps: tuple[str, ...] = _option(
        Kind.WORDS,
        "torch's MPS switches, as in fallback=on,fast_math=on. Each --mps is one combination of switches; several --mps"
        " are swept.",
        "NAME=VALUE,...",
    )
    warmup: int = _option(
        Kind.NUMBER,
        "Run each command N times before its first round, without counting these runs; 0 by default.",
        "N",
        default=0,
    )
    prepare: str | None = _option(
        Kind.TEXT, "A shell command to execute before each run; it is not timed, and may use {KEY} of --set.", "COMMAND"
    )
    timeout_s: float | None = _option(Kind.DURATION, "End a run after this: 90s, 15m, 2h.", "DURATION", name="timeout")
    parser: str | None = _option(
        Kind.TEXT, f"The format of the command's output: {', '.join(parsers.names())}.", "NAME"
    )
    metrics: Mapping[str, str] = _option(
        Kind.PAIRS,
        "Compare rows by a number in the output. NAME=REGEX takes the last match, NAME:min=REGEX the minimum,"
        " NAME:mean=REGEX the mean. Repeatable.",
        "NAME=REGEX",
        name="metric",
        convert=_metrics,
    )
    allow_daemons: bool = _option(Kind.FLAG, "Do not end processes that the job leaves running.")
    after: tuple[str, ...] = _option(
        Kind.WORDS,
        "Wait until a job (12 or its name) or a group (g4, @last) has succeeded; with :any, has ended; with :fail, has"
        " ended without success. Repeatable.",
        "ID[:any|fail]",
    )
    at: str | None = _option(Kind.TEXT, 'Do not start before this: 22:30, "2026-11-22 06:00", +2h.', "TIME")
    deadline: str | None = _option(Kind.TEXT, "Skip the job if it has not started by this time.", "TIME")
    hold: bool = _option(Kind.FLAG, "Queue it on hold, until mpsq resume ID.")
    note: str | None = _option(Kind.TEXT, "A note that mpsq show prints.", "TEXT")
    retries: int = _option(Kind.NUMBER, "Retry automatically, up to N times; 0 by default.", "N", default=0)
    backoff_s: float = _option(
        Kind.DURATION,
        "The wait before the first retry; it doubles for each further one, up to a day.",
        "DURATION",
        default=0.0,
        name="backoff",
    )
    retry_on: tuple[str, ...] = _option(
        Kind.LIST,
        "Which outcomes are retried: failed (the default), lost (mpsq or the machine broke down), stalled, timed_out.",
        "LIST",
    )
    resume: bool = _option(Kind.FLAG, "Retries continue from the last checkpoint; lost runs are retried, too.")
    stall: Mapping[str, float] = _option(
        Kind.PAIRS,
        "End a run that reports no event, such as an iteration, for this long. In a run that never reports"
        " one, new output counts as an event. PHASE=, such as compile=, applies it to that phase only. Repeatable.",
        "[PHASE=]DURATION",
        convert=_stall_limits,
    )
    find_max: SearchRange | None = _option(  # noqa: RUF009 - its field is declared as all others
        Kind.TEXT,
        "Find the largest batch_size, n_layer or n_embd that works.",
        "KEY[=FIRST[:LAST[:STEP]]]",
        convert=_search,
    )
    snapshot: str = _option(
        Kind.TEXT,
        "Where a command runs: auto (in its folder; if the code has changed, in a copy of the submitted code), copy"
        " (always in a copy), or off (in its folder, with any changes).",
        "MODE",
        default="auto",
        convert=snapshot_mode,
    )
    preflight: bool | None = _option(
        Kind.SWITCH,
        "First try each job of a workload with one iteration; on by default if there are several jobs and no --until.",
    )
    no_gate: bool = _option(Kind.FLAG, "Do not wait for a quiet machine.")
    gate_timeout_s: float | None = _option(
        Kind.DURATION,
        "Start when the machine is quiet, or after this time. Default: 2m; with mpsq run: 1s, or 5s if the runs"
        " are expected to take 10s or more in total.",
        "DURATION",
        name="gate_timeout",
    )
    on: str | None = _option(
        Kind.TEXT,
        "Run it on another machine: slurm, ssh:HOST, or a NAME of your own, defined in mpsq config as on.NAME"
        " (docs/remote.md).",
        "TARGET",
    )
    partition: str | None = _option(Kind.TEXT, "With --on slurm: the partition.", "NAME")
    time_s: float | None = _option(
        Kind.DURATION, "With --on slurm: the time limit of the allocation.", "DURATION", name="time"
    )
    whole_node: bool = _option(Kind.FLAG, "With --on slurm: reserve a whole node, shared with no other job.")
    nodes_at_once: int | None = _option(
        Kind.NUMBER, "With --on slurm: run rounds on at most this many nodes at once; 20 by default."
    )
    sbatch: str | None = _option(Kind.TEXT, "With --on slurm: further options of sbatch.", "WORDS")

    title: str = "mpsq submit"
    home: str | None = None  # queue of its environments and workloads; MPSQ_HOME or the default if None
    measures: bool = False  # mpsq bench and mpsq run: a measurement even if it is a single cell


OPTIONS: dict[str, Option] = {
    name: replace(option, name=name, flag=f"--{name.replace('_', '-')}", field=column.name)
    for column in fields(Request)
    if (option := column.metadata.get("option"))
    for name in [option.name or column.name]
}
"""Every option of a submission, by name, in the order of the help."""

REMOVED = {
    **dict.fromkeys(
        ("until_valid", "no_until_valid"),
        ("disturbed runs are not repeated", "leave it out; mpsq rerun ID queues the jobs again"),
    ),
    "randomize": ("the system gives each process another layout of its memory", "leave it out"),
    "allow_changed": ("edits no longer stop a run", "--snapshot off runs the code that is there when a run starts"),
}
"""Options of earlier versions: why each was removed, and what to do instead."""

GROUPS = {
    "Common": "device compile config dtype set repeats until budget by same_within"
    " name tag priority after timeout dry_run",
    "What it runs": "framework gpus seed env secret env_name python cwd mps warmup prepare parser metric find_max"
    " snapshot allow_daemons allow_plain note",
    "When it runs": "at deadline hold retries retry_on backoff resume stall",
    "On another machine": "on partition time whole_node nodes_at_once sbatch",
}
"""The options in each group of `mpsq submit --help`; the others are in a last group."""
