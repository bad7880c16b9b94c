"""The content of a bundle: its parts in their order, their columns, and the values that each column may have.

Anybody may have written a bundle: a value that is not known to be harmless is refused.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from queue_runner.errors import MpsqError
from queue_runner.events import MAX_INT
from queue_runner.ingest.storable import NOT_FINITE, BadLine, storable
from queue_runner.model import PHASES, SYNC_UNKNOWN, Outcome
from queue_runner.submit.policy import MOST_NAME, MOST_NOTE, MOST_TAG
from queue_runner.text import plain

MOST_TEXT = 10_000
MOST_ITEMS = 10_000
"""Values in one JSON value."""
MOST_SECONDS = 1e12
"""Durations: far beyond any, and far below where sums overflow."""
MOST_MOMENT = 2.5e11
"""Unix seconds of a time of day, in the year 9892: every calendar can write it."""
MOST_VALUE = 1e30
KINDS = ("workload", "command")

Check = Callable[[Any, str], Any]


class BadBundle(MpsqError):
    """The file is damaged, is not a bundle, or has content that a bundle may not have: it is refused whole."""

    def __init__(self, reason: str, hint: str = "ask for it again: nothing of it was stored") -> None:
        super().__init__(f"this bundle is refused: {reason}", hint)


def prose(most: int = MOST_TEXT) -> Check:
    """Return a check of a text of several lines, without control characters."""

    def check(value: Any, key: str) -> str:
        if type(value) is not str or len(value) > most:
            raise BadLine(f"{key} is not a text of at most {most:,} characters")
        storable(value)
        if plain(value) != value:
            raise BadLine(f"{key} contains control characters")
        return value

    return check


def word(most: int = MOST_NAME) -> Check:
    """Return a check of a name: one line without text that a terminal or a page would take for a command."""
    text = prose(most)

    def check(value: Any, key: str) -> Any:
        if not text(value, key).isprintable() or set(value) & set("<>"):
            raise BadLine(f"{key} contains control characters or markup")
        return value

    return check


def whole(low: int, high: int = MAX_INT) -> Check:
    def check(value: Any, key: str) -> int:
        if type(value) is not int or not low <= value <= high:
            raise BadLine(f"{key} is not a whole number between {low} and {high}")
        return value

    return check


def number(low: float, high: float) -> Check:
    def check(value: Any, key: str) -> float:
        if type(value) not in (int, float) or not low <= value <= high:  # nan is in no range
            raise BadLine(f"{key} is not a number between {low:g} and {high:g}")
        return float(value)

    return check


_finite: Callable[[Any, str], float] = number(-sys.float_info.max, sys.float_info.max)


def measured(value: Any, key: str) -> float:
    """Check a number of the trainer's, which may be infinite: it is then a word of NOT_FINITE."""
    if value in ("inf", "-inf"):
        return NOT_FINITE[value]
    return _finite(value, key)


def flag(value: Any, key: str) -> bool:
    if type(value) is not bool:
        raise BadLine(f"{key} is not true or false")
    return value


def one_of(*values: Any) -> Check:
    def check(value: Any, key: str) -> Any:
        if type(value) is bool or value not in values:
            raise BadLine(f"{key} is none of {', '.join(map(str, values))}")
        return value

    return check


def digest(value: Any, key: str) -> str:
    if type(value) is not str or not re.fullmatch(r"[0-9a-f]{64}", value):
        raise BadLine(f"{key} is not a sha256")
    return value


def tree(value: Any, key: str) -> dict[str, Any]:
    """Check a JSON object: its depth, its size, its texts and numbers."""
    if type(value) is not dict:
        raise BadLine(f"{key} is not an object")
    storable(value)
    if _size(value, key) > MOST_ITEMS:
        raise BadLine(f"{key} has more than {MOST_ITEMS:,} values")
    return value


TEXT = prose()


def _size(value: Any, key: str) -> int:
    if type(value) is str:
        TEXT(value, key)
    elif type(value) is int and abs(value) > MAX_INT:
        raise BadLine(f"{key} has a number beyond 64 bits")
    elif type(value) is dict:
        return 1 + sum(_size(name, key) + _size(item, key) for name, item in value.items())
    elif type(value) is list:
        return 1 + sum(_size(item, key) for item in value)
    return 1


def tag_list(value: Any, key: str) -> list[str]:
    if type(value) is not list or len(value) > MOST_ITEMS:
        raise BadLine(f"{key} is not a list")
    return [_TAG(item, key) for item in value]


_TAG = word(MOST_TAG)
_ID, _COUNT, NAME = whole(1, 2**53), whole(0), word()
_AT, _FOR = number(0, MOST_MOMENT), number(0, MOST_SECONDS)
_DUR, _VALUE = number(-MOST_SECONDS, MOST_SECONDS), number(-MOST_VALUE, MOST_VALUE)


def aim(value: Any, key: str) -> dict[str, Any]:
    """Check what a submission asks about, a spec.Aim."""
    if type(value) is not dict or value.keys() != {"by", "margins"} or type(value["margins"]) is not dict:
        raise BadLine(f"{key} is not what a submission asks about")
    for name, margin in [(value["by"], 1.0), *value["margins"].items()]:
        NAME(name, key)
        if not number(0, MOST_VALUE)(margin, key):
            raise BadLine(f"{key} has a margin of 0")
    return value


@dataclass(frozen=True)
class PartColumn:
    name: str
    check: Check
    optional: bool = False

    @property
    def as_json(self) -> bool:
        """Whether the database holds it as JSON text."""
        return self.check in (tree, aim)


@dataclass(frozen=True)
class Part:
    """Rows of one kind. `order` names what they are sorted by, as SQL. `removed` are further columns, which
    earlier versions of mpsq wrote; they are checked and dropped. Optional columns at the end may be missing: earlier
    versions did not write them."""

    name: str
    columns: Sequence[PartColumn]
    order: str
    removed: Sequence[PartColumn] = ()

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    def check(self, row: Any) -> list[Any]:
        """Return the values of a row. Raises: BadLine."""
        n = len(self.columns)
        if type(row) is list and len(row) < n and all(column.optional for column in self.columns[len(row) :]):
            row = [*row, *[None] * (n - len(row))]
        if type(row) is not list or len(row) not in (n, n + len(self.removed)):
            raise BadLine(f"a row of {self.name} has not {n} values")
        values = [
            None if value is None and column.optional else column.check(value, column.name)
            for value, column in zip(row, [*self.columns, *self.removed], strict=False)
        ]
        return values[:n]


def _columns(**checks: Check) -> list[PartColumn]:
    """Read `name=check`; `name_=check` may be unknown."""
    return [PartColumn(name.removesuffix("_"), check, name.endswith("_")) for name, check in checks.items()]


def _of_run(**checks: Check) -> list[PartColumn]:
    return _columns(run_id=_ID, **checks)


PARTS = (
    Part("groups", _columns(id=_ID, created_at=_AT, title=TEXT, seed=whole(-MAX_INT), aim_=aim), "id"),
    Part("fingerprints", _columns(hash=digest, kind=one_of("machine", "software"), data_json=tree), "hash"),
    Part(
        "jobs",
        _columns(id=_ID, group_id=_ID, created_at=_AT, spec_json=tree, note_=prose(MOST_NOTE), tags=tag_list),
        "id",
    ),
    Part(
        "runs",
        _columns(
            id=_ID, job_id=_ID, number=whole(1, 10**9), repeat=whole(1, 10**9), attempt=whole(1, 10**9),
            position=whole(-(2**53), 2**53), outcome=one_of(*map(str, Outcome)), exit_code_=whole(-(2**31), 2**31),
            signal_=whole(0, 1000), reason_=TEXT, created_at=_AT, claimed_at_=_AT, started_at_=_AT, ended_at_=_AT,
            machine_hash_=digest, software_hash_=digest, resumed_from_=_ID,
        ),
        "id",
        _columns(replaces_=whole(0, 10**9)),
    ),
    Part(
        "hellos",
        _of_run(
            workload_=NAME, framework_=NAME, framework_version_=NAME, device_=NAME, device_name_=NAME,
            dtype_=NAME, compile_=one_of(0, 1), config_=NAME, params_=_COUNT, flops_per_iter_=_VALUE,
            tokens_per_iter_=_VALUE, samples_per_iter_=_VALUE, optimizer_=NAME, seed_=whole(-MAX_INT),
            planned_iters_=_COUNT, compile_cache_=NAME, data_name_=NAME, data_sha256_=NAME, hello_json=tree,
        ),
        "run_id",
    ),
    Part(
        "exits",
        _of_run(
            real_s_=_FOR, slept_s_=_DUR, paused_s_=_DUR, user_s_=_FOR, sys_s_=_FOR, max_rss_bytes_=_COUNT,
            exit_json=tree,
        ),
        "run_id",
    ),
    Part(
        "ingests",
        _of_run(
            source=one_of("events", "stdout"), offset=_COUNT, parser_state_=tree, unknown=_COUNT,
            bad=_COUNT, forged=_COUNT, torn=_COUNT, rewritten=_COUNT,
        ),
        "run_id, source",
    ),
    Part("conditions", _of_run(at=_AT, data_json=tree), "run_id, at"),
    Part("notes", _of_run(offset=_COUNT, kind=NAME, text=TEXT), "run_id, offset"),
    Part(
        "taints", _of_run(kind=NAME, severity=one_of("invalid", "caveat"), detail=TEXT), "run_id, kind"
    ),
    Part(
        "phases",
        _of_run(offset=_COUNT, t_s=_DUR, name=NAME, edge=one_of("begin", "end")),
        "run_id, offset",
    ),
    Part(
        "evals",
        _of_run(offset=_COUNT, metric=NAME, i=whole(-MAX_INT), split=NAME, value_=measured, dur_s_=_FOR),
        "run_id, offset, metric",
    ),
    Part(
        "metrics",
        _of_run(offset=_COUNT, name=NAME, i_=whole(-MAX_INT), value_=measured, unit_=NAME),
        "run_id, offset, name",
    ),
    Part(
        "iterations",
        _of_run(
            offset=_COUNT, i=whole(-MAX_INT), dur_s=_FOR, loss_=measured, phase=whole(0, len(PHASES) - 1),
            synced=whole(0, SYNC_UNKNOWN), allocated_bytes_=_COUNT, reserved_bytes_=_COUNT,
        ),
        "run_id, offset",
    ),
)  # fmt: skip


class BundleGroup(NamedTuple):
    id: int
    created_at: float
    title: str
    seed: int
    aim: str | None


class BundleJob(NamedTuple):
    id: int
    group_id: int
    created_at: float
    spec_json: str
    note: str | None


class BundleRun(NamedTuple):
    """The columns of the part `runs`."""

    id: int
    job_id: int
    number: int
    repeat: int
    attempt: int
    position: int
    outcome: str
    exit_code: int | None
    signal: int | None
    reason: str | None
    created_at: float
    claimed_at: float | None
    started_at: float | None
    ended_at: float | None
    machine_hash: str | None
    software_hash: str | None
    resumed_from: int | None


BY_NAME = {part.name: part for part in PARTS}
OF_RUN = [part for part in PARTS if part.columns[0].name == "run_id"]
"""Parts that hold what a run measured."""
