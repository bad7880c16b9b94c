"""The CLI in this process, a queue with runs in every state, and docs/json.md as JSON Schemas."""

from __future__ import annotations

import atexit
import functools
import json
import re
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from queue_runner.cli.main import main
from queue_runner.events import Hello, Iter, Note, Phase
from queue_runner.host.home import ensure_home
from queue_runner.host.run_dir import RunDir
from queue_runner.host.warden_records import RunEnd
from queue_runner.model import DEFAULT_LANE, Ending, Outcome, RunId, Taint, Verb
from queue_runner.paths import Layout
from queue_runner.spec import JobSpec, NewJob, Terms
from queue_runner.store import jobs, migrate, results
from queue_runner.store.engine import open_engine, writing
from tests.store_support import claim_next

ROOT = Path(__file__).resolve().parents[1]

TOY = '''
"""A toy."""
WORKLOAD = {
    "name": "toy",
    "framework": "torch",
    "about": "A workload for tests.",
    "source": "nowhere",
    "params": {
        "max_iters": {"default": 10, "unit": "iterations", "help": "how long it trains"},
        "lr": {"default": 1e-3, "unit": "1/step", "help": "learning rate"},
        "fused": {"default": True, "help": "fused optimizer"},
        "data": {"default": "pydoc", "help": "what it reads"},
        "note": {"default": None, "help": "free text"},
    },
    "configs": {"tiny": {"max_iters": 5}, "large": {"max_iters": 5000}},
}
'''


@dataclass(frozen=True)
class Ran:
    """What one command did."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


class Cli:
    """Runs commands in this process."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def __call__(self, *arguments: object) -> Ran:
        self._capture.readouterr()
        code = main([str(argument) for argument in arguments])
        out, err = self._capture.readouterr()
        assert "Traceback" not in err
        return Ran(code, out, err)

    def ok(self, *arguments: object) -> Ran:
        ran = self(*arguments)
        assert ran.code == 0, ran
        return ran


def use_toy_workloads(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A jobs/ folder with one workload, in the place of ours."""
    from queue_runner.workloads import manifest

    manifest._loop_keys()  # of ours, once and for all: this folder has no harness
    folder.mkdir(parents=True)
    (folder / "toy_torch.py").write_text(TOY)
    (folder / "toy_mlx.py").write_text(TOY.replace('"torch"', '"mlx"'))
    (folder / "shared.py").write_text("x = 1\n")
    for place in ("paths", "submit.expand", "submit.plan"):
        monkeypatch.setattr(f"queue_runner.{place}.jobs_dir", lambda: folder)
    return folder


def stand_in_venv(home: Path, name: str, **packages: str) -> Path:
    """An environment as `mpsq env create` leaves it, but that its python is this one and nothing is installed."""
    import sys

    from queue_runner.workloads.venvs import RECORD, Venv

    folder = home / "envs" / name
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    record = Venv(name, folder, "3.11.7", ("torch", "--index-url", "https://index.invalid/nightly"), packages, 1e9)
    (folder / RECORD).write_text(record.record())
    return folder


@functools.cache
def _empty_database() -> bytes:
    folder = Path(tempfile.mkdtemp(prefix="mpsq-test-"))
    try:
        layout = ensure_home(folder / "home")
        migrate.ensure(layout)
        return layout.db.read_bytes()
    finally:
        shutil.rmtree(folder)


def empty_queue(home: Path) -> Layout:
    """A home with an empty database, without migrating each time."""
    layout = ensure_home(home)
    layout.db.touch(mode=0o600)  # as migrate makes it
    layout.db.write_bytes(_empty_database())
    return layout


SPEC = JobSpec(
    kind="command",
    name="toy",
    device="cpu",
    compile=False,
    dtype="fp32",
    config="tiny",
    params={"lr": 0.1},
    argv=("python", "train.py", "https://me:hunter2@host"),
    python="/usr/bin/python3",
    cwd="/tmp",
    env={"PATH": "/bin", "NAME": "hunter2"},
)

ENDINGS = {
    "ok": Ending(Outcome.SUCCEEDED, 0),
    "failed": Ending(Outcome.FAILED, 3, reason="ValueError: \x1b[31mno data"),
    "killed": Ending(Outcome.KILLED, signal=9, reason="SIGKILL from outside mpsq"),
}


@functools.cache
def _full_home() -> Path:
    """A template that lives as long as this process."""
    folder = Path(tempfile.mkdtemp(prefix="mpsq-test-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _fill(folder / "home")
    return folder / "home"


def full_queue(home: Path) -> Layout:
    """Jobs 1 (succeeded twice), 2 (failed), 3 (killed) and 4 (running) are group 1, 5 and 6 wait in group 2."""
    shutil.copytree(_full_home(), home)
    return Layout(home)


def _fill(home: Path) -> None:
    layout = empty_queue(home)
    engine = open_engine(layout.db, check=False)
    with writing(engine) as connection:
        first = [
            NewJob(replace(SPEC, name=name), terms=Terms(tags=("night", "grid")))
            for name in ("ok", "failed", "killed", "running")
        ]
        first[0] = replace(first[0], repeats=2)
        order = [(0, 1), (0, 2), (1, 1), (2, 1), (3, 1)]
        jobs.submit(connection, "mpsq submit first", 7, first, order)
        waiting = [NewJob(replace(SPEC, name=f"waits{n}", device="mps", compile=True)) for n in (1, 2)]
        jobs.submit(connection, "mpsq submit second", 8, waiting, [(0, 1), (1, 1)])
    for name in ("ok", "ok", "failed", "killed"):
        _run(engine, layout, ENDINGS[name])
    _run(engine, layout, None)
    engine.dispose()


def _run(engine: Any, layout: Layout, ending: Ending | None) -> None:
    with writing(engine) as connection:
        run = claim_next(connection, token="ab" * 16)
        assert run is not None
        results.mark_started(connection, run.run_id, time.time())
        hello = Hello(
            0, 0.0, workload="toy", framework="torch", versions={"torch": "2.13.0"}, device="cpu", planned_iters=40
        )
        iterations = [Iter(100 + n, float(n), n, 0.02, loss=4.0 - n / 10, synced=True) for n in range(20)]
        phases = [Phase(10, 0.0, "setup", "begin"), Phase(20, 1.0, "setup", "end"), Phase(30, 1.0, "measure", "begin")]
        results.save_events(
            connection, run.run_id, [hello, *phases, *iterations, Note(500, 3.0, "op_fallback", "one op")]
        )
    folder = RunDir(layout.run_dir(run.id))
    (folder.path / "warden").mkdir(parents=True)
    folder.stdout.write_text(f"hello from {run.id}\n")
    folder.stderr.write_text("warning\n")
    if ending is None:
        return
    with writing(engine) as connection:
        results.save_exit(connection, run.run_id, RunEnd(real_s=1.5, user_s=1.0, sys_s=0.25, max_rss_bytes=1 << 20))
        results.save_summary(connection, run.run_id, {"n_iters": 20, "n_measure": 20, "median_s": 0.02, "mad_s": 0.001})
        if ending.outcome is not Outcome.SUCCEEDED:
            results.save_taints(connection, run.run_id, [Taint("contended", "invalid", "others used the CPU")])
        jobs.move(connection, run.run_id, Verb.FINISH, actor="worker", ending=ending, ended_at=time.time())


def end_running_run(layout: Layout, ending: Ending) -> RunId:
    """What a worker would store at the end of the run that is RUNNING."""
    engine = open_engine(layout.db, check=False)
    with writing(engine) as connection:
        run = jobs.running(connection, DEFAULT_LANE)
        assert run is not None
        jobs.move(connection, run.run_id, Verb.FINISH, actor="worker", ending=ending, ended_at=time.time())
    engine.dispose()
    return run.id


def taint(layout: Layout, run: str) -> None:
    """Make the numbers of a run invalid, as its worker does at its end."""
    with sqlite3.connect(layout.db) as connection:
        connection.execute(
            "INSERT INTO taints (run_id, kind, severity, detail)"
            " SELECT run_id, 'contended', 'invalid', 'busy' FROM v_run WHERE run = ?",
            [run],
        )


_SIMPLE = {
    "string": {"type": "string"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "object": {"type": "object"},
    "null": {"type": "null"},
    "any": {},
}


@functools.cache
def schemas() -> dict[str, dict[str, Any]]:
    """Every section of docs/json.md as a JSON Schema that allows nothing but its keys; `mpsq.*` by schema name."""
    sections = re.split(r"^#{2,3} (.+)$", (ROOT / "docs" / "json.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    tables = dict(zip(sections[1::2], sections[2::2], strict=True))
    schemas_by_name = {name: _object(name, text, tables) for name, text in tables.items()}
    inner = {name: schema for name, schema in schemas_by_name.items() if not name.startswith("mpsq.")}
    return {name: {**schema, "$defs": inner} for name, schema in schemas_by_name.items() if name.startswith("mpsq.")}


def _object(name: str, text: str, sections: Mapping[str, str]) -> dict[str, Any]:
    """Read the lines "- `key`, `key` (type): meaning" of a section, with those of the sections that it includes."""
    included = re.findall(r"\[\w+\]\(#(\w+)\)", "".join(re.findall(r"^Keys of .*", text, flags=re.MULTILINE)))
    keys: dict[str, Any] = {}
    for section in included:
        keys |= _object(section, sections[section], sections)["properties"]
    for names, words in re.findall(r"^- ((?:`\w+`(?:, )?)+) \(([\w ]+)\)", text, flags=re.MULTILINE):
        keys |= dict.fromkeys(re.findall(r"\w+", names), _type(words))
    if name.startswith("mpsq."):
        keys["schema"] = {"const": name}
    return {"type": "object", "properties": keys, "required": list(keys), "additionalProperties": False}


def _type(words: str) -> dict[str, Any]:
    if " or " in words:
        return {"anyOf": [_type(word) for word in words.split(" or ")]}
    if words.startswith("list of "):
        return {"type": "array", "items": _type(words.removeprefix("list of "))}
    return _SIMPLE.get(words) or ({} if words == "any" else {"$ref": f"#/$defs/{words}"})
