"""report missing: which repeats of a grid have no valid result, and asking for them again."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from queue_runner.paths import Layout
from queue_runner.store.read import reading
from tests.cli_support import ENDINGS, Cli, full_queue
from tests.queue_support import Queue
from tests.store_support import claim_next

pytestmark = pytest.mark.process

QUESTION = "json_remove(spec_json, '$.snapshot', '$.env', '$.env_file')"
"""A job without its code and its environment, which is today's when it is asked again."""


@pytest.fixture
def mpsq(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    return Cli(capsys)


@pytest.fixture
def queue(home: Path) -> Layout:
    return full_queue(home)


def apart(queue: Layout) -> None:
    """The template's jobs ask one question under several names: tell them apart."""
    import sqlite3

    with sqlite3.connect(queue.db) as connection:
        connection.execute("UPDATE jobs SET spec_hash = id")


def test_cells_without_a_valid_result(queue: Layout, mpsq: Cli) -> None:
    apart(queue)
    rows = {row["jobs"][0]: row for row in mpsq.ok("report", "missing", "g1", "--json").json()["rows"]}
    assert set(rows) == {2, 3, 4}  # 1 has both its results
    assert [(rows[job]["missing"], rows[job]["coming"]) for job in (2, 3, 4)] == [(1, 0), (1, 0), (0, 1)]
    assert rows[2]["run"] == "2.1" and rows[2]["ending"] == "FAILED(3)" and "no data" in rows[2]["reason"]
    out = mpsq.ok("report", "missing", "g1").out
    assert "3 of 5 runs lack" in out and "3 of 4 rows" in out and "\x1b" not in out
    assert "rerun g1 --missing" in out
    assert max(map(len, out.splitlines())) <= 80
    assert "all 2 requested runs" in mpsq.ok("report", "missing", "1").out
    assert "newest group only, g2" in mpsq.ok("report", "missing").out


def test_jobs_of_a_cell_in_a_row_are_a_range(queue: Layout, mpsq: Cli) -> None:
    """480 jobs of one command were a line of 1,900 characters."""
    for _ in range(30):
        mpsq.ok("submit", "--", "true")
    mpsq.ok("submit", "--", "true", "--other")
    import sqlite3

    with sqlite3.connect(queue.db) as connection:
        last = connection.execute("SELECT max(id) FROM jobs").fetchone()[0]
        connection.execute(
            "UPDATE jobs SET group_id = 2, spec_hash = 'one' WHERE id > ? - 31 AND id <> ? - 1", (last, last)
        )
    out = mpsq.ok("report", "missing", "g2").out
    assert f"{last - 30}-{last - 2} {last}" in out
    assert max(map(len, out.splitlines())) <= 80


def test_a_result_that_is_not_valid_is_missing(queue: Layout, mpsq: Cli) -> None:
    import sqlite3

    apart(queue)
    with sqlite3.connect(queue.db) as connection:
        connection.execute("INSERT INTO taints (run_id, kind, severity, detail) VALUES (1, 'slept', 'invalid', 'x')")
        connection.execute("INSERT INTO taints (run_id, kind, severity, detail) VALUES (2, 'drift', 'caveat', 'x')")
    (row,) = mpsq.ok("report", "missing", "1", "--json").json()["rows"]
    assert (row["wanted"], row["valid"], row["missing"], row["reason"]) == (2, 1, 1, "not valid: slept")


def test_what_a_resumed_run_answered_counts_and_is_told(queue: Layout, mpsq: Cli) -> None:
    import sqlite3

    with sqlite3.connect(queue.db) as connection:
        connection.execute("UPDATE runs SET resumed_from = 1 WHERE id = 2")
    out = mpsq.ok("report", "missing", "1").out
    assert all(x in out for x in ("nothing is missing", "1 valid result", "resumed run"))


def test_what_is_missing_is_asked_again(queue: Layout, mpsq: Cli) -> None:
    apart(queue)
    with reading(queue.db) as connection:
        before = connection.execute(f"SELECT {QUESTION} AS s FROM jobs WHERE id = 2").fetchone()
    ran = mpsq.ok("rerun", "g1", "--missing")
    assert "g3: 2 jobs, 2 runs queued" in ran.out
    with reading(queue.db) as connection:
        rows = connection.execute("SELECT rerun_of, spec_json, id FROM jobs WHERE group_id = 3 ORDER BY id").fetchall()
        again = connection.execute(f"SELECT {QUESTION} AS s FROM jobs WHERE rerun_of = 2").fetchone()
        tags = connection.execute("SELECT DISTINCT tags FROM v_run WHERE group_id = 3").fetchall()
    assert [row["rerun_of"] for row in rows] == [2, 3] and again == before and tags == [{"tags": "grid,night"}]


def test_what_was_asked_again_is_to_come_and_then_there(queue: Layout, mpsq: Cli) -> None:
    """The template's questions are all one: 5 runs asked for, 2 there, 1 runs, 2 to come in g2 fill the rest."""
    from queue_runner.model import DEFAULT_LANE, Verb
    from queue_runner.store import jobs
    from queue_runner.store.engine import open_engine, writing

    (row,) = mpsq.ok("report", "missing", "g1", "--json").json()["rows"]
    assert (row["wanted"], row["valid"], row["coming"], row["missing"]) == (5, 2, 1, 2)
    ran = mpsq.ok("rerun", "g1", "--missing", "--json")
    assert ran.json()["schema"] == "mpsq.rerun/1" and len(ran.json()["runs"]) == 2
    (row,) = mpsq.ok("report", "missing", "g1", "--json").json()["rows"]
    assert (row["coming"], row["missing"]) == (3, 0)
    ran = mpsq.ok("rerun", "g1", "--missing")
    assert "nothing was queued" in ran.err
    engine = open_engine(queue.db)
    with writing(engine) as connection:
        running = jobs.running(connection, DEFAULT_LANE)
        assert running is not None
        run_id: int | None = running.run_id
        while run_id is not None:
            jobs.move(connection, run_id, Verb.FINISH, actor="worker", ending=ENDINGS["ok"])
            claimed = claim_next(connection, token="ab" * 16)
            run_id = claimed.run_id if claimed else None
    engine.dispose()
    assert mpsq.ok("report", "missing", "g1", "--json").json()["rows"] == []


def test_what_the_user_has_cancelled_is_not_missing(queue: Layout, mpsq: Cli) -> None:
    apart(queue)
    mpsq.ok("retry", "2")
    mpsq.ok("cancel", "2")
    rows = mpsq.ok("report", "missing", "g1", "--json").json()["rows"]
    assert [row["jobs"] for row in rows] == [[3], [4]]
    out = mpsq.ok("report", "missing", "g1").out
    assert "2 of 4 runs lack" in out and "not counted: 1 run that you cancelled" in out
    assert "nothing is missing" in mpsq.ok("rerun", "2", "--missing").out
    mpsq.ok("retry", "2")
    (row,) = mpsq.ok("report", "missing", "2", "--json").json()["rows"]
    assert (row["coming"], row["missing"]) == (1, 0)


def test_a_rerun_with_more_time_fills_the_gap(queue: Layout, mpsq: Cli) -> None:
    apart(queue)
    mpsq.ok("rerun", "2", "--timeout", "9h")
    mpsq.ok("rerun", "g3", "--timeout", "10h")
    (row,) = mpsq.ok("report", "missing", "2", "--json").json()["rows"]
    assert (row["coming"], row["missing"]) == (2, 0)


def test_runs_that_timed_out_are_offered_more_time(queue: Layout, mpsq: Cli) -> None:
    import sqlite3

    apart(queue)
    with sqlite3.connect(queue.db) as connection:
        connection.execute("DROP TRIGGER done_is_final")
        connection.execute("UPDATE runs SET outcome = 'TIMED_OUT', exit_code = NULL WHERE outcome = 'FAILED'")
        connection.execute("UPDATE jobs SET spec_json = json_set(spec_json, '$.timeout_s', 90) WHERE id = 2")
    assert "mpsq rerun 2 --timeout 3m" in mpsq.ok("report", "missing", "2").out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["report", "missing", "g1", "--submit"], "mpsq rerun ID --missing"),
        (["rerun", "g1", "--missing", "--rounds", "2"], "--missing cannot be combined"),
        (["rerun", "g1", "--missing", "--hold"], "--missing cannot be combined"),
        (["rerun", "g9", "--missing"], "g9"),
    ],
)
def test_missing_stands_alone_and_the_old_option_leads_to_it(
    queue: Layout, mpsq: Cli, words: list[str], text: str
) -> None:
    apart(queue)
    ran = mpsq(*words)
    assert ran.code == 2 and text in ran.err


@pytest.mark.parametrize("words", [("g1",), ("--tag", "grid"), ("--where", "device=cpu"), ("--since", "9h")])
def test_the_command_that_is_printed_queues_what_the_table_shows(
    queue: Layout, mpsq: Cli, words: tuple[str, ...]
) -> None:
    """With a tag it printed one that does not exist, with a filter the last job of each row alone."""
    apart(queue)
    rows = mpsq.ok("report", "missing", *words, "--json").json()["rows"]
    printed = re.search("mpsq rerun (.+) --missing queues", mpsq.ok("report", "missing", *words).out)
    assert printed is not None
    again = mpsq.ok("rerun", *shlex.split(printed[1]), "--missing", "--json").json()
    assert len(again["runs"]) == sum(row["missing"] for row in rows) > 0
    twice = mpsq.ok("rerun", *shlex.split(printed[1]), "--missing")
    assert "nothing was queued: the missing runs are queued already" in twice.err
    assert all(row["missing"] == 0 for row in mpsq.ok("report", "missing", *words, "--json").json()["rows"])


def test_a_search_has_no_missing_runs(layout: Layout, mpsq: Cli) -> None:
    """It was called one that was never submitted."""
    mpsq.ok("submit", "nanogpt", "--device", "cpu", "--find-max", "batch_size=1:8", "--no-preflight")
    ran = mpsq("rerun", "1", "--missing")
    assert ran.code == 2 and "job 1 is a search" in ran.err and "mpsq rerun 1" in ran.err


def test_a_missing_run_has_todays_environment_and_code(layout: Layout, mpsq: Cli, tmp_path: Path) -> None:
    """It had hashes instead of PATH and HOME, and the code of then."""
    queue = Queue(layout, tmp_path)
    script, there = tmp_path / "code" / "go.sh", tmp_path / "there.log"
    script.parent.mkdir()
    script.write_text("exit 3\n")
    mpsq.ok("submit", "--no-preflight", "--cwd", "code", "--env", "WORD=a b", "--", "sh", "go.sh")
    queue.worker("", "--until-idle").wait()
    same = mpsq.ok("rerun", "1", "--missing")
    assert "code has changed" not in same.err
    script.write_text(f'echo "$HOME $WORD" > {there}\n')
    mpsq.ok("cancel", "2")
    assert "code has changed" in mpsq.ok("rerun", "1", "--missing").err
    queue.worker("", "--until-idle").wait()
    assert there.read_text() == f"{os.environ['HOME']} a b\n"
    assert mpsq.ok("report", "missing", "1", "--json").json()["rows"] == []


def test_a_repetition_that_failed_too_has_the_next_step_whatever_is_selected(
    layout: Layout, mpsq: Cli, tmp_path: Path
) -> None:
    queue = Queue(layout, tmp_path)
    mpsq.ok("submit", "--no-preflight", "--", "sh", "-c", "exit 3")
    queue.worker("", "--until-idle").wait()
    mpsq.ok("rerun", "1", "--missing")
    queue.worker("", "--until-idle").wait()
    for selected in (["2"], ["1", "2"]):
        assert "after a fix, mpsq rerun g2 --missing" in " ".join(mpsq("why", *selected).out.split())


def test_rounds_beyond_the_budget_are_not_missing(queue: Layout, mpsq: Cli) -> None:
    """They were missing for ever, although rerun --rounds had added others."""
    import sqlite3

    apart(queue)
    with sqlite3.connect(queue.db) as connection:
        guards = connection.execute("SELECT name FROM sqlite_master WHERE sql LIKE '%a run that is DONE stays%'")
        for (name,) in guards.fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute(
            "UPDATE runs SET outcome = 'SKIPPED', exit_code = NULL, reason = 'budget: it did not start in time'"
            " WHERE job_id = 2"
        )
    out = mpsq.ok("report", "missing", "2").out
    assert "nothing is missing" in out and "not counted: 1 run that did not start within the budget" in out
    assert "--missing" not in out and "mpsq why 2.1" in out
