"""Bundles from people who mean harm, or from a bad disk: refused whole with a sentence, and nothing is written."""

from __future__ import annotations

import gzip
import json
import os
import random
import sqlite3
import subprocess
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queue_runner import reports
from queue_runner.bundles import convert, reading
from queue_runner.bundles.rows import TABLES, BadBundle
from queue_runner.errors import MpsqError
from queue_runner.paths import Layout
from queue_runner.reports._common import printing
from queue_runner.reports._common.report_options import read_options
from queue_runner.store import read
from tests.bundles.bundles_support import (
    FORMAT_1,
    Change,
    changed,
    content,
    exported,
    lines_of,
    merged,
    old_rows,
    old_sealed,
    packed,
    receiver,
    rehash,
    sender,
)

pytestmark = pytest.mark.process

LONG = os.environ.get("MPSQ_CAMPAIGN") == "long"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return exported(sender(tmp_path_factory.mktemp("a") / "home"))


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """A queue into which nothing of all this may come."""
    return receiver(tmp_path_factory.mktemp("b") / "home")


def refused(layout: Layout, data: bytes, says: str = "refused") -> None:
    """Check that a bundle is refused by one sentence, and that nothing was stored."""
    before = content(layout.db)
    with pytest.raises(BadBundle, match=says) as caught:
        merged(layout, data)
    assert "\n" not in caught.value.message and caught.value.message.isprintable()
    assert content(layout.db) == before
    assert not before["jobs"]


def put(table: str, column: str, value: Any) -> Change:
    """Put a value into the first row."""

    def change(connection: sqlite3.Connection) -> None:
        key = next(part.key[0] for part in TABLES if part.name == table)
        first = f"(SELECT min({key}) FROM {table})"
        connection.execute("PRAGMA ignore_check_constraints=ON")
        connection.execute(f'UPDATE OR IGNORE {table} SET "{column}" = ? WHERE {key} = {first}', [value])

    return change


def spec(**fields: Any) -> Change:
    def change(connection: sqlite3.Connection) -> None:
        (text,) = connection.execute("SELECT spec_json FROM jobs WHERE id = 1").fetchone()
        connection.execute("UPDATE jobs SET spec_json = ? WHERE id = 1", [json.dumps({**json.loads(text), **fields})])

    return change


def told(kind: str, **fields: Any) -> Change:
    def change(connection: sqlite3.Connection) -> None:
        (text,) = connection.execute("SELECT data_json FROM fingerprints WHERE kind = ?", [kind]).fetchone()
        new = json.dumps({**json.loads(text), **fields})
        connection.execute("UPDATE fingerprints SET data_json = ? WHERE kind = ?", [new, kind])
        rehash(connection)

    return change


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


LIES: dict[str, tuple[Change | str, str]] = {
    "a number as text": (put("iterations", "dur_s", "half"), "its iterations have an invalid dur_s"),
    "a number as blob": (put("iterations", "i", b"\x01"), "its iterations have an invalid i "),
    "a text as blob": (put("notes", "text", b"text"), "its notes have an invalid text"),
    "a negative time": (put("iterations", "dur_s", -1.0), "its iterations have an invalid dur_s"),
    "an infinite time": (put("iterations", "dur_s", float("inf")), "its iterations have an invalid dur_s"),
    "tokens below zero": (put("hellos", "tokens_per_iter", -2.0), "its hellos have an invalid tokens_per_iter"),
    "a phase of none": (put("iterations", "phase", 99), "its iterations have an invalid phase"),
    "a key as text": (put("iterations", "offset", "a"), "its iterations have an invalid offset"),
    "a run as text": (put("iterations", "run_id", "a"), "its iterations have an invalid run_id|belong to a run that"),
    "an escape in a name": (spec(name="\x1b[31mred"), "spec_json .* at .name"),
    "markup in a name": (spec(name="<script>alert(1)</script>"), "spec_json .* at .name"),
    "markup of a device": (put("hellos", "device_name", "<img src=x>"), "hellos have an invalid device_name"),
    "an escape in a note": (put("jobs", "note", "\x1b]0;title\x07"), "jobs have an invalid note"),
    "an escape in a tree": (put("hellos", "hello_json", '{"a": "\\u001b[2J"}'), "invalid hello_json"),
    "half a surrogate": (put("hellos", "hello_json", '{"a": "\\ud800"}'), "hello_json"),
    "NaN in a tree": (put("hellos", "hello_json", '{"a": NaN}'), "hello_json that is not JSON"),
    "1e400 in a tree": (put("hellos", "hello_json", '{"a": 1e400}'), "hello_json"),
    "a huge number in a tree": (put("hellos", "hello_json", '{"a": 1' + "0" * 40 + "}"), "hello_json"),
    "a path as code": (spec(snapshot="../../etc/passwd"), "spec_json .* at .snapshot"),
    "a field for the shell": (spec(cwd="/tmp"), "spec_json .*unknown field"),
    "an environment": (spec(env={"LD_PRELOAD": "/x.so"}), "spec_json .*unknown field"),
    "another kind": (spec(kind="import"), "spec_json .* at .kind"),
    "an unknown log format": (spec(parser="of-the-future"), "has the log format 'of-the-future', which this mpsq does"),
    "a list as a question": (put("jobs", "spec_json", "[]"), "jobs have an invalid spec_json"),
    "a markup of tags": (put("jobs", "tags_json", '["<b>"]'), "jobs have an invalid tags_json"),
    "a long tag": (put("jobs", "tags_json", json.dumps(["a" * 150])), "a tag has more than"),
    "deep JSON": (put("hellos", "hello_json", json.dumps(deep(100))), "nested too deeply"),
    "a long text": (put("jobs", "note", "a" * 20_000), "jobs have an invalid note"),
    "many values": (put("hellos", "hello_json", json.dumps({"a": [0] * 20_000})), "more than 10,000 values"),
    "markup of a metric": (put("groups", "aim_json", '{"by": "<b>", "margins": {}}'), "invalid aim_json"),
    "a margin as text": (put("groups", "aim_json", '{"by": "", "margins": {"": "1"}}'), "invalid aim_json"),
    "a margin of nothing": (put("groups", "aim_json", '{"by": "", "margins": {"": 0}}'), "invalid aim_json"),
    "an aim of its own": (put("groups", "aim_json", '{"by": ""}'), "invalid aim_json"),
    "a doubled run": (put("runs", "number", 2), "two have the same number"),
    "a run of no job": (put("runs", "job_id", 99), "belongs to none of its jobs"),
    "a job of no submission": (put("jobs", "group_id", 99), "belongs to none of its submissions"),
    "a submission without runs": ("INSERT INTO groups VALUES (9, 1, '', 0, NULL)", "no run of the submission g9"),
    "a point of no run": (put("iterations", "run_id", 99), "belong to a run that it does not contain"),
    "results without a machine": (put("runs", "machine_hash", None), "does not say on which machine"),
    "an unknown fingerprint": (put("runs", "machine_hash", "0" * 64), "machine that the bundle does not describe"),
    "a fingerprint of another kind": ("UPDATE runs SET machine_hash = software_hash", "machine that the bundle"),
    "another fingerprint": (put("fingerprints", "data_json", '{"cpu": "better"}'), "does not match its hash"),
    "a processor as number": (told("machine", cpu=5), "fingerprints have an invalid data_json"),
    "a processor as list": (told("machine", cpu=["a"]), "fingerprints have an invalid data_json"),
    "memory as text": (told("machine", memory_gib="64"), "fingerprints have an invalid data_json"),
    "GPUs as text": (told("machine", gpus="H200"), "fingerprints have an invalid data_json"),
    "cores of a GPU as list": (told("machine", gpus=[{"cores": [1]}]), "fingerprints have an invalid data_json"),
    "cores of a GPU as text": (told("machine", gpus=[{"cores": "1"}]), "fingerprints have an invalid data_json"),
    "the system as list": (told("software", system=[1]), "fingerprints have an invalid data_json"),
    "packages as list": (told("software", packages=[1]), "fingerprints have an invalid data_json"),
    "an unknown fact in depth": (told("software", more={"a": {"b": 1}}), "fingerprints have an invalid data_json"),
    "markup of a fact": (told("software", more="<b>"), "fingerprints have an invalid data_json"),
    "markup as a name of a fact": (told("software", **{"<b>": 1}), "fingerprints have an invalid data_json"),
    "a start beyond time": (put("runs", "started_at", 1e300), "runs have an invalid started_at"),
    "an end beyond calendars": (put("runs", "ended_at", 1e12), "runs have an invalid ended_at"),
    "an outcome of none": (put("runs", "outcome", "WON"), "runs have an invalid outcome"),
    "failed without a code": (put("runs", "outcome", "FAILED"), "run 1 contradicts itself"),
    "a circle of resumes": (put("runs", "resumed_from", 1), "resumes from a run that is not of the same job"),
    "another version": ("UPDATE bundle SET version = 3", "its format is version 3"),
    "an escape in its version": (put("bundle", "mpsq", "\x1b[31m"), "bundle have an invalid mpsq"),
    "two heads": ("INSERT INTO bundle VALUES (9, '', '')", "refused"),
    "no head": ("DELETE FROM bundle", "it has no head"),
}  # fmt: skip


@pytest.mark.parametrize("what", LIES)
def test_a_well_sealed_lie_is_refused(data: bytes, there: Layout, what: str) -> None:
    change, says = LIES[what]
    refused(there, changed(data, change), says)


def test_a_sealed_bundle_is_accepted_so_that_the_lies_are_what_is_refused(data: bytes, tmp_path: Path) -> None:
    assert merged(receiver(tmp_path / "c"), changed(data, "SELECT 1"))[0].runs == 6


OBJECTS = {
    "a view": "CREATE VIEW more AS SELECT 1",
    "a view in the place of a table": "DROP TABLE notes; CREATE VIEW notes AS SELECT 1 AS run_id",
    "a view that never ends": (
        "DROP TABLE phases; CREATE VIEW phases AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
        " SELECT i AS run_id, i AS offset, 0.0 AS t_s, '' AS name, 'end' AS edge FROM n"
    ),
    "a trigger": "CREATE TRIGGER more AFTER INSERT ON notes BEGIN SELECT 1; END",
    "an index": "CREATE INDEX more ON notes (text)",
    "an index of an expression": "CREATE INDEX more ON notes (hex(zeroblob(100)))",
    "a table": "CREATE TABLE more (a)",
    "a virtual table": "CREATE VIRTUAL TABLE more USING fts5(a)",
    "statistics": "ANALYZE",
    "a table less": "DROP TABLE notes",
    "a column more": "ALTER TABLE notes ADD COLUMN more",
    "a generated column": "ALTER TABLE notes ADD COLUMN more AS (hex(zeroblob(1000000000)))",
    "another name of a column": "ALTER TABLE notes RENAME COLUMN text TO words",
    "another name of a table": "ALTER TABLE notes RENAME TO words",
    "another declaration": "DROP TABLE notes; CREATE TABLE notes (run_id, offset, kind, text)",
    "SQL that is none": "PRAGMA writable_schema=ON; UPDATE sqlite_master SET sql = 'CREATE' WHERE name = 'notes'",
    "a word more of SQL": "PRAGMA writable_schema=ON; UPDATE sqlite_master SET sql = sql || ' ' WHERE name = 'notes'",
    "one table for two": (
        "PRAGMA writable_schema=ON; UPDATE sqlite_master SET rootpage ="
        " (SELECT rootpage FROM sqlite_master WHERE name = 'iterations') WHERE name = 'metrics'"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", OBJECTS)
def test_objects_that_no_bundle_has_are_refused(data: bytes, there: Layout, what: str) -> None:
    refused(there, changed(data, OBJECTS[what], sealed=False))


def page_size(data: bytes) -> int:
    return int.from_bytes(data[16:18], "big")


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "nothing": (lambda _: b"", "it is empty"),
    "a text": (lambda _: b"hello\n", "not a file of mpsq export"),
    "the beginning of a database": (lambda data: data[:16], "damaged|tables are not"),
    "cut off": (lambda data: data[:-100], "damaged|belong to a run that"),
    "half": (lambda data: data[: len(data) // 2], "damaged|tables are not"),
    "a page less": (lambda data: data[: -page_size(data)], "damaged"),
    "no content": (lambda data: data[:100] + bytes(len(data) - 100), "damaged"),
    "a page of another": (lambda data: data[: -page_size(data)] + data[: page_size(data)], "damaged"),
    "another page size": (lambda data: data[:16] + b"\x10\x00" + data[18:], "damaged|tables are not"),
    "a page size of none": (lambda data: data[:16] + b"\x00\x07" + data[18:], "damaged|not a database|refused"),
    "another format of tables": (lambda data: data[:47] + b"\x63" + data[48:], "damaged"),
    "a changed point": (
        lambda data: changed(data, "UPDATE iterations SET dur_s = 0.126 WHERE dur_s = 0.125", sealed=False),
        "its content does not match its hash",
    ),
    "a removed point": (
        lambda data: changed(data, "DELETE FROM iterations WHERE run_id = 3 AND i = 1", sealed=False),
        "its content does not match its hash",
    ),
    "a removed run": (lambda data: changed(data, "DELETE FROM runs WHERE id = 6", sealed=False), "belong to a run"),
    "another hash": (
        lambda data: changed(data, "UPDATE bundle SET sha256 = replace(sha256, 'a', 'b')", sealed=False),
        "its content does not match its hash",
    ),
    "no UTF-8": (lambda data: data.replace(b"Alpha cpu", b"Alpha\xff\xfe\xfd\xfc"), "damaged|its hash"),
    "another application's": (
        lambda data: changed(data, *(f"DROP TABLE {table.name}" for table in TABLES), sealed=False),
        "its tables are not those of a bundle",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_refused(data: bytes, there: Layout, what: str) -> None:
    change, says = DAMAGE[what]
    refused(there, change(data), says)


def many(connection: sqlite3.Connection) -> None:
    """Enough points that their table has an interior page."""
    connection.execute(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)"
        " INSERT INTO iterations SELECT 1, 1000000 + i, i, 0.1, NULL, 3, 1, NULL, NULL FROM n"
    )


def one_page_for_all(data: bytes) -> bytes:
    """The root page of the points leads again and again to one of its children, and so to far more rows than there
    are."""
    data = changed(data, many)
    with_root = changed(data, "SELECT 1", sealed=False)
    root = root_of(with_root, "iterations")
    size = page_size(data)
    page = bytearray(data[(root - 1) * size : root * size])
    assert page[0] == 2, "an interior page of an index"
    n_cells = int.from_bytes(page[3:5], "big")
    first = int.from_bytes(page[12:14], "big")
    for k in range(n_cells):
        at = int.from_bytes(page[12 + 2 * k : 14 + 2 * k], "big")
        page[at : at + 4] = page[first : first + 4]
    return data[: (root - 1) * size] + bytes(page) + data[root * size :]


def a_page_within_itself(data: bytes) -> bytes:
    """The root page of the points is its own child."""
    data = changed(data, many)
    root, size = root_of(data, "iterations"), page_size(data)
    page = bytearray(data[(root - 1) * size : root * size])
    for k in range(int.from_bytes(page[3:5], "big")):
        at = int.from_bytes(page[12 + 2 * k : 14 + 2 * k], "big")
        page[at : at + 4] = root.to_bytes(4, "big")
    page[8:12] = root.to_bytes(4, "big")
    return data[: (root - 1) * size] + bytes(page) + data[root * size :]


def root_of(data: bytes, table: str) -> int:
    roots: list[int] = []

    def look(connection: sqlite3.Connection) -> None:
        roots.extend(connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", [table]).fetchone())

    changed(data, look, sealed=False)
    return roots[0]


BOMBS: dict[str, Callable[[bytes], bytes]] = {
    "one page for all": one_page_for_all,
    "a page within itself": a_page_within_itself,
    "a text of 100 MB": lambda data: changed(
        data, "UPDATE notes SET text = CAST(zeroblob(100000000) AS TEXT)", sealed=False
    ),
    "texts of 16 MB": lambda data: changed(
        data, "UPDATE iterations SET loss = zeroblob(16000000) WHERE run_id = 1", sealed=False
    ),
    "a million brackets": lambda data: changed(data, put("hellos", "hello_json", "[" * 1_000_000)),
    "a million digits": lambda data: changed(data, put("hellos", "hello_json", "9" * 1_000_000)),
    "a million keys": lambda data: changed(
        data, put("exits", "exit_json", json.dumps(dict.fromkeys(map(str, range(300_000)), 0)))
    ),
    "a pattern that backtracks": lambda data: changed(data, put("notes", "text", "\n" * 9_999 + "\x07")),
    "200,000 runs": lambda data: changed(
        data,
        "WITH RECURSIVE n(i) AS (SELECT 10 UNION ALL SELECT i + 1 FROM n WHERE i < 200000)"
        " INSERT INTO runs SELECT i, 1, i, i, 1, 1, 'CANCELLED', NULL, NULL, NULL, 1, NULL, NULL, 1, NULL, NULL, NULL"
        " FROM n",
    ),
    "gzip of zeros": lambda _: packed(bytes(100 << 20)),
    "gzip of short lines": lambda _: packed(b"[]\n" * (12 << 20)),
    "gzip of brackets": lambda _: packed(b"[" * 500_000 + b"\n"),
    "gzip of rows": lambda _: packed(
        b'{"mpsq_bundle":1,"mpsq":"1","statistics":"1"}\n{"part":"groups"}\n' + b'[1,0.0,"",0]\n' * (2 << 20)
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BOMBS)
def test_a_bomb_is_refused_soon_and_in_little_memory(
    data: bytes, there: Layout, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(convert, "MOST_BYTES", 16 << 20)
    bomb = BOMBS[what](data)
    begin = time.thread_time()
    tracemalloc.start()
    try:
        refused(there, bomb)
        assert tracemalloc.get_traced_memory()[1] < 300 << 20
    finally:
        tracemalloc.stop()
    assert time.thread_time() - begin < 30


def test_a_file_beyond_the_limit_is_refused_unread(there: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_FILE_BYTES", 1000)
    refused(there, reading.MAGIC + bytes(1001), "larger than")
    monkeypatch.setattr(convert, "MOST_FILE_BYTES", 1000)
    refused(there, b"\x1f\x8b\x08" + bytes(1001), "larger than")


def test_a_program_in_the_current_folder_is_not_run(
    data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was, in the place of a module of Python, and the bundle was called damaged."""
    monkeypatch.setattr(reading, "subprocess", subprocess)
    bundle = tmp_path / "g1.mpsq"
    bundle.write_bytes(data)
    (tmp_path / "resource.py").write_text("open('was_run', 'w')\n")
    monkeypatch.chdir(tmp_path)
    with reading.ReaderProcess() as process:
        assert [*process.frames(bundle)]
    assert not (tmp_path / "was_run").exists()


def test_a_child_that_says_nonsense_is_refused(data: bytes, there: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_MOST_GROWTH", 0)
    refused(there, data, "more rows than a file of its size")


def test_one_bad_bundle_of_several_refuses_all(data: bytes, there: Layout) -> None:
    with pytest.raises(BadBundle, match=r"\(1\.mpsq\)"):
        merged(there, data, data[:-1])
    assert not content(there.db)["runs"]


def old_put(part: str, at: int, value: Any) -> Callable[[list[Any]], None]:
    def change(lines: list[Any]) -> None:
        old_rows(lines, part)[0][at] = value

    return change


OLD_LIES: dict[str, tuple[Callable[[list[Any]], None], str]] = {
    "a list as a row": (old_put("iterations", 4, [1]), "iterations have an invalid loss"),
    "nan by word": (old_put("iterations", 4, "nan"), "its rows have another form"),
    "a huge number": (old_put("iterations", 2, 10**40), "contradict one another"),
    "a doubled run": (old_put("runs", 0, 2), "its runs contradict one another"),
    "too many columns": (lambda lines: old_rows(lines, "exits")[0].append(1), "its rows have another form"),
    "too few columns": (lambda lines: old_rows(lines, "exits")[0].pop(), "its exits contradict one another"),
    "an unknown part": (lambda lines: lines.insert(1, {"part": "more"}) or lines.insert(2, [1]), "another form"),
    "a row of no part": (lambda lines: lines.insert(1, [1]), "its rows have another form"),
    "another version": (lambda lines: lines[0].update(mpsq_bundle=3), "its format is version"),
    "a path as code": (lambda lines: old_rows(lines, "jobs")[0][3].update(snapshot="../x"), "spec_json .* at .snap"),
    "an unknown log format": (lambda lines: old_rows(lines, "jobs")[0][3].update(parser="new"), "the log format 'new'"),
}  # fmt: skip


@pytest.mark.parametrize("what", OLD_LIES)
def test_a_well_sealed_lie_of_format_1_is_refused(there: Layout, what: str) -> None:
    change, says = OLD_LIES[what]
    lines = lines_of(FORMAT_1.read_bytes())
    change(lines)
    refused(there, old_sealed(lines), says)


OLD_DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut off": (lambda data: data[:-100], "cut off|damaged"),
    "something behind": (lambda data: data + b"x", "damaged|follows"),
    "twice": (lambda data: data + data, "there is more after"),
    "a flipped bit": (lambda data: flipped(data, 300), "refused"),
    "a changed point": (lambda data: packed(gzip.decompress(data).replace(b"0.125,", b"0.126,", 1)), "is damaged"),
    "an added line": (lambda data: packed(gzip.decompress(data) + b"{}\n"), "there is more after its end"),
    "no last line": (lambda data: packed(gzip.decompress(data).rpartition(b'{"end"')[0]), "it is cut off"),
    "NaN": (lambda data: packed(gzip.decompress(data).replace(b"0.125,", b"NaN,", 1)), "is not JSON"),
    "no UTF-8": (lambda data: packed(gzip.decompress(data).replace(b"Alpha", b"\xff\xfe\xfd", 1)), "is not JSON"),
    "a long line": (lambda data: packed(b"a" * (convert.MOST_LINE_BYTES + 10)), "a line is longer"),
    "a number": (lambda _: packed(b"1\n"), "does not begin as a bundle"),
    "no lines": (lambda _: packed(b""), "refused"),
}  # fmt: skip


@pytest.mark.parametrize("what", OLD_DAMAGE)
def test_damage_of_format_1_is_refused(there: Layout, what: str) -> None:
    change, says = OLD_DAMAGE[what]
    refused(there, change(FORMAT_1.read_bytes()), says)


NASTY = st.one_of(
    st.none(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(max_size=20), st.binary(max_size=20),
    st.sampled_from(["\x1b[2J", "<b>", "{}", "[]", "inf", "[" * 40, '{"a": 1}', "0" * 64]),
    st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=3).map(json.dumps),
)  # fmt: skip


@settings(
    max_examples=2_000 if LONG else 25, derandomize=not LONG, deadline=None, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(seed=st.integers(0, 2**32), values=st.lists(NASTY, min_size=1, max_size=3), reseal=st.booleans())
def test_any_change_is_refused_or_harmless(
    data: bytes, tmp_path_factory: pytest.TempPathFactory, seed: int, values: list[Any], reseal: bool
) -> None:
    """Random values anywhere in a bundle that is sealed again, or random bytes of the file: it is refused with nothing
    stored, or every report can be made of what came in."""
    chance = random.Random(seed)
    if reseal:
        altered = changed(data, lambda connection: [_plant(connection, value, chance) for value in values])
    else:
        torn = bytearray(data)
        for value in values:
            torn[chance.randrange(len(torn))] = hash(str(value)) % 256
        altered = bytes(torn)
    there = receiver(tmp_path_factory.mktemp("fuzz") / "home")
    empty = content(there.db)
    try:
        merged(there, altered)
    except MpsqError:
        assert content(there.db) == empty
        return
    for name in reports.names():
        with read.reading(there.db) as connection:
            result = reports.run(name, connection, read_options())
        for format in ("table", "json"):
            assert "\x1b" not in printing.as_text(name, result, format)


def _plant(connection: sqlite3.Connection, value: Any, chance: random.Random) -> None:
    """Put a value in the place of a random one, in a column or in the JSON of one."""
    table = chance.choice([table for table in TABLES if table.name != "bundle"])
    column = chance.choice(table.columns)
    key = table.key[-1]
    row = connection.execute(f'SELECT "{key}", "{column}" FROM {table.name} ORDER BY random() LIMIT 1').fetchone()
    if row is None:
        return
    if "json" in column and isinstance(row[1], str) and isinstance(fields := json.loads(row[1]), dict) and fields:
        fields[chance.choice(list(fields))] = value if isinstance(value, int | str | None) else [str(value)]
        value = json.dumps(fields)
    with suppress(sqlite3.IntegrityError):
        connection.execute(f'UPDATE {table.name} SET "{column}" = ? WHERE "{key}" = ?', [value, row[0]])
    if chance.random() < 0.9:  # a hash hides no lie
        with suppress(ValueError, TypeError, sqlite3.Error, AttributeError):
            rehash(connection)
