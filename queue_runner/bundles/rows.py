"""The tables of a bundle, and the values that each column may have: the one place where a bundle is checked.

Anybody may have written a bundle: a value that is not known to be harmless is refused. msgspec checks each row by
its class.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_type_hints

import msgspec
from msgspec import Meta, Struct, ValidationError

from queue_runner.decoding import convert, prepared
from queue_runner.errors import MpsqError
from queue_runner.events import MAX_INT, Positive
from queue_runner.ingest import parsers
from queue_runner.ingest.event_lines import BadLine, storable
from queue_runner.machine_records import Machine
from queue_runner.model import PHASES, SYNC_UNKNOWN, Outcome
from queue_runner.spec import COMPILE_MODES, MOST_NAME, MOST_TAG

MOST_TEXT = 10_000
MOST_ITEMS = 10_000
"""Values in one JSON value."""
MOST_FACTS = 1000
"""Settings, packages, words, variables or GPUs in one field."""
MOST_SECONDS = 1e12
"""Durations: far beyond any, and far below where sums overflow."""
MOST_VALUE = 1e30
MOST_MOMENT = 2.5e11
"""Unix seconds of a time of day, in the year 9892: every calendar can write it."""
MOST_JSON = 4 << 20
"""Characters of a JSON value."""
_CONTROLS = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069"
"""What text.plain removes."""
_UNPRINTABLE = (
    r"\t\n\xa0\xad\u061c\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ud800-\uf8ff\ufeff\ufff9-\uffff"
)
"""What a terminal or a page may take for something else than a letter."""

Count = Annotated[int, Meta(ge=0, le=MAX_INT)]
Integer = Annotated[int, Meta(ge=-MAX_INT, le=MAX_INT)]
Digest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Prose = Annotated[str, Meta(max_length=MOST_TEXT, pattern=rf"\A[^{_CONTROLS}\ud800-\udfff]*\Z")]
"""A text of several lines, without control characters."""
Name = Annotated[str, Meta(max_length=MOST_NAME, pattern=rf"\A[^<>{_CONTROLS}{_UNPRINTABLE}]*\Z")]
"""One line without text that a terminal or a page would take for a command."""
Fact = Name | Integer | Annotated[float, Meta(ge=-float(MAX_INT), le=float(MAX_INT))] | bool
Id = Annotated[int, Meta(ge=1, le=2**53)]
Ordinal = Annotated[int, Meta(ge=0, le=10**9)]
"""A number from 1 on; that of a preflight is 0."""
Moment = Annotated[float, Meta(ge=0, le=MOST_MOMENT)]
Seconds = Annotated[float, Meta(ge=0, le=MOST_SECONDS)]
Difference = Annotated[float, Meta(ge=-MOST_SECONDS, le=MOST_SECONDS)]
Json = Annotated[str, Meta(max_length=MOST_JSON)]
"""A text that `Table.decode` reads and writes anew."""
Limit = Annotated[float, Meta(ge=0, le=MOST_SECONDS)] | None
Words = Annotated[list[Prose], Meta(max_length=MOST_FACTS)]
Names = Annotated[dict[Name, Name], Meta(max_length=MOST_FACTS)]
Code = Annotated[str, Meta(pattern=r"\A([0-9a-f]{64})?\Z")]
Setting = Prose | Integer | float | bool
Leaf = Setting | None
"""A value of JSON that holds no others."""
Processors = Annotated[int, Meta(ge=0, le=1 << 20)]
JsonReader = Callable[[Any, Any], Any]
"""Checks a value of JSON, given its row."""


class BadBundle(MpsqError):
    """The file is damaged, is not a bundle, or has content that a bundle may not have: it is refused whole."""

    def __init__(self, reason: str, hint: str = "ask for it again: nothing of it was stored") -> None:
        super().__init__(f"this bundle is refused: {reason}", hint)
        self.reason = reason


class HeadRow(NamedTuple):
    """The statements of a bundle about itself. `sha256` is the hash of all other rows (reading.py)."""

    version: Integer
    mpsq: Name
    sha256: Digest


class GroupRow(NamedTuple):
    id: Id
    created_at: Moment
    title: Prose
    seed: Integer
    aim_json: Json | None


class FingerprintRow(NamedTuple):
    hash: Digest
    kind: Literal["machine", "software"]
    data_json: Json


class JobRow(NamedTuple):
    id: Id
    group_id: Id
    created_at: Moment
    spec_json: Json
    note: Prose | None
    tags_json: Json


class RunRow(NamedTuple):
    id: Id
    job_id: Id
    number: Ordinal
    repeat: Ordinal
    attempt: Ordinal
    position: Annotated[int, Meta(ge=-(2**53), le=2**53)]
    outcome: Outcome
    exit_code: Annotated[int, Meta(ge=-(2**31), le=2**31)] | None
    signal: Annotated[int, Meta(ge=0, le=1000)] | None
    reason: Prose | None
    created_at: Moment
    claimed_at: Moment | None
    started_at: Moment | None
    ended_at: Moment | None
    machine_hash: Digest | None
    software_hash: Digest | None
    resumed_from: Id | None


class HelloRow(NamedTuple):
    run_id: Id
    workload: Name | None
    framework: Name | None
    framework_version: Name | None
    device: Name | None
    device_name: Name | None
    dtype: Name | None
    compile: Annotated[int, Meta(ge=0, le=1)] | None
    config: Name | None
    params: Count | None
    flops_per_iter: Positive | None
    tokens_per_iter: Positive | None
    samples_per_iter: Positive | None
    optimizer: Name | None
    seed: Integer | None
    planned_iters: Count | None
    compile_cache: Name | None
    data_name: Name | None
    data_sha256: Name | None
    hello_json: Json


class ExitRow(NamedTuple):
    run_id: Id
    real_s: Seconds | None
    slept_s: Difference | None
    paused_s: Difference | None
    user_s: Seconds | None
    sys_s: Seconds | None
    max_rss_bytes: Count | None
    exit_json: Json


class IngestRow(NamedTuple):
    run_id: Id
    source: Literal["events", "stdout"]
    offset: Count
    parser_state: Json | None
    unknown: Count
    bad: Count
    forged: Count
    torn: Count
    rewritten: Count


class ConditionRow(NamedTuple):
    run_id: Id
    at: Moment
    data_json: Json


class NoteRow(NamedTuple):
    run_id: Id
    offset: Count
    kind: Name
    text: Prose


class PhaseMarkRow(NamedTuple):
    run_id: Id
    offset: Count
    t_s: Difference
    name: Name
    edge: Literal["begin", "end"]


class EvalRow(NamedTuple):
    run_id: Id
    offset: Count
    metric: Name
    i: Integer
    split: Name
    value: float | None
    dur_s: Seconds | None


class MetricRow(NamedTuple):
    run_id: Id
    offset: Count
    name: Name
    i: Integer | None
    value: float | None
    unit: Name | None


class IterationRow(NamedTuple):
    run_id: Id
    offset: Count
    i: Integer
    dur_s: Seconds
    loss: float | None
    phase: Annotated[int, Meta(ge=0, lt=len(PHASES))]
    synced: Annotated[int, Meta(ge=0, le=SYNC_UNKNOWN)]
    allocated_bytes: Count | None
    reserved_bytes: Count | None


class TravellingQuestion(Struct, forbid_unknown_fields=True):
    """The question of a job, and the code: the fields of its specification that travel."""

    kind: Literal["workload", "command"]
    name: Name
    workload: Name | None
    framework: Name | None
    device: Name | None
    dtype: Name | None
    config: Name | None
    parser: Name | None
    compile: bool | None
    compile_mode: Literal[("", *COMPILE_MODES)]  # type: ignore[valid-type]
    seed: Integer | None
    params: Annotated[dict[Name, Setting], Meta(max_length=MOST_FACTS)]
    argv: Words
    template: Words
    find_max: Prose
    snapshot: Digest | None
    tree: Code
    code: Code
    env_name: Name
    packages: Names
    mps: Names
    variables: Names
    gpus: Annotated[int, Meta(ge=1, le=4096)]
    cores: Processors
    threads: Processors
    timeout_s: Limit
    gate_s: Limit
    resume: bool
    gate: bool
    seed_by_round: bool = False
    warmup: Annotated[int, Meta(ge=0, le=1 << 20)] = 0
    prepare: Prose = ""


QUESTION = TravellingQuestion.__struct_fields__
ADDED = {"seed_by_round"}
"""Fields of a question that earlier versions did not write: no stored hash counts them."""


class TravellingAim(msgspec.Struct, forbid_unknown_fields=True):
    """What a submission asks about, a spec.Aim."""

    by: Name
    margins: dict[Name, Annotated[float, Meta(gt=0, le=MOST_VALUE)]]


class Table(Struct, frozen=True, dict=True):
    """A table of a bundle: its rows, the columns of its key, by which it is sorted, and how many rows are read at
    once, which the hash of a bundle depends on."""

    name: str
    row: type[tuple[Any, ...]]
    key: Sequence[str]
    at_once: int = 100

    @cached_property
    def columns(self) -> list[str]:
        return list(self.row._fields)  # type: ignore[attr-defined]

    @cached_property
    def sql(self) -> str:
        """The only statement with which it may have been created."""
        hints = get_type_hints(self.row)
        columns = [f'"{name}" {_declared(hints[name])}' for name in self.columns]
        keys = ", ".join(f'"{name}"' for name in self.key)
        return f"CREATE TABLE {self.name} ({', '.join(columns)}, PRIMARY KEY ({keys})) WITHOUT ROWID"

    @cached_property
    def select(self) -> str:
        """The statement that reads it in the order of its key."""
        names, keys = (", ".join(f'"{name}"' for name in chosen) for chosen in (self.columns, self.key))
        return f"SELECT {names} FROM {self.name} ORDER BY {keys}"

    @cached_property
    def _decoder(self) -> msgspec.msgpack.Decoder[Any]:
        return msgspec.msgpack.Decoder(prepared(list[self.row]))  # type: ignore[name-defined]

    def decode(self, data: bytes) -> list[Any]:
        """Return the rows in MessagePack, each value checked, and JSON as mpsq writes it. Raises: BadBundle."""
        try:
            rows: list[Any] = self._decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._bad(str(error)) from error
        reads = _JSON.get(self.name)
        if reads is None:
            return rows
        return [
            row._replace(**{name: _read(self.name, name, read, row) for name, read in reads.items()}) for row in rows
        ]

    def _bad(self, error: str) -> BadBundle:
        problem, _, place = error.partition(" - at `$[")
        column = re.search(r"\]\[(\d+)\]", place)
        name = self.columns[int(column[1])] if column else "row"
        return BadBundle(f"its {self.name} have an invalid {name} ({_shown(problem)})")


def _declared(hint: Any) -> str:
    kinds = [*get_args(hint)] if type(None) in get_args(hint) else [hint]
    optional = type(None) in kinds
    kind = next(k for k in kinds if k is not type(None))
    name = {int: "INTEGER", float: "REAL"}.get(kind, "TEXT")
    return name if optional else f"{name} NOT NULL"


def _shown(problem: str) -> str:
    problem = re.sub(r"matching regex '.*'", "of other characters", problem).replace("`", "").replace(" - at $", " at ")
    return ascii(problem)[1:-1][:200]


def _read(table: str, column: str, read: JsonReader, row: Any) -> str | None:
    if (text := getattr(row, column)) is None:
        return None
    try:
        return json.dumps(read(msgspec.json.decode(text), row), sort_keys=True)
    except (ValidationError, BadLine) as error:
        raise BadBundle(f"its {table} have an invalid {column} ({_shown(str(error))})") from error
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise BadBundle(f"its {table} have a {column} that is not JSON, or is nested too deeply") from error


def _tree(value: Any, _row: Any) -> dict[str, Any]:
    """Check a JSON object: its depth, its size, its texts and numbers. Raises: BadLine, ValidationError."""
    if type(value) is not dict:
        raise BadLine("it is not an object")
    storable(value)
    if _size(value) > MOST_ITEMS:
        raise BadLine(f"it has more than {MOST_ITEMS:,} values")
    _check_leaves(value)
    return value


def _size(value: Any) -> int:
    if type(value) is dict:
        return 1 + sum(1 + _size(item) for item in value.values())
    return 1 + sum(map(_size, value)) if type(value) is list else 1


def _check_leaves(value: Any) -> None:
    if type(value) is dict or type(value) is list:
        for item in value:
            _check_leaves(item)
        for item in value.values() if type(value) is dict else ():
            _check_leaves(item)
    else:
        convert(value, Leaf)


def _question(value: Any, _row: Any) -> dict[str, Any]:
    """Check the question of a job. Raises: BadLine, ValidationError for a field or a value that no job has; BadBundle
    for a log format that only another mpsq knows."""
    storable(value)
    question = convert(value, TravellingQuestion)
    if question.parser is not None and question.parser not in parsers.names():
        raise BadBundle(f"a job has the log format {question.parser!a}, which this mpsq does not know", "upgrade mpsq")
    if any(type(setting) is float and abs(setting) > 1e300 for setting in question.params.values()):
        raise BadLine("a setting is too large")
    fields: dict[str, Any] = msgspec.to_builtins(question)
    return fields


def _tags(value: Any, _row: Any) -> list[str]:
    tags = convert(value, Annotated[list[Name], Meta(max_length=MOST_ITEMS)])
    if any(len(tag) > MOST_TAG for tag in tags):
        raise BadLine(f"a tag has more than {MOST_TAG} characters")
    return sorted({*tags})


def _aim(value: Any, _row: Any) -> Any:
    return msgspec.to_builtins(convert(value, TravellingAim))


Facts = Annotated[dict[Name, Fact | None], Meta(max_length=MOST_FACTS)]
Many = Annotated[list[Any], Meta(max_length=MOST_FACTS)]
_SOFTWARE = {
    **dict.fromkeys(("versions", "packages", "system", "env"), Facts | None),
    **dict.fromkeys(("code", "python"), Name | None),
}
"""The fields of software that reports read."""


def _facts(value: Any, row: Any) -> dict[str, Any]:
    """Check a fingerprint: facts, facts by name, and lists of these, also in fields of a newer mpsq. Raises: BadLine,
    ValidationError. (msgspec 0.22 frees memory twice in a union of a text with a pattern and a list or an object: there
    are none.)"""
    storable(value)
    if row.kind == "machine":
        convert(value, Machine)
    facts = convert(value, dict[Name, Any])
    for name, held in facts.items():
        if row.kind == "software" and name in _SOFTWARE:
            convert(held, _SOFTWARE[name])
        for item in convert(held, Many) if type(held) is list else [held]:
            convert(item, Facts if type(item) is dict else Fact | None)
    return facts


_JSON: Mapping[str, Mapping[str, JsonReader]] = {
    "groups": {"aim_json": _aim},
    "fingerprints": {"data_json": _facts},
    "jobs": {"spec_json": _question, "tags_json": _tags},
    "hellos": {"hello_json": _tree},
    "exits": {"exit_json": _tree},
    "ingests": {"parser_state": _tree},
    "conditions": {"data_json": _tree},
}

HEAD = Table("bundle", HeadRow, ["version"])
GROUPS = Table("groups", GroupRow, ["id"])
FINGERPRINTS = Table("fingerprints", FingerprintRow, ["hash"])
JOBS = Table("jobs", JobRow, ["id"])
RUNS = Table("runs", RunRow, ["id"])
NOTES = Table("notes", NoteRow, ["run_id", "offset"])
MEASURED = (
    Table("hellos", HelloRow, ["run_id"]),
    Table("exits", ExitRow, ["run_id"]),
    Table("ingests", IngestRow, ["run_id", "source"]),
    Table("conditions", ConditionRow, ["run_id", "at"]),
    NOTES,
    Table("phases", PhaseMarkRow, ["run_id", "offset"]),
    Table("evals", EvalRow, ["run_id", "offset", "metric"]),
    Table("metrics", MetricRow, ["run_id", "offset", "name"]),
    Table("iterations", IterationRow, ["run_id", "offset"], at_once=1000),
)
"""What runs measured: the first column is the run."""
TABLES = (HEAD, GROUPS, FINGERPRINTS, JOBS, RUNS, *MEASURED)
