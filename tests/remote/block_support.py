"""A block without a scheduler and without a link: its folder lies here, and the test is the node."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from queue_runner import config_file
from queue_runner.atomic_file import replacing
from queue_runner.bundles import collect, rows
from queue_runner.bundles.clean import NOTHING_HIDDEN
from queue_runner.paths import Layout
from queue_runner.remote import block, targets
from queue_runner.remote.dispatcher import Dispatcher
from queue_runner.remote.fence import FenceHolder, take_fence
from queue_runner.remote.json_files import write_json
from queue_runner.remote.profile import Profile
from queue_runner.remote.slurm.cluster import Slurm
from queue_runner.remote.target import Seen
from queue_runner.spec import JobSpec
from queue_runner.store import read, results
from queue_runner.store.engine import open_engine
from queue_runner.submit import plan
from tests import named_rows
from tests.submit_support import requested

PROFILE = '[on.slurm]\nfolder = "{shared}"\npoll = "0s"\ngrace = "0s"\n'
END: dict[str, Any] = {
    **{"outcome": "SUCCEEDED", "exit_code": 0, "signal": None, "reason": None},
    **{"claimed_at": 10.0, "started_at": 11.0, "ended_at": 12.0},
}
EXIT = {"exit_code": 0, "real_s": 1.0}
FACTS: dict[str, Any] = {"machine": {"id": "node"}, "software": {"system": {"os": "linux"}}}


def write_result(folder: block.Folder, run: str = "1.1", notes: Sequence[tuple[str, str]] = (), **end: Any) -> None:
    """Publish the result of a run as its node does: as END says, with changes."""
    job, number = map(int, run.split("."))
    columns = {**END, **end}
    began = columns["claimed_at"] is not None
    hashes = {kind: results.fingerprint_hash(kind, data) for kind, data in FACTS.items()}
    with replacing(folder.result(run), durable=False) as path:
        with collect.create(path, 1024) as into:
            collect.add(into, rows.GROUPS, [(1, 0.0, "", 0, None)])
            question = json.dumps(NOTHING_HIDDEN.spec(JobSpec(kind="command", name="")))
            collect.add(into, rows.JOBS, [(job, 1, 0.0, question, None, "[]")])
            collect.add(
                into, rows.FINGERPRINTS, sorted((hashes[kind], kind, json.dumps(data)) for kind, data in FACTS.items())
            )
            measured = {"machine_hash": hashes["machine"], "software_hash": hashes["software"]} if began else {}
            values = {**columns, **measured, "id": 1, "job_id": job, "number": number, "created_at": 1.0}
            names = rows.RUNS.columns
            fixed = {"repeat": 1, "attempt": 1, "position": 1}
            collect.add(into, rows.RUNS, [[{**fixed, **values}.get(name) for name in names]])
            if began:
                tables = {table.name: table for table in rows.MEASURED}
                collect.add(into, tables["exits"], [(1, 1.0, None, None, None, None, None, json.dumps(EXIT))])
                places = [(1, results.note_place(kind), kind, text) for kind, text in notes]
                collect.add(into, tables["notes"], places)
        collect.seal(path)


class StandIn(Slurm):
    """A target like Slurm, whose answers the test sets."""

    def __init__(self, shared: Path) -> None:
        super().__init__(Profile(name="slurm", folder=str(shared), poll_s=0, grace_s=0))
        self.shared = shared
        self.answer: Callable[[], str] = lambda: "7"
        self.seen = Seen("gone", "forgotten")
        self.sent: list[str] = []

    def send(self, token: str, options: Mapping[str, str]) -> str:
        self.sent.append(token)
        return self.answer()

    def look(self, token: str) -> Seen:
        return self.seen

    def end(self, token: str, *, hard: bool) -> None:
        pass


class Front:
    """A worker's remote lanes, with a job of `repeats` runs that is to be sent to `target`, as one block by default."""

    def __init__(
        self, layout: Layout, shared: Path, monkeypatch: pytest.MonkeyPatch, repeats: int = 1, **terms: Any
    ) -> None:
        self.layout = layout
        self.shared = shared
        self.target = StandIn(shared)
        self.said: list[str] = []
        layout.config.write_text(PROFILE.format(shared=shared))
        programs = shared.with_name("bin")
        programs.mkdir()
        for name in ("sbatch", "sinfo"):  # which a submission asks
            (programs / name).write_text("#!/bin/sh\n")
            (programs / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
        monkeypatch.setattr(targets, "of", lambda *_: self.target)
        monkeypatch.setattr(
            "queue_runner.remote.dispatcher.PATIENCE_S", 60.0
        )  # a step starts a process on a busy machine
        given = {"argv": ("true",), "cwd": str(layout.home), "nodes_at_once": 1, **terms}
        plan.store(layout, plan.plan(requested(on="slurm", repeats=repeats, **given)))
        self.blocks = self.worker()

    def worker(self) -> Dispatcher:
        """Return the remote lanes as another worker takes them over."""
        return Dispatcher(
            self.layout, config_file.load(self.layout.config), open_engine(self.layout.db), self.said.append
        )

    def folder(self) -> block.Folder:
        """Return the folder of the only block."""
        (found,) = self.shared.glob("*/block.json")
        return block.Folder(found.parent)

    def begin_fence(self) -> None:
        """Let the block begin on the node."""
        take_fence(self.folder().fence, FenceHolder(pid=1))

    def begin(self, run: str = "1.1", **told: Any) -> Path:
        """Let a run begin on the node; return its folder there."""
        self.begin_fence()
        path = self.folder().run(run).path
        (path / "warden").mkdir(parents=True)
        write_json(path / "began.json", {"at": 10.0, "started": 11.0, **told})
        return path

    def row(self, number: int = 1) -> named_rows.Row:
        with read.reading(self.layout.db) as connection:
            return named_rows.runs(connection)[number - 1]
