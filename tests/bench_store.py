"""The figures of `make bench` that concern the store: one event in the trainer, ingest, and reports over many runs."""

from __future__ import annotations

import importlib.util
import os
import sqlite3
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

if TYPE_CHECKING:
    from queue_runner.paths import Layout

ITERATIONS = 100_000
RUNS = 1_000
HISTORY = 100_000
"""Runs of a store in which every 40 ask a question of their own."""


def rows(cwd: Path, row: Callable[..., str], command_ms: Callable[..., list[float]]) -> list[str]:
    """The table's rows, measured in a folder of their own below `cwd`."""
    mean, p99 = event_us(cwd)
    seconds, size = ingest(cwd)
    return [
        row("one event in the trainer, mean", "8 us", mean, "us"),
        row("one event in the trainer, 99th percentile", "300 us", p99, "us"),
        row(f"ingest of {ITERATIONS:,} iterations", "1 s", seconds, "s"),
        row("one iteration on disk", "60 B", size, "B"),
        row(f"default report over {RUNS:,} runs of 5,000 iterations", "300 ms", report_ms(cwd, command_ms), "ms"),
        row(f"default report of the newest of {HISTORY:,} runs", "300 ms", newest_ms(cwd, command_ms), "ms"),
    ]


def event_us(cwd: Path, times: int = 5, events: int = 20_000) -> tuple[list[float], list[float]]:
    """Mean and 99th percentile of one `iter` call, each over `events` calls, `times` times."""
    source = Path(__file__).resolve().parents[1] / "jobs" / "mpsq_report.py"
    spec = importlib.util.spec_from_file_location("mpsq_report", source)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    means, tails = [], []
    for turn in range(times):
        os.environ["MPSQ_EVENTS"] = str(cwd / f"events-{turn}.jsonl")
        reporter = module.Reporter()
        took = []
        for i in range(events):
            begin = time.perf_counter()
            reporter.iter(i, 0.0123456, loss=4.2, synced=True, phase="measure")
            took.append((time.perf_counter() - begin) * 1e6)
        means.append(statistics.fmean(took))
        tails.append(sorted(took)[int(events * 0.99)])
    del os.environ["MPSQ_EVENTS"]
    return sorted(means), sorted(tails)


def ingest(cwd: Path, times: int = 3) -> tuple[list[float], list[float]]:
    """Seconds to take in a file of ITERATIONS lines, and bytes an iteration that the database grows by."""
    from queue_runner.host.run_dir import RunDir
    from queue_runner.ingest.ingest import Ingest
    from queue_runner.paths import Layout
    from queue_runner.store import migrate
    from queue_runner.store.engine import checkpoint, open_engine

    line = '{"type":"iter","t":%.6f,"i":%d,"dur_s":0.0123456,"loss":%.6f,"synced":true,"phase":"measure"}\n'
    text = "".join(line % (i * 0.0123456, i, 4.2 - i * 1e-5) for i in range(ITERATIONS))
    took, sizes = [], []
    for turn in range(times):
        layout = Layout(cwd / f"ingest-{turn}")
        layout.home.mkdir()
        migrate.ensure(layout)
        engine = open_engine(layout.db, keep_open=True)
        run = a_run(engine)
        folder = RunDir(layout.run_dir(run.id))
        folder.path.mkdir(parents=True)
        folder.events.write_text(text)
        checkpoint(layout.db)
        empty = layout.db.stat().st_size
        begin = time.perf_counter()
        Ingest(engine, run, folder).finish()
        took.append(time.perf_counter() - begin)
        checkpoint(layout.db)
        sizes.append((layout.db.stat().st_size - empty) / ITERATIONS)
        engine.dispose()
    return sorted(took), sorted(sizes)


def a_run(engine: Any) -> Any:
    """A claimed run of a workload in an otherwise empty store."""
    from queue_runner.spec import JobSpec, NewJob
    from queue_runner.store import jobs
    from queue_runner.store.engine import writing
    from tests.store_support import claim_next

    with writing(engine) as connection:
        new = [NewJob(JobSpec(kind="workload", name="nanogpt", workload="nanogpt"))]
        jobs.submit(connection, "bench", 0, new, [(0, 1)])
        run = claim_next(connection)
    assert run is not None
    return run


def report_ms(cwd: Path, command_ms: Callable[..., Sequence[float]]) -> list[float]:
    """The default report over RUNS summarised runs; their iterations are in the store and are not read."""
    home = os.environ["MPSQ_HOME"]
    os.environ["MPSQ_HOME"] = str(cwd / "many")
    fill_many(cwd / "many")
    try:
        return list(command_ms(["report"], cwd, 7))
    finally:
        os.environ["MPSQ_HOME"] = home


def newest_ms(cwd: Path, command_ms: Callable[..., Sequence[float]]) -> list[float]:
    """The default report over HISTORY summarised runs, of which it shows the newest comparisons."""
    home = os.environ["MPSQ_HOME"]
    os.environ["MPSQ_HOME"] = str(cwd / "history")
    fill_history(cwd / "history")
    try:
        return list(command_ms(["report"], cwd, 7))
    finally:
        os.environ["MPSQ_HOME"] = home


def submitted(home: Path, submissions: int, repeats: int) -> Layout:
    """A store with submissions of a question each, over 2 devices x 2 modes."""
    from queue_runner.paths import Layout
    from queue_runner.spec import JobSpec, NewJob
    from queue_runner.store import jobs, migrate
    from queue_runner.store.engine import open_engine, writing

    home.mkdir()
    layout = Layout(home)
    migrate.ensure(layout)
    base = JobSpec(kind="workload", name="nanogpt", workload="nanogpt", framework="torch", config="tiny", dtype="fp32")
    engine = open_engine(layout.db)
    with writing(engine) as connection:
        for k in range(submissions):
            cells = [
                replace(base, device=device, compile=mode, params={"batch_size": k + 1})
                for device in ("cpu", "cuda")
                for mode in (False, True)
            ]
            order = [(cell, repeat) for repeat in range(1, repeats + 1) for cell in range(len(cells))]
            jobs.submit(connection, "bench", 0, [NewJob(cell, repeats) for cell in cells], order)
    engine.dispose()
    return layout


def fill_history(home: Path) -> None:
    """HISTORY finished runs, 40 of each question; their iterations are not stored."""
    from queue_runner.store.engine import checkpoint

    layout = submitted(home, HISTORY // 40, 10)
    with sqlite3.connect(layout.db, isolation_level=None) as raw:
        raw.execute("BEGIN IMMEDIATE")
        raw.execute("UPDATE runs SET state = 'DONE', outcome = 'SUCCEEDED', exit_code = 0, ended_at = created_at")
        raw.execute(
            "INSERT INTO summaries (run_id, n_iters, n_measure, median_s, mad_s, q1_s, q3_s, first_iter_s, loss_last)"
            " SELECT id, 5000, 4996, 0.1 + id % 4 * 0.01 + id % 97 * 1e-5, 0.001, 0.1, 0.2, 1.0, 1.5 FROM runs"
        )
        raw.execute(
            "INSERT INTO exits (run_id, real_s, user_s, sys_s, max_rss_bytes, exit_json)"
            " SELECT id, 500, 400, 20, 500000000, '{}' FROM runs"
        )
        raw.execute("COMMIT")
    checkpoint(layout.db)


def fill_many(home: Path) -> None:
    """RUNS finished runs over 2 devices x 2 modes, 5,000 iterations each."""
    from queue_runner.store.engine import checkpoint

    layout = submitted(home, 1, RUNS // 4)
    with sqlite3.connect(layout.db, isolation_level=None) as raw:
        raw.execute("PRAGMA wal_autocheckpoint=0")
        raw.execute("PRAGMA synchronous=OFF")
        raw.execute("BEGIN IMMEDIATE")
        ids = [r[0] for r in raw.execute("SELECT id FROM runs")]
        raw.execute("UPDATE runs SET state = 'DONE', outcome = 'SUCCEEDED', exit_code = 0, ended_at = created_at")
        for run in ids:
            median = 0.1 + (run % 4) * 0.01 + (run % 97) * 1e-5
            raw.execute(
                "INSERT INTO summaries"
                " (run_id, n_iters, n_measure, median_s, mad_s, q1_s, q3_s, first_iter_s, loss_last)"
                " VALUES (?, 5000, 4996, ?, 0.001, ?, ?, 1.0, 1.5)",
                [run, median, median - 0.001, median + 0.001],
            )
            raw.execute(
                "INSERT INTO exits (run_id, real_s, user_s, sys_s, max_rss_bytes, exit_json)"
                " VALUES (?, 500, 400, 20, 500000000, '{}')",
                [run],
            )
            raw.executemany(
                "INSERT INTO iterations (run_id, offset, i, dur_s, loss, phase, synced) VALUES (?, ?, ?, ?, 1.5, 3, 1)",
                ((run, i * 100, i, median) for i in range(5000)),
            )
        raw.execute("COMMIT")
    checkpoint(layout.db)
