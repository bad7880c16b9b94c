"""The invariants of docs/supervision.md, looked at after each step in which something was stored or started."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from queue_runner.store import ready
from tests.faults import calls
from tests.faults.disk import _content
from tests.faults.machine import Process, Violation

if TYPE_CHECKING:
    from tests.faults.world import Queue, Truth, World

PROMPT_S = 8.0
"""A run that may start on a machine where nothing runs starts within this time."""
AFTER_REFUSAL_S = 70.0
"""The same where the disk has refused something: the worker tries again every 30 s."""
PROCESSORS = frozenset({0, 1})
_SUPERVISED = ("warden", "trainer")
_HERE = ("machine", "cpu:0", "cpu:1", "cpu:0,cpu:1")

_RUNS = """
SELECT r.id, r.job_id, r.job_id || '.' || r.number, r.state, r.outcome, r.exit_code, r.signal, r.reason, r.token,
    r.lane, j.name, CASE WHEN r.state = 'DONE' THEN (SELECT count(*) FROM iterations i WHERE i.run_id = r.id) END,
    CASE WHEN r.state = 'DONE' THEN (SELECT n.text FROM notes n WHERE n.run_id = r.id AND n.kind = 'log_rewritten') END
FROM runs r JOIN jobs j ON j.id = r.job_id ORDER BY r.id
"""


class Row(NamedTuple):
    """A run as it is stored."""

    id: int
    job: int
    run: str
    state: str
    outcome: str | None
    exit_code: int | None
    signal: int | None
    reason: str | None
    token: str | None
    lane: str
    word: str
    n_iterations: int | None
    rewritten: str | None


class Checker:
    """Looks at the queues of a world from outside."""

    def __init__(self, world: World) -> None:
        self.world, self.machine = world, world.machine
        self.dirty: set[str] = {queue.name for queue in world.queues}
        self.rows: dict[str, dict[int, Row]] = {queue.name: {} for queue in world.queues}
        self.restores: list[str] = []  # a queue for each restore that is under way
        self.restoring_pids: set[int] = set()
        self.known: dict[str, set[str]] = {queue.name: set() for queue in world.queues}
        self.cores: dict[str, frozenset[int]] = {}  # by tag
        self.idle_since: dict[str, float] = {}
        self.n_begun = 0
        self.next_look = 0.0
        self._connections: dict[str, sqlite3.Connection] = {}
        self._ids: dict[str, tuple[int, int]] = {}

    # -- what the world tells -----------------------------------------------------------------------------------------

    def committed(self, connection: Any) -> None:
        for queue in self.world.queues:
            if str(queue.layout.db) in connection.address:
                self.dirty.add(queue.name)

    def trainer_starts(self, queue: Queue, trainer: Process, truth: Truth, spec: dict[str, Any]) -> None:
        """Check what must be true when the process of a run is created."""
        before, self.machine.current = self.machine.current, None
        try:
            self._check_start(queue, truth, spec)
        finally:
            self.machine.current = before

    def _check_start(self, queue: Queue, truth: Truth, spec: dict[str, Any]) -> None:
        name = f"{queue.name}:{truth.run}"
        queue.n_starts[truth.epoch, truth.run] += 1
        if queue.n_starts[truth.epoch, truth.run] > 1:
            raise Violation(f"{name} runs twice")
        folder = queue.layout.run_dir(truth.run)
        fence = folder / "warden" / "started"
        if not fence.exists():
            raise Violation(f"{name} runs without its fence")
        disk = self.machine.disk
        if disk.flushed.get(fence.stat().st_ino) != _content(str(fence)) or any(
            other == str(fence) for _, _, other, _ in disk.changes
        ):
            raise Violation(f"{name} runs before its fence is on the disk")
        cores = frozenset(spec["cores"]) or PROCESSORS
        for process in self.machine.processes.values():
            if process.is_alive and process.tag and process.tag != truth.tag and cores & self.cores[process.tag]:
                raise Violation(f"{name} starts while {process} of {process.run} is on its lane")
        row = self._row(queue, truth.run)
        if row is None or row.state != "RUNNING" or row.token != truth.tag:
            raise Violation(f"{name} runs, and is stored as {row}")
        self.cores[truth.tag] = cores
        queue.truths[truth.tag] = truth
        (folder / "out").mkdir(exist_ok=True)
        (folder / "out" / truth.tag).touch()

    def restoring(self, queue: Queue) -> None:
        """A restore begins: runs may run again from now on, under the terms of the restored database."""
        queue.epoch += 1
        self.restores.append(queue.name)
        assert self.machine.current is not None
        self.restoring_pids.add(self.machine.current.process.pid)

    def restored(self, queue: Queue, pid: int) -> None:
        """A restore has ended, in whatever way: each acknowledged job is in the queue, or in a copy of the old one."""
        if pid not in self.restoring_pids:
            return
        self.restores.remove(queue.name)
        if queue.name in self.restores:
            return
        before, self.machine.current = self.machine.current, None
        try:
            self._forget_connection(queue)
            rows = self._read(queue)
            words = {row.word for row in rows}
            elsewhere = set().union(*(_words(path) for path in queue.layout.backups.glob("replaced-*.db")))
            acknowledged = {submission.word for submission in queue.submissions if submission.ids}
            if missing := acknowledged - words - elsewhere:
                raise Violation(f"restore lost {sorted(missing)}")
            queue.epoch += 1  # what began while the restore waited for it may wait again, too
            for submission in [each for each in queue.submissions if each.ids]:
                submission.ids = tuple(sorted({row.job for row in rows if row.word == submission.word}))
                submission.n_runs = 0
                submission.epoch = queue.epoch
            self.rows[queue.name] = {}
        except Violation as error:
            self.machine.failure = self.machine.failure or error
        finally:
            self.machine.current = before

    def booted(self) -> None:
        """The power is back: check that the databases are sound."""
        for queue in self.world.queues:
            self._sound(queue)
            self.dirty.add(queue.name)

    # -- after each step ----------------------------------------------------------------------------------------------

    def step(self) -> None:
        if self.dirty:
            for queue in self.world.queues:
                if queue.name in self.dirty and queue.name not in self.restores:
                    self.dirty.discard(queue.name)
                    self._check(queue)
        if self.machine.awake_s >= self.next_look:
            self.next_look = self.machine.awake_s + 1.0
            self._check_promptness()

    def _check(self, queue: Queue) -> None:
        rows = self._read(queue)
        before, now = self.rows[queue.name], {row.id: row for row in rows}
        self.rows[queue.name] = now
        for row in before.values():
            after = now.get(row.id)
            if after is None:
                raise Violation(f"{queue.name}:{row.run} is gone")
            if row.state == "DONE" and (after.state, after.outcome, after.exit_code) != (
                *("DONE", row.outcome, row.exit_code),
            ):
                raise Violation(f"{queue.name}:{row.run} had ended as {row.outcome} and is now {after}")
        running = [row for row in rows if row.state == "RUNNING"]
        if len(running) > 1 and any(row.lane == "machine" for row in running):
            raise Violation(f"{queue.name}: {[row.run for row in running]} run, and one of them alone")
        for submission in queue.submissions:
            if submission.ids and submission.epoch == queue.epoch:
                stored = [row for row in rows if row.job in submission.ids]
                if len(stored) < submission.n_runs or any(row.word != submission.word for row in stored):
                    raise Violation(f"{queue.name}: {submission} was acknowledged, and stored are {stored}")
        for row in rows:
            if row.state in ("QUEUED", "HELD") and row.token is None and queue.n_starts[queue.epoch, row.run]:
                raise Violation(f"{queue.name}:{row.run} has run and waits again")
            if row.state == "DONE" and (row.id not in before or before[row.id].state != "DONE"):
                self._check_end(queue, row)
                self.world.run_has_ended(queue)

    def _check_end(self, queue: Queue, row: Row) -> None:
        name = f"{queue.name}:{row.run}"
        truth = self.world.truth_of(queue, row.run, row.token)
        if truth is not None:
            alive = [process for process in self.machine.processes.values() if process.is_alive]
            left = [process for process in alive if process.tag == truth.tag != ""]
            if left:
                raise Violation(f"{name} has ended as {row.outcome}, and {left} live")
            if row.n_iterations != truth.n_lines and not truth.power_failed:
                raise Violation(f"{name} wrote {truth.n_lines} iterations, and {row.n_iterations} are stored")
            if row.rewritten and not truth.power_failed:
                raise Violation(f"{name}: {row.rewritten}, but nobody has changed the file")
        starts = [each for each in queue.truths.values() if each.run == row.run and queue.epoch]
        known = truth or next(reversed(starts), None)  # a restored database may have the token of an earlier start
        status = None if known is None else known.status
        wrong = ""
        if row.outcome in ("SUCCEEDED", "FAILED", "KILLED"):
            stored = row.signal if row.outcome == "KILLED" else (row.exit_code or 0) << 8
            if status != stored:
                wrong = f"its wait status was {status}"
        elif row.outcome == "CANCELLED":
            if str(row.job) not in queue.cancelled:
                wrong = "nobody has cancelled it"
        elif row.outcome == "LOST":
            is_explained = queue.wardens_killed[row.run] or (truth is not None and truth.power_failed)
            if not is_explained and not self.machine.boot > 1:
                wrong = "its warden was not killed"
        elif row.outcome == "SPAWN_FAILED":
            is_explained = queue.wardens_killed[row.run] or queue.io_failed or queue.epoch or self.machine.boot > 1
            if not is_explained:
                wrong = "nothing kept it from starting"
            if truth is not None and truth.epoch == queue.epoch:
                wrong = "it has run"
        elif row.outcome != "SKIPPED":
            wrong = "nothing asks for that"
        if wrong:
            raise Violation(f"{name} is stored as {row.outcome} ({row.reason}), but {wrong}")

    def _check_promptness(self) -> None:
        """Check that no run waits on an idle machine: a ring was lost then. A run that began and ended since the last
        look was on the machine, too."""
        machine = self.machine
        self._check_ends()
        states = [row.state for rows in self.rows.values() for row in rows.values()]
        n_begun, self.n_begun = self.n_begun, len(states) - states.count("QUEUED")
        is_idle = not machine.disk_is_full and "RUNNING" not in states and self.n_begun == n_begun
        is_idle = is_idle and not any(process.tag and process.is_alive for process in machine.processes.values())
        for queue in self.world.queues:
            worker = queue.worker
            is_stalled = any(task.held_until > machine.awake_s for task in machine.tasks)
            if not is_idle or worker is None or queue.kept_down or is_stalled:
                self.idle_since.pop(queue.name, None)
                continue
            values = {"this_lane": "machine", "now": machine.wall}
            if self._connection(queue).execute(ready.CAN_START, values).fetchone() is None:
                self.idle_since.pop(queue.name, None)
                queue.ring_lost = False
                continue
            since = self.idle_since.setdefault(queue.name, machine.awake_s)
            from tests.faults.world import POLL_S

            limit_s = AFTER_REFUSAL_S if queue.io_failed else PROMPT_S
            if machine.awake_s - since > limit_s + (POLL_S if queue.ring_lost else 0.0):
                raise Violation(f"{queue.name}: a run may start, and its worker sleeps")

    def _check_ends(self) -> None:
        """Check that a run whose trainer and warden are gone does not stay RUNNING."""
        machine = self.machine
        alive = {(process.home, process.run) for process in machine.processes.values() if process.kind in _SUPERVISED}
        for queue in self.world.queues:
            is_disturbed = queue.worker is None or machine.disk_is_full or queue.ring_lost
            is_disturbed |= any(task.held_until > machine.awake_s for task in machine.tasks)
            for row in self.rows[queue.name].values():
                key = f"{queue.name}:{row.run}"
                if row.state != "RUNNING" or is_disturbed or (queue.name, row.run) in alive or row.lane not in _HERE:
                    self.idle_since.pop(key, None)
                elif machine.awake_s - self.idle_since.setdefault(key, machine.awake_s) > AFTER_REFUSAL_S:
                    raise Violation(f"{key} has ended, and its worker does not store that")

    # -- the end ------------------------------------------------------------------------------------------------------

    def is_over(self) -> bool:
        return not self.dirty and not self.unended() and not self.users(("worker",))

    def users(self, others: tuple[str, ...] = ("worker", "starter", "warden", "trainer", "child")) -> list[Process]:
        """Return the processes that are none of these."""
        processes = self.machine.processes.values()
        return [process for process in processes if process.is_alive and process.name.split()[0] not in others]

    def unended(self) -> list[str]:
        return [
            f"{name}:{row.run} is {row.state}"
            for name, rows in self.rows.items()
            for row in rows.values()
            if row.state not in ("DONE", "HELD")
        ]

    def final(self) -> None:
        """Check what must be true once all has ended."""
        for queue in self.world.queues:
            self._sound(queue)
            tags = {path.name for path in queue.layout.runs.glob("*/out/*")}
            tags |= {path.name for path in queue.layout.set_aside.glob("*/out/*")}
            for truth in queue.truths.values():
                if truth.tag and truth.tag not in tags and not truth.power_failed:
                    raise Violation(f"{queue.name}: the files of {truth.run} are gone")

    def _sound(self, queue: Queue) -> None:
        connection = sqlite3.Connection(f"file:{quote(str(queue.layout.db))}?mode=rw", uri=True)
        try:
            (answer,) = connection.execute("PRAGMA integrity_check").fetchone()
            dangling = connection.execute("PRAGMA foreign_key_check").fetchall()
        except sqlite3.DatabaseError as error:
            raise Violation(f"{queue.name}: the database is damaged: {error}") from error
        finally:
            connection.close()
        if answer != "ok" or dangling:
            raise Violation(f"{queue.name}: the database is damaged: {answer} {dangling}")

    # -- the store from outside ---------------------------------------------------------------------------------------

    def _row(self, queue: Queue, run: str) -> Row | None:
        return next((row for row in self._read(queue) if row.run == run), None)

    def _read(self, queue: Queue) -> list[Row]:
        return [Row(*row) for row in self._connection(queue).execute(_RUNS)]

    def _connection(self, queue: Queue) -> sqlite3.Connection:
        """Return a connection that reads, kept only while a worker has one too: the last one to close tidies up."""
        status = queue.layout.db.stat()
        file = status.st_dev, status.st_ino
        if self._ids.get(queue.name) != file:
            self._forget_connection(queue)
        if queue.name not in self._connections:
            address = f"file:{quote(str(queue.layout.db))}?mode=ro"
            self._connections[queue.name] = calls.REAL.connect(address, uri=True, isolation_level=None)
            self._ids[queue.name] = file
        return self._connections[queue.name]

    def _forget_connection(self, queue: Queue) -> None:
        if (connection := self._connections.pop(queue.name, None)) is not None:
            connection.close()

    def close(self) -> None:
        for queue in self.world.queues:
            self._forget_connection(queue)


def _words(db: Path) -> set[str]:
    connection = sqlite3.Connection(f"file:{quote(str(db))}?mode=ro", uri=True)
    try:
        return {word for (word,) in connection.execute("SELECT name FROM jobs")}
    except sqlite3.DatabaseError:
        return set()
    finally:
        connection.close()


def described(row: Row) -> str:
    return json.dumps(row._asdict())
