"""A simulated cluster to which a queue sends blocks: a scheduler that forgets, repeats and does not answer, and nodes
that die. The product's dispatcher, fence and records run; the node is a short program that keeps the same protocol.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from queue_runner.bundles import reader
from queue_runner.model import Ending
from queue_runner.remote import block_runs, dispatcher, targets
from queue_runner.remote.block import Folder
from queue_runner.remote.dispatcher import Dispatcher
from queue_runner.remote.fence import FenceHolder, take_fence
from queue_runner.remote.json_files import read_json, write_json
from queue_runner.remote.profile import Profile
from queue_runner.remote.target import NotSent, Refused, Seen, Target, Unreachable, ending_of
from queue_runner.spec import JobSpec, NewJob, Terms
from queue_runner.store.engine import open_engine
from queue_runner.submit import plan
from queue_runner.worker import main_loop
from tests.faults import calls
from tests.faults.machine import Process, Violation
from tests.faults.world import BUSY_S, Queue, Submission, Truth, World
from tests.remote.block_support import write_result

GRACE_S = 5.0


class _Reader:
    """Reads bundles without a child process."""

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def frames(self, path: Path) -> Iterator[tuple[int, bytes]]:
        with closing(calls.REAL.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
            return iter(list(reader.frames(connection)))


@dataclass
class Allocation:
    """A job of the scheduler."""

    number: int
    token: str
    state: str = "waiting"
    words: str = "PENDING"
    node: Process | None = None
    starts_at: float = 0.0


class Cluster(Target):
    """The scheduler as the front sees it."""

    def __init__(self, world: BlockWorld, shared: Path) -> None:
        super().__init__("slurm", shared, Profile(name="slurm", folder=str(shared), poll_s=1.0, grace_s=GRACE_S))
        self.world = world
        self.allocations: list[Allocation] = []

    def _maybe_silent(self) -> None:
        self.world.machine.point("scheduler")
        self.world.machine.wait(None, self.world.chance.choice((0.0, 0.01, 0.3)))
        if self.world.chance.random() < self.world.silence:
            raise Unreachable("it does not answer")

    def send(self, token: str, options: Mapping[str, str]) -> str:
        chance, machine = self.world.chance, self.world.machine
        self._maybe_silent()
        if chance.random() < self.world.silence:
            raise NotSent("no connection") if chance.random() < 0.5 else Refused("no such partition")
        allocation = Allocation(len(self.allocations) + 1, token, starts_at=machine.awake_s + chance.uniform(0.0, 8.0))
        self.allocations.append(allocation)
        machine.note(f"block {token[:6]} is job {allocation.number}")
        self._maybe_silent()
        return str(allocation.number)

    def look(self, token: str) -> Seen:
        self._maybe_silent()
        known = [each for each in self.allocations if each.token == token]
        for each in known:
            if each.state != "gone":
                return Seen(each.state, each.words, "node1", str(each.number))
        return Seen("gone", known[-1].words if known else "forgotten", job=str(known[-1].number) if known else "")

    def ending(self, token: str, *, signalled: bool) -> Ending | None:
        state = self.look(token)
        return ending_of(self.kind, state.words) if state.state == "gone" else None

    def end(self, token: str, *, hard: bool) -> None:
        self._maybe_silent()
        for each in self.allocations:
            if each.token == token and each.state != "gone":
                each.words = "CANCELLED"
                if each.node is not None and each.node.is_alive:
                    self.world.machine.kill(each.node, 9)
                each.state = "gone"


class BlockWorld(World):
    """A queue whose jobs all go to a cluster."""

    def __init__(self, seed: int, folder: Path, template: Path) -> None:
        super().__init__(seed, folder, template, plain=True)
        chance, machine = self.chance, self.machine
        self.shared = folder / "shared"
        self.shared.mkdir()
        self.cluster = Cluster(self, self.shared)
        self.silence = chance.choice((0.0, 0.0, 0.1, 0.3))
        machine.sticks = chance.choice((0.5, 0.9))
        machine.stalls = chance.choice((0.0, 0.0005))
        if chance.random() < 0.8:
            machine.dies_at_point["worker"] = 10 ** chance.uniform(-4, -2.5)
        if chance.random() < 0.4:
            machine.dies_at_point["node"] = 10 ** chance.uniform(-4, -2.7)
        self.forgets = chance.choice((0.0, 0.0, 0.01))
        dispatcher.threading = calls.threads  # type: ignore[assignment]
        dispatcher.find_profile = lambda *_: self.cluster.profile
        dispatcher.config_file.load = lambda path: self.queues[0].config  # type: ignore[assignment]
        block_runs.ReaderProcess = _Reader  # type: ignore[misc, assignment]
        targets.of = lambda *_: self.cluster
        self.plan = sorted(
            [
                *((chance.uniform(0, BUSY_S / 2), "submit", self.queues[0]) for _ in range(chance.randint(1, 3))),
                *((chance.uniform(1, BUSY_S), "cancel", self.queues[0]) for _ in range(chance.randint(0, 2))),
            ],
            key=lambda action: action[0],
        )

    def truth_of(self, queue: Queue, run: str, token: str | None) -> Truth | None:
        return queue.truths.get(run)

    def _work(self, queue: Queue) -> None:
        held = main_loop._take(queue.layout)
        engine = open_engine(queue.layout.db, keep_open=True)
        lanes = Dispatcher(queue.layout, queue.config, engine, self.machine.note)
        while True:
            lanes.step()
            self.machine.wait(None, 1.0)
            held.touch()

    def submit(
        self, queue: Queue, behaviours: list[dict[str, Any]], repeats: int = 1, terms: Terms | None = None
    ) -> Submission:
        self.n_words += 1
        word = f"{queue.name}{self.n_words}"
        jobs = tuple(
            NewJob(
                JobSpec(
                    kind="command", name=word, argv=("trainer", json.dumps(behaviour)), cwd="/", on={"to": "slurm"}
                ),
                repeats,
                Terms(retries=1, retry_on=("lost",)),
            )
            for behaviour in behaviours
        )
        planned = plan.Plan(word, 0, jobs)
        submission = Submission(word, len(planned.order), queue.epoch)
        queue.submissions.append(submission)

        def store() -> None:
            submission.ids = plan.store(queue.layout, planned).jobs

        self._spawn("submit", queue, store)
        return submission

    def _calm(self) -> None:
        super()._calm()
        self.silence = self.forgets = 0.0

    def _tend(self) -> None:
        super()._tend()
        machine = self.machine
        for each in self.cluster.allocations:
            if each.state == "waiting" and machine.awake_s >= each.starts_at:
                self._start_node(each)
            elif each.state == "waiting" and self.chance.random() < self.forgets:
                machine.note(f"the scheduler forgets job {each.number}")
                each.state, each.words = "gone", "forgotten"
            elif each.state == "running" and each.node is not None and not each.node.is_alive:
                each.state = "gone"
                each.words = "NODE_FAIL" if each.node.by_fault else "COMPLETED"
                if each.node.by_fault and self.chance.random() < 0.5:  # it starts the job once more
                    each.state, each.words, each.starts_at = "waiting", "PENDING", machine.awake_s + 1.0

    def _start_node(self, allocation: Allocation) -> None:
        allocation.state, allocation.words = "running", "RUNNING"
        folder = Folder(self.shared / allocation.token)
        allocation.node = self.machine.spawn("node", lambda: self._run_there(folder))

    def _run_there(self, folder: Folder) -> None:
        try:
            self._run_block(folder)
        except FileNotFoundError:  # the front has removed the folder
            raise SystemExit(1) from None

    def _run_block(self, folder: Folder) -> None:
        """Do what remote/node.py does, without a queue of its own."""
        queue, machine = self.queues[0], self.machine
        node = calls.task().process  # type: ignore[union-attr]
        try:
            if not take_fence(folder.fence, FenceHolder(host="node1", pid=node.pid)):
                raise SystemExit(0)
        except FileNotFoundError:
            raise SystemExit(0) from None
        instructions = read_json(folder.instructions)
        assert instructions is not None
        specs = {job["id"]: json.loads(job["spec_json"]) for job in instructions["jobs"]}
        permitted: list[str] = []
        for run in instructions["runs"]:
            name = f"{run['job_id']}.{run['number']}"
            if folder.stop.exists() or not folder.path.exists():
                break
            place = folder.run(name).path
            (place / "warden").mkdir(parents=True, exist_ok=True)
            end: dict[str, Any] = {"outcome": "CANCELLED", "exit_code": None, "claimed_at": None, "started_at": None}
            if not (folder.cancels / name).exists():
                permitted.append(name)
                write_json(folder.permitted, {"runs": permitted})
                truth = self._begin(queue, name, node)
                at = machine.wall
                write_json(place / "began.json", {"at": at, "started": at, "boot_id": "b"})
                behaviour = json.loads(specs[run["job_id"]]["argv"][1])
                self.machine.wait(None, behaviour["for_s"])
                truth.status = behaviour["exit"] << 8
                end = {"outcome": "FAILED" if behaviour["exit"] else "SUCCEEDED", "exit_code": behaviour["exit"]}
                end |= {"claimed_at": at, "started_at": at}
            else:
                write_json(place / "began.json", {"at": None, "started": None})
            self._publish(folder, name, end)
        write_json(folder.ended, {"why": ""})
        raise SystemExit(0)

    def _publish(self, folder: Folder, name: str, end: dict[str, Any]) -> None:
        """Write the result of a run, at once."""
        self.machine.point("rename", f"{name}/result.mpsq")
        wall, before, self.machine.current = self.machine.wall, self.machine.current, None
        try:
            write_result(folder, name, ended_at=wall, **end)
        finally:
            self.machine.current = before

    def _begin(self, queue: Queue, name: str, node: Process) -> Truth:
        queue.n_starts[queue.epoch, name] += 1
        if queue.n_starts[queue.epoch, name] > 1:
            raise Violation(f"{name} runs twice: blocks {[each.token[:6] for each in self.cluster.allocations]}")
        node.run = name
        queue.truths[name] = Truth(name, "", queue.epoch)
        return queue.truths[name]

    def _ended(self, process: Process) -> None:
        super()._ended(process)
        if process.name == "node" and process.exited:
            queue = self.queues[0]
            for allocation in self.cluster.allocations:
                if allocation.node is process:
                    folder = Folder(self.shared / allocation.token)
                    names = (read_json(folder.permitted) or {}).get("runs", [])
                    for name in {process.run, *names}:
                        queue.wardens_killed[name] += 1
                    queue.io_failed = True
