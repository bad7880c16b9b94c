"""Events of a run, read from the wire or produced from a log by a parser.

`offset` is the byte offset of the event in its file and, with the run, its key in the store. `t` is seconds since the
warden started the job, and None where a log has no clock. The types of the fields are what ingest/event_lines.py
checks; code that makes an event is not checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct, structs

PROTOCOL = 1
"""Major version of the wire protocol."""
FIELD_DROPPED = "field_dropped"
"""Kind of the queue's own note of a field that was left out of an event."""
MAX_S = 1e9
"""Largest time or duration accepted, in seconds (31 years); a larger one is a wrong unit or forged."""
MAX_INT = 2**63 - 1
"""The largest integer that SQLite holds."""

Seconds = Annotated[float, Meta(ge=0, le=MAX_S)]
Positive = Annotated[float, Meta(ge=1e-30, le=1e30)]
"""A number of an iteration; the limits keep every rate and ratio finite."""
Count = Annotated[int, Meta(ge=0, le=MAX_INT)]
Integer = Annotated[int, Meta(ge=-MAX_INT, le=MAX_INT)]


class Iter(Struct, frozen=True, gc=False):
    """A training iteration."""

    offset: int
    t: Seconds | None
    i: Count
    dur_s: Seconds
    loss: float | None = None
    synced: bool | None = None
    phase: Annotated[str, Meta(pattern="^(compile|warmup|measure|eval_iter)$")] = "measure"
    allocated_bytes: Count | None = None
    reserved_bytes: Count | None = None


class Hello(Struct, frozen=True):
    """The job's self-description; only the version is required. `extra` keeps keys unknown to the protocol."""

    offset: int
    t: Seconds | None
    v: Count = PROTOCOL
    workload: str | None = None
    framework: str | None = None
    versions: Mapping[str, str] = {}
    device: str | None = None
    device_name: str | None = None
    dtype: str | None = None
    params: Count | None = None
    flops_per_iter: Positive | None = None
    tokens_per_iter: Positive | None = None
    samples_per_iter: Positive | None = None
    optimizer: str | None = None
    seed: Integer | None = None
    compile: bool | None = None
    compile_cache: str | None = None
    """cold, warm or mixed; also carried by a note of kind compile_cache"""
    planned_iters: Count | None = None
    config: str | None = None
    data: Mapping[str, Any] = {}
    extra: Mapping[str, Any] = {}

    def to_json(self) -> dict[str, Any]:
        """Return the fields that were given as one flat object to store as JSON."""
        named = {name: value for name, value in structs.asdict(self).items() if name not in ("offset", "t", "extra")}
        return {**self.extra, **{name: value for name, value in named.items() if value not in (None, {})}}


class Phase(Struct, frozen=True):
    offset: int
    t: Seconds
    name: Annotated[str, Meta(pattern="^(setup|compile|warmup|measure|eval|checkpoint)$")]
    edge: Annotated[str, Meta(pattern="^(begin|end)$")]
    cpu_s: Seconds | None = None
    """CPU time of the job until then, with that of the children it waited for"""


class Eval(Struct, frozen=True):
    offset: int
    t: Seconds | None
    i: Count
    split: str
    metrics: Mapping[str, float]
    dur_s: Seconds | None = None


class Metric(Struct, frozen=True):
    offset: int
    t: Seconds | None
    name: str
    value: float
    unit: str = ""
    i: Count | None = None


class Note(Struct, frozen=True):
    offset: int
    t: Seconds | None
    kind: str
    text: str = ""
    extra: Mapping[str, Any] = {}


class Bye(Struct, frozen=True):
    offset: int
    t: Seconds | None
    ok: bool


class Unknown(Struct, frozen=True):
    """A well-formed line of a type unknown to this version; `raw` is the line."""

    offset: int
    t: float | None
    type: str
    raw: str


class TimeUsage(Struct, frozen=True):
    """Output of a `time` command at the end of a log; never on the wire. None means not reported."""

    offset: int
    real_s: float
    user_s: float | None = None
    sys_s: float | None = None
    max_rss_bytes: int | None = None


class Bad(Struct, frozen=True):
    """A line that is not an event; `why` is for the log."""

    offset: int
    why: str


class Forged(Struct, frozen=True):
    """A line of type "exit", which a job may not write: only the warden sets an outcome."""

    offset: int


Event = Hello | Phase | Iter | Eval | Metric | Note | Bye | Unknown
LogEvent = Event | TimeUsage


class Counts(Struct, frozen=True):
    """Counts of a chunk's lines other than events. Unknown lines are events and counted too."""

    bad: int = 0
    forged: int = 0
    unknown: int = 0
