"""Events of a run, read from the wire or produced from a log by a parser.

`offset` is the byte offset of the event in its file and, with the run, its key in the store. `t` is seconds since the
warden started the job, and None where a log has no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

PROTOCOL = 1
"""Major version of the wire protocol."""
FIELD_DROPPED = "field_dropped"
"""Kind of the queue's own note of a field that was left out of an event."""


class Iter(NamedTuple):
    """A training iteration. `t` is None in events parsed from a log without a clock.

    A tuple, not a frozen dataclass like the others: there are millions, and it is created in a quarter of the time.
    """

    offset: int
    t: float | None
    i: int
    dur_s: float
    loss: float | None = None
    synced: bool | None = None
    phase: str = "measure"
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Hello:
    """The job's self-description; only the version is required. `extra` keeps keys unknown to the protocol."""

    offset: int
    t: float | None
    v: int = PROTOCOL
    workload: str | None = None
    framework: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    device: str | None = None
    device_name: str | None = None
    dtype: str | None = None
    params: int | None = None
    flops_per_iter: float | None = None
    tokens_per_iter: float | None = None
    samples_per_iter: float | None = None
    optimizer: str | None = None
    seed: int | None = None
    compile: bool | None = None
    compile_cache: str | None = None
    """cold, warm or mixed; also carried by a note of kind compile_cache"""
    planned_iters: int | None = None
    config: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    def said(self) -> dict[str, Any]:
        """Return the fields that were given as one flat object to store as JSON."""
        named = {key.name: getattr(self, key.name) for key in fields(self) if key.name not in ("offset", "t", "extra")}
        return {**self.extra, **{name: value for name, value in named.items() if value not in (None, {})}}


@dataclass(frozen=True, slots=True)
class Phase:
    offset: int
    t: float
    name: str
    edge: str
    """begin or end"""
    cpu_s: float | None = None
    """CPU time of the job until then, with that of the children it waited for"""


@dataclass(frozen=True, slots=True)
class Eval:
    offset: int
    t: float | None
    i: int
    split: str
    metrics: Mapping[str, float]
    dur_s: float | None = None


@dataclass(frozen=True, slots=True)
class Metric:
    offset: int
    t: float | None
    name: str
    value: float
    unit: str = ""
    i: int | None = None


@dataclass(frozen=True, slots=True)
class Note:
    offset: int
    t: float | None
    kind: str
    text: str
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bye:
    """The job's own view of its end: displayed, never used as an outcome."""

    offset: int
    t: float | None
    ok: bool


@dataclass(frozen=True, slots=True)
class Unknown:
    """A well-formed line of a type unknown to this version; `raw` is the line."""

    offset: int
    t: float | None
    type: str
    raw: str


@dataclass(frozen=True, slots=True)
class Rusage:
    """Output of a `time` command at the end of a log; never on the wire. None means not reported."""

    offset: int
    real_s: float
    user_s: float | None = None
    sys_s: float | None = None
    max_rss_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Bad:
    """A line that is not an event; `why` is for the log."""

    offset: int
    why: str


@dataclass(frozen=True, slots=True)
class Forged:
    """A line of type "exit", which a job may not write: only the warden sets an outcome."""

    offset: int


Event = Hello | Phase | Iter | Eval | Metric | Note | Bye | Unknown
LogEvent = Event | Rusage


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of a chunk's lines other than events. Unknown lines are events and counted too."""

    bad: int = 0
    forged: int = 0
    unknown: int = 0
