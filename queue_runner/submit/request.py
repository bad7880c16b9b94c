"""Request of a submission: each option of `mpsq submit` is declared here, once, with its type, help and target.

The command line (cli/submit_options.py), the lines of --from and the Python client (submit/options.py) and completion
derive from the declarations.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any

from queue_runner.errors import UsageError
from queue_runner.ingest import parsers
from queue_runner.units import parse_duration

DEFAULT_SEED = 1337  # the seed of nanoGPT's train.py


class Kind(Enum):
    """The type of an option, described as the type of a JSON value."""

    TEXT = "a text"
    TIME = 'a time, such as 90, "15m" or "2h"'
    LIST = "a value or a list of values"
    NUMBER = "a whole number"
    FLAG = "true or false"
    SWITCH = "true, false or null"
    """Like FLAG, with a --no- form: where it is not given, something else decides."""
    WORDS = "a text or a list of texts"
    PAIRS = 'an object, such as {"lr": 0.001}'
    COMMAND = 'a list of words, such as ["python", "train.py"]'

    @property
    def repeatable(self) -> bool:
        """Whether the option may be given several times."""
        return self in (Kind.WORDS, Kind.PAIRS)


@dataclass(frozen=True)
class Option:
    """The declaration of an option: its name as in a file (`env_name` is --env-name), and the field that it sets."""

    name: str
    field: str
    kind: Kind
    help: str
    metavar: str
    convert: Callable[[Any], Any] | None

    @property
    def flag(self) -> str:
        """The option as it is given on a command line."""
        return f"--{self.name.replace('_', '-')}"

    def read(self, value: Any) -> Any:
        """Return the field's value. Raises: UsageError for an invalid time or mode."""
        if self.convert is not None:
            return self.convert(value)
        if self.kind is Kind.TIME:
            return parse_duration(value, self.flag) if value else getattr(Request, self.field)
        return tuple(value) if self.kind.repeatable or self.kind is Kind.COMMAND else value


def _option(
    kind: Kind,
    help: str,
    metavar: str = "",
    *,
    default: Any = None,
    name: str = "",
    convert: Callable[[Any], Any] | None = None,
) -> Any:
    if kind.repeatable or kind is Kind.COMMAND:
        default = ()
    elif kind is Kind.FLAG:
        default = False
    return field(default=default, metadata={"option": Option(name, "", kind, help, metavar, convert)})


def _copies(snapshot: str | bool) -> bool:
    if isinstance(snapshot, bool):
        return snapshot
    if snapshot not in ("off", "copy"):
        raise UsageError(f'--snapshot takes off or copy, not "{snapshot}"', "copy runs it in a copy of its folder")
    return snapshot == "copy"


def _with_values(pairs: Sequence[str]) -> tuple[str, ...]:
    """Return the variables of --env with their values. Raises: UsageError for a name that has none here."""
    if missing := [name for name in pairs if "=" not in name and name not in os.environ]:
        raise UsageError(
            f"--env {missing[0]}: there is no such variable here", f"give it a value: --env {missing[0]}=VALUE"
        )
    return tuple(pair if "=" in pair else f"{pair}={os.environ[pair]}" for pair in pairs)


@dataclass(frozen=True)
class Request:
    """A request for either a workload or a command (argv), never both. Texts of LIST options are comma-separated.

    A field's order is that of `mpsq submit --help`.
    """

    workload: str | None = _option(Kind.TEXT, "A name of mpsq workloads, or a command after --.", "[WORKLOAD]")
    argv: tuple[str, ...] = _option(Kind.COMMAND, "The command after --.", name="command")
    device: str | None = _option(Kind.LIST, "cpu, mps, cuda, cuda:1 or auto; a list is swept.", "LIST")
    compile: str | None = _option(
        Kind.LIST, "off, on, both, reduce-overhead, max-autotune or no-cudagraphs; a list is swept.", "MODE"
    )
    config: str | None = _option(Kind.LIST, "The workload's preset; a list is swept.", "LIST")
    dtype: str | None = _option(Kind.LIST, "fp32, bf16 or fp16; a list is swept.", "LIST")
    framework: str | None = _option(Kind.LIST, "For a workload that has several; a list is swept.", "LIST")
    gpus: int | None = _option(Kind.NUMBER, "The number of GPUs that each run computes on; 1 by default.", "N")
    sets: tuple[str, ...] = _option(Kind.PAIRS, "A setting; VALUE,VALUE is swept. Repeatable.", "KEY=VALUE", name="set")
    repeats: int = _option(Kind.NUMBER, "Runs of each combination; a verdict needs 4 or more.", "N", default=1)
    seed: int = _option(Kind.NUMBER, f"Seed of the workload, {DEFAULT_SEED} by default.", "N", default=DEFAULT_SEED)
    order_seed: int | None = _option(Kind.NUMBER, "Seed of the order of the runs; random by default.", "N")
    priority: int = _option(Kind.NUMBER, "Higher runs first, then older; 0 by default.", "N", default=0)
    name: str | None = _option(Kind.TEXT, "Its name in lists and reports.", "NAME")
    tags: tuple[str, ...] = _option(Kind.WORDS, "A tag to select it by. Repeatable.", "WORD", name="tag")
    env: tuple[str, ...] = _option(
        Kind.PAIRS,
        "A variable of the job; NAME alone has its value here. Repeatable.",
        "NAME[=VALUE]",
        convert=_with_values,
    )
    secrets: tuple[str, ...] = _option(
        Kind.WORDS, "A variable whose value is in MPSQ_HOME/secrets/NAME. Repeatable.", "NAME", name="secret"
    )
    allow_plain: bool = _option(Kind.FLAG, "Store a command line that contains a token.")
    cwd: str | None = _option(Kind.TEXT, "The job's working directory; the current one by default.", "FOLDER")
    python: str | None = _option(Kind.TEXT, "The Python interpreter that runs the workload.", "PATH")
    env_name: str | None = _option(Kind.LIST, "Environments made by mpsq env; a list is swept.", "LIST")
    mps: tuple[str, ...] = _option(
        Kind.WORDS, "torch's MPS switches, as in fallback=on,fast_math=on. Several --mps are swept.", "NAME=VALUE,..."
    )
    timeout_s: float | None = _option(Kind.TIME, "End a run after this: 90s, 15m, 2h.", "TIME", name="timeout")
    parser: str | None = _option(Kind.TEXT, f"Parse the command's output live: {', '.join(parsers.names())}.", "NAME")
    allow_daemons: bool = _option(Kind.FLAG, "Do not end processes that the job leaves running.")
    after: tuple[str, ...] = _option(
        Kind.WORDS, "Wait until 12, g4 or @last has succeeded. Repeatable.", "ID[:any|fail]"
    )
    at: str | None = _option(Kind.TEXT, 'Not before 22:30, "2026-11-22 06:00" or +2h.', "TIME")
    deadline: str | None = _option(Kind.TEXT, "Skip it if it has not started by then.", "TIME")
    hold: bool = _option(Kind.FLAG, "Queue it on hold, until mpsq resume ID.")
    note: str | None = _option(Kind.TEXT, "A note that mpsq show prints.", "TEXT")
    retries: int = _option(Kind.NUMBER, "Retry automatically, up to N times; 0 by default.", "N", default=0)
    backoff_s: float = _option(
        Kind.TIME,
        "Wait before the first retry; doubled before each further one, up to a day.",
        "TIME",
        default=0.0,
        name="backoff",
    )
    retry_on: str | None = _option(
        Kind.LIST, "Which outcomes are retried: failed (the default), lost, stalled.", "LIST"
    )
    resume: bool = _option(Kind.FLAG, "Retries continue from the last checkpoint; lost runs are retried, too.")
    stall: tuple[str, ...] = _option(
        Kind.PAIRS, "End a run that reports nothing for this long. Repeatable.", "[PHASE=]TIME"
    )
    find_max: str | None = _option(
        Kind.TEXT, "Find the largest batch_size, n_layer or n_embd that works.", "KEY[=FIRST[:LAST[:STEP]]]"
    )
    copy: bool = _option(
        Kind.TEXT,
        "copy: run a command in a copy of its folder as it is now.",
        "MODE",
        default=False,
        name="snapshot",
        convert=_copies,
    )
    allow_changed: bool = _option(Kind.FLAG, "Run a command even if its code has changed since submit.")
    preflight: bool | None = _option(
        Kind.SWITCH, "First try each job of a workload with one iteration; by default if there are several jobs."
    )
    until_valid: bool | None = _option(
        Kind.SWITCH, "Repeat runs that the machine disturbed, twice at most; by default in bench and run."
    )
    no_gate: bool = _option(Kind.FLAG, "Start at once, even on a busy machine.")
    gate_timeout_s: float | None = _option(
        Kind.TIME, "Start when the machine is quiet, or after this time; 10m by default.", "TIME", name="gate_timeout"
    )
    randomize: bool = _option(Kind.FLAG, "Give each run a random size of its environment, and a random PYTHONHASHSEED.")
    on: str | None = _option(Kind.TEXT, "Run it on another machine: slurm, ssh:HOST or a profile.", "TARGET")
    partition: str | None = _option(Kind.TEXT, "With --on slurm: the partition.", "NAME")
    time_s: float | None = _option(Kind.TIME, "With --on slurm: the time limit of the allocation.", "TIME", name="time")
    sbatch: str | None = _option(Kind.TEXT, "With --on slurm: further options of sbatch.", "WORDS")

    title: str = "mpsq submit"
    home: str | None = None  # queue of its environments and workloads; MPSQ_HOME or the default if None
    measures: bool = False  # mpsq bench and mpsq run: a measurement even if it is a single cell


OPTIONS: dict[str, Option] = {
    option.name or one.name: replace(option, name=option.name or one.name, field=one.name)
    for one in fields(Request)
    if (option := one.metadata.get("option"))
}
"""Every option of a submission, by name, in the order of the help."""

GROUPS = {
    "Common": "device compile config dtype set repeats name tag priority after timeout dry_run",
    "What it runs": "framework gpus seed env secret env_name python cwd mps parser find_max snapshot allow_changed"
    " allow_daemons allow_plain note",
    "When it runs": "at deadline hold retries retry_on backoff resume stall",
    "On another machine": "on partition time sbatch",
}
"""The options in each group of `mpsq submit --help`; the others are in a last group."""
