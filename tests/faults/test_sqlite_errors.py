"""SQLite's own way: an error at every call of its files in turn, while a queue is changed.

After each the database is sound, what had been acknowledged is there, the change is there wholly or not at all, and
the same command works once the disk does. `make faults` fails each call; `make test` every few of them.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from queue_runner.bundles import merge, reader, reading
from queue_runner.errors import MpsqError
from queue_runner.host.run_dir import RunDir
from queue_runner.model import Ending, Outcome
from queue_runner.paths import Layout
from queue_runner.spec import JobSpec, NewJob
from queue_runner.store import backup, jobs, merges, migrate, read, restore
from queue_runner.store.engine import open_engine, writing
from queue_runner.worker import finish
from tests.bundles.bundles_support import exported, sender
from tests.cli_support import empty_queue
from tests.faults import sqlite_files
from tests.store.test_migrations import set_back
from tests.store_support import claim_next

pytestmark = pytest.mark.process

EACH = os.environ.get("MPSQ_FAULTS") == "long"
AT_MOST = 12
"""How many calls of each kind fail in `make test`."""
SPEC = JobSpec(kind="command", name="x", argv=("true",), cwd="/")


@dataclass(frozen=True)
class Change:
    """A change of a queue: what must be there before, what it does, and how to see that it was done."""

    prepare: Callable[[Layout], None]
    act: Callable[[Layout], object]
    is_done: Callable[[Layout], bool]


def submit(layout: Layout, word: str = "new") -> None:
    with writing(open_engine(layout.db)) as connection:
        jobs.submit(connection, word, 0, [NewJob(SPEC, 2)], [(0, 1), (0, 2)])


def claim(layout: Layout) -> None:
    with writing(open_engine(layout.db)) as connection:
        assert claim_next(connection) is not None


def end(layout: Layout) -> None:
    engine = open_engine(layout.db)
    with writing(engine) as connection:
        run = jobs.running(connection, "machine")
    assert run is not None
    finish.finish(engine, run, RunDir(layout.run_dir(run.id)), Ending(Outcome.FAILED, 3), None)


def set_to_0017(layout: Layout) -> None:
    with closing(sqlite3.connect(layout.db)) as old, old:
        set_back(old, "0017")


def import_bundle(layout: Layout) -> None:
    merge.merge(layout, [("b.mpsq", layout.home.parent / "b.mpsq")])


def back_up_then_submit(layout: Layout) -> None:
    backup.make(layout)
    submit(layout, "after the backup")


def query(layout: Layout, sql: str) -> int:
    with closing(sqlite3.connect(layout.db)) as connection:
        return int(connection.execute(sql).fetchone()[0])


CHANGES = {
    "submit": Change(
        lambda layout: None, submit, lambda layout: query(layout, "SELECT count(*) FROM groups WHERE title = 'new'") > 0
    ),
    "claim": Change(
        lambda layout: None,
        claim,
        lambda layout: query(layout, "SELECT count(*) FROM runs WHERE state = 'RUNNING'") > 0,
    ),
    "finish": Change(claim, end, lambda layout: query(layout, "SELECT count(*) FROM runs WHERE state = 'DONE'") > 0),
    "merge": Change(
        lambda layout: None, import_bundle, lambda layout: query(layout, "SELECT count(*) FROM merged_runs") > 0
    ),
    "restore": Change(
        back_up_then_submit,
        restore.restore,
        lambda layout: query(layout, "SELECT count(*) FROM groups WHERE title = 'after the backup'") == 0,
    ),
    "migrate": Change(set_to_0017, migrate.upgrade, lambda layout: read.schema_revision(layout.db) == read.HEAD),
}


@pytest.fixture(scope="module")
def bundle() -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return exported(sender(Path(folder) / "theirs"))


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Iterator[sqlite_files.Files]:
    try:
        installed = sqlite_files.install(all_calls=True)
    except (OSError, AttributeError) as error:
        pytest.skip(f"the SQLite of this Python cannot be reached: {error}")
    monkeypatch.setattr(finish, "of_machine", lambda: {"model": "test"})
    here = SimpleNamespace(frames=reader.frames_of)  # the process that reads a bundle takes longer than all the rest
    monkeypatch.setattr(reading, "ReaderProcess", lambda: nullcontext(here))
    yield installed
    installed.fails = None
    sqlite_files.uninstall()


KINDS = {
    "io": lambda call: sqlite_files._ERRORS[call],
    "full": lambda call: sqlite_files.FULL if call in ("write", "truncate") else 0,
    "locked": lambda call: sqlite_files.BUSY if call in ("lock", "shmlock") else 0,
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("verb", sorted(CHANGES))
def test_an_error_at_every_call(home: Path, files: sqlite_files.Files, bundle: bytes, verb: str, kind: str) -> None:
    change, code_of = CHANGES[verb], KINDS[kind]
    layout = empty_queue(home)
    (home.parent / "b.mpsq").write_bytes(bundle)
    submit(layout, "acknowledged")
    change.prepare(layout)
    before = home.with_name("before")
    home.rename(before)

    def attempt(fail_at: int) -> tuple[bool, int]:
        """Fail one call, for good if the disk is full; return whether the change was acknowledged, and how many calls
        there were."""
        shutil.rmtree(home, ignore_errors=True)
        shutil.copytree(before, home)
        n_calls = 0

        def fails(call: str, name: str) -> int:
            nonlocal n_calls
            if not (code := code_of(call)) or not name.startswith(str(home)):
                return 0
            n_calls += 1
            is_this = n_calls >= fail_at if kind == "full" else n_calls == fail_at
            return code if is_this else 0

        files.fails = fails
        try:
            change.act(layout)
            return True, n_calls
        except (MpsqError, sqlite3.Error):
            return False, n_calls
        finally:
            files.fails = None

    _, total = attempt(1 << 62)
    assert change.is_done(layout)
    step = 1 if EACH else max(1, -(-total // (AT_MOST if total < 1000 else 4)))
    for fail_at in range(1, total + 1, step):
        acknowledged, _ = attempt(fail_at)
        assert backup.problems(layout.db) == [], f"call {fail_at} of {total}"
        if verb != "restore":
            assert query(layout, "SELECT count(*) FROM runs JOIN jobs ON jobs.id = job_id WHERE group_id = 1") == 2
        done = change.is_done(layout)
        assert done or not acknowledged, f"acknowledged, and lost: call {fail_at} of {total}"
        if verb == "restore" and not done:
            assert query(layout, "SELECT count(*) FROM groups") == 2
        if not done:
            change.act(layout)
            assert change.is_done(layout), f"not repeatable after call {fail_at} of {total}"


def test_what_a_merge_left_is_known(home: Path, files: sqlite_files.Files, bundle: bytes) -> None:
    """Nothing that an interrupted merge has stored counts."""
    layout = empty_queue(home)
    (home.parent / "b.mpsq").write_bytes(bundle)
    n_writes = 0

    def fails(call: str, name: str) -> int:
        nonlocal n_writes
        n_writes += call == "sync"
        return sqlite_files.IOERR_FSYNC if n_writes > 1 and call == "sync" else 0

    files.fails = fails
    with suppress(MpsqError, sqlite3.Error):
        import_bundle(layout)
    files.fails = None
    assert query(layout, "SELECT count(*) FROM v_run") in (0, 6)
    with closing(sqlite3.connect(layout.db)) as connection:
        assert merges.dangling(lambda sql: connection.execute(sql).fetchall()) == []
