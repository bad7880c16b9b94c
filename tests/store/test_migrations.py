"""Migrations and schema end in the same database; upgrades are safe by themselves."""

from __future__ import annotations

import json
import re
import shlex
import sqlite3
from pathlib import Path
from unittest.mock import Mock

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

from queue_runner.errors import RunActive, SchemaError
from queue_runner.host import job_environments, locks
from queue_runner.model import Condition, Obstacle
from queue_runner.paths import Layout, migrations_dir
from queue_runner.spec import Aim, JobSpec, NewJob
from queue_runner.store import backup, jobs, lane_claims, migrate, read, schema
from queue_runner.store.engine import open_engine, writing
from tests import forked_programs
from tests.store_support import claim_next

pytestmark = pytest.mark.process


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    monkeypatch.setenv("MPSQ_LOCKS", str(tmp_path / "locks"))
    (tmp_path / "home").mkdir()
    return Layout(tmp_path / "home")


def shape(db: Path) -> dict[tuple[str, str], str]:
    """Every table, index, view and trigger, its SQL without white space and quotes."""
    rows = sqlite3.connect(db).execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    return {
        (t, n): re.sub(r"[\s\"]+", "", sql) for t, n, sql in rows if n not in ("alembic_version", "sqlite_sequence")
    }


def set_back(old: sqlite3.Connection, version: str) -> None:
    """Let a database seem to have this earlier schema, where what came later does not show: migrations 0016 and 0018
    change columns."""
    old.execute("UPDATE alembic_version SET version_num = ?", [version])
    for dropped in ("INDEX runs_elsewhere", "TRIGGER runs_follow_their_job", "INDEX runs_queue"):  # 0022, 0021
        old.execute(f"DROP {dropped}")
    old.execute("ALTER TABLE runs DROP COLUMN job_priority")
    old.execute("CREATE INDEX runs_queue ON runs (lane, position) WHERE state = 'QUEUED'")
    for index in ("jobs_deadline", "jobs_snapshot", "runs_unended", "runs_not_before"):  # 0020
        old.execute(f"DROP INDEX {index}")
    old.execute("DROP INDEX job_events_run")
    old.execute("DROP TABLE merges")
    for column in ("aim", "judged_rounds", "more_rounds"):
        old.execute(f"ALTER TABLE groups DROP COLUMN {column}")
    if version >= "0016":
        old.execute("ALTER TABLE groups ADD COLUMN same_within FLOAT")
        return
    old.execute("DROP VIEW v_dependency")
    old.execute("DROP INDEX groups_open")
    for column in ("until", "budget_s", "closed_at", "closed_why"):
        old.execute(f"ALTER TABLE groups DROP COLUMN {column}")
    old.execute("CREATE VIEW v_dependency AS SELECT 1")


def test_migrations_and_schema_end_in_the_same_database(layout: Layout, tmp_path: Path) -> None:
    migrate.ensure(layout)
    by_schema = tmp_path / "schema.db"
    by_schema.touch()
    schema.metadata.create_all(create_engine(f"sqlite:///{by_schema}"))
    with sqlite3.connect(by_schema) as added:
        added.executescript(Path(schema.__file__).with_name("views.sql").read_text())
    assert shape(layout.db) == shape(by_schema)


def test_the_revision_in_the_code_is_the_newest_migration() -> None:
    config = Config()
    config.set_main_option("script_location", str(migrations_dir()))
    assert ScriptDirectory.from_config(config).get_heads() == [read.HEAD]


def test_a_newer_schema_is_refused_with_exit_code_4(layout: Layout) -> None:
    migrate.ensure(layout)
    with sqlite3.connect(layout.db) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(SchemaError, match="newer") as error:
        migrate.ensure(layout)
    assert error.value.exit_code == 4
    assert read.schema_revision(layout.db) == "9999"


def test_an_older_schema_is_backed_up_before_it_is_upgraded(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    migrate.ensure(layout)
    monkeypatch.setattr(migrate, "HEAD", "0000-pretend")  # as if this code were of another day
    migrate.upgrade(layout)
    (saved,) = layout.backups.iterdir()
    assert shape(saved) == shape(layout.db)
    assert backup.problems(saved) == []


def test_an_upgrade_succeeds_beside_a_damaged_backup_and_without_space_for_a_vacuum(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    migrate.ensure(layout)
    layout.backups.mkdir()
    (layout.backups / "mpsq-20260101-000000-auto.db").write_bytes(b"damaged")
    monkeypatch.setattr(migrate, "closing", Mock(side_effect=sqlite3.OperationalError("disk is full")))
    monkeypatch.setattr(migrate, "HEAD", "0000-pretend")
    assert migrate.upgrade(layout)
    assert "disk is full" in caplog.text and "mpsq-20260101-000000-auto.db cannot" in caplog.text


def test_an_upgrade_waits_for_no_worker_and_no_run(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    migrate.ensure(layout)
    monkeypatch.setattr(migrate, "HEAD", "0000-pretend")
    held = locks.try_lock(locks.worker_lock_path(layout.home))
    assert held is not None
    with pytest.raises(SchemaError, match="worker is running"):
        migrate.upgrade(layout)
    held.close()


def test_a_run_under_its_warden_is_waited_for(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    migrate.ensure(layout)
    spec = JobSpec(kind="command", name="x", argv=("/usr/bin/true",))
    with writing(open_engine(layout.db)) as connection:
        jobs.submit(connection, "test", 0, [NewJob(spec)], [(0, 1)])
        claim_next(connection)
    monkeypatch.setattr(migrate, "HEAD", "0000-pretend")
    folder = layout.run_dir("1.1")
    folder.mkdir(parents=True)
    warden = locks.try_lock(folder / "warden.lock")
    assert warden is not None
    with pytest.raises(RunActive, match=r"run 1\.1 is active"):
        migrate.upgrade(layout)
    warden.close()
    (folder / "warden.lock").unlink()
    (folder / "warden.lock").symlink_to("spec.json")  # as its job may have done
    migrate.upgrade(layout)  # its warden is gone: the new worker upgrades and then ends it


def test_eight_processes_make_one_database(layout: Layout) -> None:
    code = (
        "from pathlib import Path; from queue_runner.paths import Layout; from queue_runner.store import migrate; "
        f"migrate.ensure(Layout(Path({str(layout.home)!r})))"
    )
    makers = [forked_programs.command(code, module=forked_programs.CODE) for _ in range(8)]
    assert [(maker.communicate()[1], maker.returncode) for maker in makers] == [("", 0)] * 8
    assert backup.problems(layout.db) == []
    assert read.schema_revision(layout.db) == read.HEAD


def test_an_interrupted_creation_leaves_nothing_behind(layout: Layout) -> None:
    layout.db.touch()
    engine = open_engine(layout.db, check=False)
    with pytest.raises(Exception, match="syntax error"), writing(engine) as connection:
        connection.change("CREATE TABLE half (id INTEGER)")
        connection.change("not SQL")
    assert shape(layout.db) == {}


def test_what_blocked_a_lane_before_its_kind_was_stored_is_kept(layout: Layout) -> None:
    """0008 adds columns to a row that a worker of an earlier version left."""
    migrate.ensure(layout)
    with sqlite3.connect(layout.db) as old:
        for column in ("blocked_kind", "blocked_for", "next_try_at"):
            old.execute(f"ALTER TABLE lanes DROP COLUMN {column}")
        old.execute("DROP INDEX jobs_question")  # 0010
        old.execute("ALTER TABLE schedules DROP COLUMN env_file")  # 0011
        with_replacements(old)
        without_commands(old)
        old.execute("INSERT INTO lanes (name, blocked_reason, blocked_at) VALUES ('box-g1-abcdef', 'silent', 5.0)")
        set_back(old, "0007")
    old.close()
    migrate.ensure(layout)
    with read.reading(layout.db) as connection:
        lane = read.lane(connection, "box-g1-abcdef")
        assert read.lane(connection, "another") == read.LaneRow("another")
    assert lane == read.LaneRow("box-g1-abcdef", "silent", 5.0)
    engine = open_engine(layout.db)
    with pytest.raises(sqlite3.IntegrityError), writing(engine) as connection:
        connection.change("UPDATE lanes SET blocked_kind = 'anything'")
    with writing(engine) as connection:
        lane_claims.block(
            connection, "box-g1-abcdef", lane_claims.Blocked("it is silent", Obstacle.SILENT, next_try_at=7.0)
        )
        assert lane_claims.state(connection, "box-g1-abcdef").blocked_kind == "silent"


def test_an_open_bench_of_neighbours_keeps_its_order_and_its_neighbours_are_held(layout: Layout) -> None:
    """0009 removes the condition `while` and the field `pairing`."""
    migrate.ensure(layout)
    spec = JobSpec(kind="command", name="x", argv=("/usr/bin/true",))
    with writing(open_engine(layout.db)) as connection:
        jobs.submit(connection, "test", 0, [NewJob(spec), NewJob(spec), NewJob(spec)], [(0, 1), (1, 1), (2, 1)])
        jobs.add_dependencies(connection, [(2, 1, Condition.OK)])
    with sqlite3.connect(layout.db) as old:
        with_replacements(old)
        without_commands(old)
        before = old.execute("SELECT spec_json FROM jobs").fetchall()
        for job, pairing in ((1, "alone"), (2, ""), (3, "neighbour")):
            old.execute("UPDATE jobs SET spec_json = json_set(spec_json, '$.pairing', ?) WHERE id = ?", (pairing, job))
        (table,) = old.execute("SELECT sql FROM sqlite_master WHERE name = 'dependencies'").fetchone()
        (index,) = old.execute("SELECT sql FROM sqlite_master WHERE name = 'dependencies_on'").fetchone()
        (view,) = old.execute("SELECT sql FROM sqlite_master WHERE name = 'v_dependency'").fetchone()
        for statement in (
            "DROP VIEW v_dependency",
            "DROP TABLE dependencies",
            table.replace("'fail')", "'fail', 'while')"),
            index,
            view,
            "INSERT INTO dependencies VALUES (2, 1, 'ok'), (2, 3, 'while')",
            "DROP INDEX jobs_question",  # 0010
            "ALTER TABLE schedules DROP COLUMN env_file",  # 0011
        ):
            old.execute(statement)
        set_back(old, "0008")
    old.close()
    migrate.ensure(layout)
    with sqlite3.connect(layout.db) as new:
        assert new.execute("SELECT * FROM dependencies").fetchall() == [(2, 1, "ok"), (2, 3, "any")]
        assert new.execute("SELECT spec_json FROM jobs").fetchall() == before
        states = new.execute("SELECT state, blocked_reason IS NULL FROM runs ORDER BY id").fetchall()
        assert states == [("QUEUED", 1), ("QUEUED", 1), ("HELD", 0)]
        assert new.execute("SELECT run_id FROM job_events WHERE verb = 'hold'").fetchall() == [(3,)]
        with pytest.raises(sqlite3.IntegrityError):
            new.execute("INSERT INTO dependencies VALUES (3, 1, 'while')")
    new.close()


def test_runs_keep_what_they_had_when_their_table_is_made_anew(layout: Layout) -> None:
    """0003 rebuilds the table of runs, to which many others refer."""
    migrate.ensure(layout)
    spec = JobSpec(kind="command", name="x", argv=("/usr/bin/true",))
    with writing(open_engine(layout.db)) as connection:
        jobs.submit(connection, "test", 0, [NewJob(spec, 3)], [(0, 1), (0, 2), (0, 3)])
    with sqlite3.connect(layout.db) as old:  # back to 0002
        old.execute("DELETE FROM runs WHERE number = 3")
        old.execute("UPDATE runs SET state = 'DONE', outcome = 'OUTPUT_LIMIT' WHERE number = 1")
        old.execute("INSERT INTO exits (run_id, real_s, exit_json) VALUES (1, 2.5, '{}')")
        for view in ("v_run", "v_dependency"):  # 0004 makes them anew
            old.execute(f"DROP VIEW {view}")
            old.execute(f"CREATE VIEW {view} AS SELECT 1")
        for made in ("VIEW v_merged", "TABLE merged_runs", "TABLE merged_jobs"):  # 0006 makes them
            old.execute(f"DROP {made}")
        old.execute("DROP INDEX runs_ended")  # 0006
        for column in ("blocked_kind", "blocked_for", "next_try_at"):  # 0008
            old.execute(f"ALTER TABLE lanes DROP COLUMN {column}")
        old.execute("DROP INDEX jobs_question")  # 0010
        old.execute("ALTER TABLE schedules DROP COLUMN env_file")  # 0011
        without_commands(old)
        set_back(old, "0002")
        before = old.execute(both := "SELECT * FROM runs r LEFT JOIN exits e ON e.run_id = r.id ORDER BY id").fetchall()
        columns = [name for _, name, *_ in old.execute("PRAGMA table_info(runs)")]
    old.close()
    migrate.ensure(layout)
    with sqlite3.connect(layout.db) as new:
        after = new.execute(both.replace("*", f"r.{', r.'.join(columns)}, e.*")).fetchall()
        assert after == before
        assert new.execute("SELECT seq FROM sqlite_sequence WHERE name = 'runs'").fetchone() == (3,)
        assert new.execute("SELECT real_s FROM exits").fetchall() == [(2.5,)]
    new.close()
    assert backup.problems(layout.db) == []


def with_replacements(connection: sqlite3.Connection) -> None:
    """Undo what 0014 does to the table of runs."""
    connection.execute("ALTER TABLE runs ADD COLUMN replaces INTEGER")


def without_commands(connection: sqlite3.Connection) -> None:
    """Undo what 0012 does to the table of schedules."""
    for column in ("command_json", "cwd", "python"):
        connection.execute(f"ALTER TABLE schedules DROP COLUMN {column}")
    connection.execute("ALTER TABLE schedules ADD COLUMN request_json TEXT")


def test_schedules_become_command_lines(layout: Layout) -> None:
    """0012 writes the words that each stored request was read from."""
    migrate.ensure(layout)
    request = {
        **{"workload": "nanogpt", "argv": [], "device": "cpu,mps", "sets": ["lr=0.1,0.2"], "repeats": 4, "hold": True},
        **{"env": ["MINE=#0123456789abcdef"], "timeout_s": 90.0, "preflight": False, "copy": False, "cwd": "/srv/x"},
        **{"seed": 1337, "after": ["1"], "title": "mpsq schedule n", "home": None, "environment": None},
    }
    command = {"workload": None, "argv": ["sh", "-c", "exit 0"], "copy": True, "python": "/opt/bin/python"}
    with sqlite3.connect(layout.db) as old:
        with_replacements(old)
        without_commands(old)
        for id, stored in enumerate((request, command), start=1):
            columns = "id, created_at, name, cron, timezone, title, request_json, env_file, next_at"
            old.execute(
                f"INSERT INTO schedules ({columns}) VALUES (?, 0, 'n' || ?, '0 2 * * *', 'UTC', 't', ?, 'f', 7.0)",
                [id, id, json.dumps(stored)],
            )
        set_back(old, "0011")
    old.close()
    migrate.ensure(layout)
    with sqlite3.connect(layout.db) as new:
        rows = new.execute("SELECT command_json, cwd, next_at FROM schedules ORDER BY id").fetchall()
    new.close()
    words = [json.loads(text) for text, _, _ in rows]
    assert words[0][0] == "nanogpt" and {*words[0][1:]} == {
        *("--device=cpu,mps", "--repeats=4", "--seed=1337", "--timeout=90.0", "--set=lr=0.1,0.2", "--after=1"),
        *("--hold", "--no-preflight", "--env=MINE"),
    }
    assert words[1] == ["--python=/opt/bin/python", "--snapshot=copy", "--", "sh", "-c", "exit 0"]
    assert [(cwd, at) for _, cwd, at in rows] == [("/srv/x", 7.0), ("/", 7.0)]


def test_environments_leave_the_database(layout: Layout, caplog: pytest.LogCaptureFixture) -> None:
    """0011 moves those that a run may still need into files, and keeps content hashes."""
    migrate.ensure(layout)
    env = {"OMP_NUM_THREADS": "4", "SHELLS": "word-1"}
    spec = JobSpec(kind="command", name="x", argv=("/usr/bin/true",), env=env)
    chosen = spec.changed(env=env | {"MINE": "word-2"}, variables={"MINE": "word-2"})
    with writing(open_engine(layout.db)) as connection:
        title = "mpsq submit --env MINE=word-2 -- true"
        jobs.submit(connection, title, 0, [NewJob(spec), NewJob(chosen), NewJob(spec)], [(0, 1), (1, 1), (2, 1)])
    request = {"workload": None, "argv": ["true"], "env": ["MINE=word-2"], "environment": {"SHELLS": "word-1"}}
    with sqlite3.connect(layout.db) as old:
        old.execute("UPDATE runs SET state = 'DONE', outcome = 'SUCCEEDED', ended_at = 1 WHERE job_id = 3")
        with_replacements(old)
        without_commands(old)
        old.execute("ALTER TABLE schedules DROP COLUMN env_file")
        columns = "id, created_at, name, cron, timezone, title, request_json"
        old.execute(
            f"INSERT INTO schedules ({columns}) VALUES (1, 0, 'n', '0 2 * * *', 'UTC', ?, ?)",
            [title, json.dumps(request)],
        )
        set_back(old, "0010")
        before = [digest for (digest,) in old.execute("SELECT spec_hash FROM jobs ORDER BY id")]
    old.close()
    assert b"word-1" in layout.db.read_bytes()
    migrate.ensure(layout)
    (saved,) = backup.stored(layout.backups)
    assert saved.name in caplog.text
    for path in layout.home.glob("mpsq.db*"):
        assert b"word-" not in path.read_bytes(), path
    with sqlite3.connect(layout.db) as new:
        rows = new.execute("SELECT spec_hash, spec_json FROM jobs ORDER BY id").fetchall()
        ((schedule,),) = new.execute("SELECT env_file FROM schedules")
    new.close()
    specs = [JobSpec.from_json(text) for _, text in rows]
    assert [rows[0][0], rows[2][0]] == [before[0], before[2]]
    assert [digest for digest, _ in rows] == [spec.content_hash() for spec in specs]
    assert [spec.env["OMP_NUM_THREADS"] for spec in specs] == ["4"] * 3
    assert [job_environments.load(layout, spec) for spec in specs[:2]] == [env, dict(chosen.env)]
    assert not specs[2].env_file  # it succeeded
    assert job_environments.read(layout, schedule) == {"SHELLS": "word-1", "MINE": "word-2"}


def test_a_replaced_round_becomes_an_ordinary_one(layout: Layout) -> None:
    """0014 removes --until-valid from runs, specifications, schedules and the hashes of merged runs."""
    migrate.ensure(layout)
    spec = JobSpec(kind="command", name="x", argv=("/usr/bin/true",))
    with writing(open_engine(layout.db)) as connection:
        jobs.submit(connection, "test", 0, [NewJob(spec, 3)], [(0, 1), (0, 2), (0, 3)])
        jobs.submit(connection, "test", 0, [NewJob(spec)], [(0, 1)])
        jobs.add_dependencies(connection, [(2, 1, Condition.OK)])
    words = ["--until-valid", "--repeats=2", "--", "sh", "--no-until-valid"]
    with sqlite3.connect(layout.db) as old:
        with_replacements(old)
        old.execute("UPDATE runs SET replaces = 1 WHERE number = 3")
        old.execute("UPDATE runs SET state = 'DONE', outcome = 'SUCCEEDED' WHERE job_id = 1")
        old.execute("UPDATE jobs SET spec_json = json_set(spec_json, '$.until_valid', json('true'))")
        for run in (1, 3):
            old.execute("INSERT INTO merged_runs VALUES (?, 0, 'bundle', 'content')", [run])
        old.execute(
            "INSERT INTO schedules (id, created_at, name, cron, timezone, title, command_json, cwd, next_at)"
            " VALUES (1, 0, 'n', '0 2 * * *', 'UTC', ?, ?, '/', 7.0)",
            [shlex.join(words), json.dumps(words)],
        )
        set_back(old, "0013")
    old.close()
    migrate.ensure(layout)
    with read.reading(layout.db) as connection:
        sql = "SELECT run, repeat, spec_json, spec_hash FROM v_run WHERE job_id = 1"
        rows = read.tuples(connection, sql).fetchall()
        assert [(run, repeat) for run, repeat, _, _ in rows] == [("1.1", 1), ("1.2", 2), ("1.3", 3)]
        assert {JobSpec.from_json(text).content_hash() for _, _, text, _ in rows} == {rows[0][3]}
        assert read.tuples(connection, "SELECT verdict FROM v_dependency").fetchall() == [("met",)]
        hashes = "SELECT content_hash FROM merged_runs ORDER BY run_id"
        assert read.tuples(connection, hashes).fetchall() == [("",), ("",)], "0019 makes them all unknown"
        ((title, command),) = read.tuples(connection, "SELECT title, command_json FROM schedules").fetchall()
    assert json.loads(command) == shlex.split(title) == ["--repeats=2", "--", "sh", "--no-until-valid"]


def test_a_run_that_was_disturbed_is_valid(layout: Layout) -> None:
    """0015 makes caveats of what disturbs a run without making its numbers wrong."""
    migrate.ensure(layout)
    spec = JobSpec(kind="command", name="x", argv=("/usr/bin/true",))
    with writing(open_engine(layout.db)) as connection:
        jobs.submit(connection, "test", 0, [NewJob(spec, 2)], [(0, 1), (0, 2)])
    with sqlite3.connect(layout.db) as old:
        for run, kind in ((1, "contended"), (1, "gpu_contended"), (2, "throttled_service"), (2, "slept")):
            old.execute("INSERT INTO taints VALUES (?, ?, 'invalid', 'planted')", [run, kind])
        set_back(old, "0014")
    old.close()
    migrate.ensure(layout)
    with read.reading(layout.db) as connection:
        rows = read.tuples(connection, "SELECT valid, taints FROM v_run ORDER BY run_id").fetchall()
    assert rows == [(1, "contended,gpu_contended"), (0, "slept,throttled_service")]


def test_drawn_layouts_are_forgotten(layout: Layout) -> None:
    """0017 removes --randomize from specifications, schedules and the hashes of merged jobs."""
    migrate.ensure(layout)
    spec = JobSpec(kind="command", name="x", argv=("/usr/bin/true",))
    with writing(open_engine(layout.db)) as connection:
        jobs.submit(connection, "test", 0, [NewJob(spec), NewJob(spec)], [(0, 1), (1, 1)])
    words = ["--randomize", "--repeats=2", "--", "sh", "--randomize"]
    with sqlite3.connect(layout.db) as old:
        old.execute(
            "UPDATE jobs SET spec_json = json_set(spec_json, '$.layout_seed', NULL, '$.randomize', json('false'))"
        )
        old.execute("UPDATE jobs SET spec_json = json_set(spec_json, '$.layout_seed', 7) WHERE id = 2")
        for job in (1, 2):
            old.execute("INSERT INTO merged_jobs VALUES (?, ?, 'question', 'machine')", [job, str(job)])
        old.execute(
            "INSERT INTO schedules (id, created_at, name, cron, timezone, title, command_json, cwd, next_at)"
            " VALUES (1, 0, 'n', '0 2 * * *', 'UTC', ?, ?, '/', 7.0)",
            [shlex.join(words), json.dumps(words)],
        )
        set_back(old, "0016")
    old.close()
    migrate.ensure(layout)
    with read.reading(layout.db) as connection:
        texts = read.tuples(connection, "SELECT spec_json FROM jobs").fetchall()
        assert [JobSpec.from_json(text) for (text,) in texts] == [spec, spec]
        hashes = "SELECT question_hash FROM merged_jobs ORDER BY job_id"
        assert read.tuples(connection, hashes).fetchall() == [("question",), ("",)]
        ((title, command),) = read.tuples(connection, "SELECT title, command_json FROM schedules").fetchall()
    assert json.loads(command) == shlex.split(title) == ["--repeats=2", "--", "sh", "--randomize"]


def test_margins_become_aims(layout: Layout) -> None:
    """0018; a budget of ten minutes was the default, stored as if it had been given."""
    migrate.ensure(layout)
    with sqlite3.connect(layout.db) as old:
        set_back(old, "0017")
        for same_within, budget_s in ((0.05, 600), (None, 60)):
            values = [same_within, budget_s]
            old.execute(
                "INSERT INTO groups (created_at, title, seed, same_within, budget_s) VALUES (0, '', 0, ?, ?)", values
            )
    old.close()
    migrate.ensure(layout)
    with read.reading(layout.db) as connection:
        stored = read.tuples(connection, "SELECT aim, budget_s FROM groups ORDER BY id").fetchall()
    aims = [Aim(**json.loads(aim or "{}")) for aim, _ in stored]
    assert aims == [Aim(margins={"": 0.05}), Aim()] and [budget_s for _, budget_s in stored] == [None, 60]
