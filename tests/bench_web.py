"""The figures of `make bench` that concern mpsq web: its memory, and pages of a queue of many jobs."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import psutil

JOBS = 10_000
RUNS, ITERATIONS = 100, 1000


def rows(cwd: Path, row: Callable[..., str], times: int = 7) -> list[str]:
    """The table's rows, of a queue of its own below `cwd`."""
    home = cwd / "web"
    fill(home)
    command = [sys.executable, "-m", "queue_runner.cli", "web", "--port", "0"]
    env = {**os.environ, "MPSQ_HOME": str(home)}
    server = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert server.stdout is not None
        base = server.stdout.readline().strip().partition("/?")[0]
        idle = psutil.Process(server.pid).memory_info().rss / 1e6
        first = took_ms(f"{base}/history", times)
        last = took_ms(f"{base}/history?before=101", times)
        search_ms = took_ms(f"{base}/history?q=nanogpt+cpu+7e-05", times)
        whole = took_ms(f"{base}/history?n={JOBS}", times)
        queue = took_ms(f"{base}/", times)
        job, submission = (took_ms(f"{base}/{page}", times) for page in (f"job/{JOBS // 2}", "group/1"))
        after = psutil.Process(server.pid).memory_info().rss / 1e6
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(timeout=30)
    return [
        row("`mpsq web`, memory at rest", "40 MB", [idle], "MB"),
        row("the same, after all these pages", "-", [after], "MB"),
        row(f"a page of its history, of {JOBS:,} jobs", "150 ms", first, "ms"),
        row("the same, the oldest jobs", "150 ms", last, "ms"),
        row("the same, a search for three words", "150 ms", search_ms, "ms"),
        row(f"the same, all {JOBS:,} on one page", "-", whole, "ms"),
        row("its first page, of that queue", "150 ms", queue, "ms"),
        row("the page of a job", "150 ms", job, "ms"),
        row("the page of a submission of 100 rows", "-", submission, "ms"),
        row(
            f"`mpsq report --html`, of {RUNS} runs of {ITERATIONS:,} iterations", "5 MB", [page_bytes(cwd) / 1e6], "MB"
        ),
    ]


def page_bytes(cwd: Path) -> int:
    """The size of the page of a report of RUNS runs in four rows."""
    from tests.pages.pages_fixture import page_of
    from tests.reports.report_fixture import Store

    (cwd / "template").mkdir()
    store = Store(cwd / "page", cwd / "template")
    for n in range(RUNS):
        median_s = (0.4, 0.1)[n % 2] * (1 + n % 7 / 1000)
        run_id = store.run(("cpu", "mps")[n % 2], n % 4 > 1, median_s)
        losses = [4.0 / (1 + i / 100) + n / 1000 for i in range(ITERATIONS)]
        store.iterations(run_id, [median_s * (1 + i % 7 / 100) for i in range(ITERATIONS)], losses=losses)
    try:
        return len(page_of(store).encode())
    finally:
        store.db.close()


def took_ms(address: str, times: int) -> list[float]:
    """From the request to the last byte; the first request, which loads templates, does not count."""
    samples = []
    for _ in range(times + 1):
        begin = time.perf_counter()
        with urllib.request.urlopen(address) as answer:
            assert answer.read().endswith(b"</html>")
        samples.append((time.perf_counter() - begin) * 1e3)
    return sorted(samples[1:])


def fill(home: Path, count: int = JOBS) -> None:
    """So many finished jobs of one run, with the environment of a real submission."""
    from queue_runner.host.home import ensure_home
    from queue_runner.spec import JobSpec, NewJob
    from queue_runner.store import jobs, migrate
    from queue_runner.store.engine import checkpoint, open_engine, writing

    layout = ensure_home(home)
    migrate.ensure(layout)
    environment = {f"VARIABLE_{n}": "x" * 40 for n in range(40)}
    specs = [
        JobSpec(
            kind="workload",
            name="nanogpt",
            workload="nanogpt",
            framework="torch",
            config="tiny",
            dtype="fp32",
            device=("cpu", "cuda")[n % 2],
            compile=bool(n % 4 > 1),
            params={"learning_rate": (n % 100) * 1e-5, "max_iters": 5000},
            env=environment,
        )
        for n in range(count)
    ]
    engine = open_engine(layout.db)
    with writing(engine) as connection:
        for start in range(0, count, 100):
            new = [NewJob(spec) for spec in specs[start : start + 100]]
            jobs.submit(connection, "bench", 0, new, [(n, 1) for n in range(len(new))])
    engine.dispose()
    with sqlite3.connect(layout.db) as raw:
        raw.execute("UPDATE runs SET state = 'DONE', outcome = 'SUCCEEDED', exit_code = 0, ended_at = created_at")
        raw.execute(
            "INSERT INTO summaries (run_id, n_iters, n_measure, median_s, mad_s)"
            " SELECT id, 5000, 4996, 0.1, 0.001 FROM runs"
        )
        raw.execute(
            "INSERT INTO exits (run_id, real_s, user_s, sys_s, max_rss_bytes, exit_json)"
            " SELECT id, 500, 400, 20, 500000000, '{}' FROM runs"
        )
    checkpoint(layout.db)
