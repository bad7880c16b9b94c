"""The result of one run on its way back: whole and sound, or refused; what no bundle can hold costs only itself."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from queue_runner.bundles import batches, reader, run_result
from queue_runner.bundles.rows import BadBundle
from queue_runner.bundles.run_result import RunResult
from queue_runner.model import OWN_NOTE, Ending, Outcome, RunId
from queue_runner.store.engine import open_engine
from tests.bundles.bundles_support import ALPHA, SYSTEM, Change, changed, exported, sender
from tests.reports.report_fixture import Store

pytestmark = pytest.mark.process

NOTES = [("output_left_out", "did not come back: fifo")]
EXIT = json.dumps({"exit_code": 0, "real_s": 60.0, "ended_at": 1e9})


@pytest.fixture
def there(tmp_path: Path) -> Store:
    """The queue of the machine that ran it: run 1.2, the second in the store, has 20 iterations and a note."""
    store = sender(tmp_path / "there")
    store.db.execute("UPDATE exits SET exit_json = ?", [EXIT])
    store.db.execute("UPDATE runs SET claimed_at = 9e8")
    return store


def published(store: Store, path: Path) -> Path:
    run_result.publish(store.layout, 2, NOTES, path)
    return path


def result_in(path: Path) -> RunResult:
    return run_result.read(reader.frames_of(path), RunId(1, 2))


def test_a_result_has_all_that_its_run_measured(there: Store, tmp_path: Path) -> None:
    result = result_in(published(there, tmp_path / "r"))
    assert (result.ending, result.began_at, result.machine) == (Ending(Outcome.SUCCEEDED), 9e8, ALPHA)
    assert result.system == SYSTEM["system"] and result.exit is not None and result.exit.real_s == 60
    for table in ("iterations", "metrics", "evals", "hellos"):
        count = there.db.execute(f"SELECT count(*) FROM {table} WHERE run_id = 2").fetchone()[0]
        assert count == len(result.content.rows[table]) > 0
    assert [(note.kind, note.text) for note in result.content.rows["notes"]] == [
        ("wrong_result", "a GPU error"),
        *NOTES,
    ]
    assert result.has_note("output_left_out") and not result.has_note("wrong_result")  # which the job wrote


def test_the_queue_itself_loses_nothing_to_secrecy(there: Store, tmp_path: Path) -> None:
    text = "/home/ann/x.py failed: token ghp_0123456789abcdefABCDEF"
    there.db.execute("UPDATE notes SET text = ? WHERE run_id = 2", [text])
    result = result_in(published(there, tmp_path / "r"))
    assert result.content.rows["notes"][0].text == text


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("UPDATE runs SET number = 3", "not the result of run 1.2"),
        ("UPDATE exits SET exit_json = '{}'", "does not say how"),
        ('UPDATE exits SET exit_json = \'{"exit_code": "a"}\'', "record of an exit is invalid"),
        ("UPDATE runs SET claimed_at = 'x'", "invalid claimed_at"),
        ("DELETE FROM runs", "belong to a run that it does not contain"),
    ],
)
def test_a_lie_is_refused(there: Store, tmp_path: Path, change: Change | str, says: str) -> None:
    path = published(there, tmp_path / "r")
    path.write_bytes(changed(path.read_bytes(), change))
    with pytest.raises(BadBundle, match=says):
        result_in(path)


def test_a_bundle_of_several_runs_is_none(there: Store, tmp_path: Path) -> None:
    (tmp_path / "r").write_bytes(exported(there))
    with pytest.raises(BadBundle, match="not the result of run"):
        result_in(tmp_path / "r")


def test_what_no_bundle_can_hold_costs_the_numbers_and_not_the_end(there: Store, tmp_path: Path) -> None:
    there.db.execute("UPDATE hellos SET hello_json = ?", [json.dumps({"a": [0] * 20_000})])
    result = result_in(published(there, tmp_path / "r"))
    assert (result.ending, result.exit, result.machine) == (Ending(Outcome.SUCCEEDED), None, ALPHA)
    assert result.has_note(run_result.REFUSED) and result.content.rows["iterations"] == []


def test_it_replaces_mirrored_rows_in_small_transactions(
    there: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "_PIECE_ROWS", 10)
    monkeypatch.setattr(batches, "BATCH_S", 0.0)
    result = result_in(published(there, tmp_path / "r"))
    here = sender(tmp_path / "here")
    here.iterations(2, [9.0], first=7777)
    for _ in range(2):  # as after a crash
        run_result.store(open_engine(here.layout.db), 2, result, is_mirrored=True)
        stored = here.db.execute('SELECT run_id, "offset", i, dur_s FROM iterations WHERE run_id = 2').fetchall()
        assert stored == [(2, *row[1:4]) for row in result.content.rows["iterations"]]
    others = here.db.execute("SELECT count(*) FROM iterations WHERE run_id <> 2").fetchone()
    assert others == (100,)
    with sqlite3.connect(here.layout.db) as connection:
        kinds = connection.execute("SELECT kind, offset >= ? FROM notes WHERE run_id = 2", [OWN_NOTE]).fetchall()
    assert kinds == [("wrong_result", 0), ("output_left_out", 1)]
