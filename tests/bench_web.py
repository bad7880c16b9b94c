"""The figures of `make bench` that concern mpsq web: its memory, and how late each page of a queue of many jobs is.

`python -m tests.bench_web` measures these alone.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

JOBS, ROWS = 10_000, 100
"""Jobs of the queue, and of each submission in it."""
TIMES = 40
LIMIT_MS, LIMIT_MB = 150, 40
RUNS, ITERATIONS = 100, 1000

ENDED = {
    "the queue": ["/"],
    "a page of the history": [f"/history?before={before}" for before in range(JOBS, 0, -JOBS // TIMES)],
    "the same, a search for three words": ["/history?q=nanogpt+cpu+7e-05"],
    "a job": [f"/job/{job}" for job in range(1, JOBS, JOBS // TIMES)],
    "its log": [f"/log/{job}" for job in range(1, JOBS, JOBS // TIMES)],
    f"a submission of {ROWS} rows": [f"/group/{group}" for group in range(1, TIMES + 1)],
    "the same, opened again": ["/group/1"],
    "two jobs, compared": [f"/compare?id={job}&id={job + 4}" for job in range(1, JOBS, JOBS // TIMES)],
}
"""The addresses of each page, of a queue in which every job has ended; they are opened in turn."""
WAITING = {
    "the queue, half of the jobs waiting": ["/"],
    "a waiting job": [f"/job/{job}" for job in range(JOBS // 2 + 1, JOBS, JOBS // 2 // TIMES)],
    "its submission": [f"/group/{group}" for group in range(JOBS // 2 // ROWS + 1, JOBS // 2 // ROWS + 1 + TIMES)],
}
"""The same, of a queue whose newer half waits."""


def table(cwd: Path) -> list[str]:
    """The lines of the table, of queues of their own below `cwd`."""
    lines = ["| page | median | 95th percentile | size |", "|---|--:|--:|--:|"]
    fill(cwd / "web")
    with serving(cwd / "web") as (base, server):
        idle = rss_mb(server)
        lines += [line(page, base, addresses) for page, addresses in ENDED.items()]
        time.sleep(2)  # the server gives memory back a second after its last answer
        after = rss_mb(server)
    fill(cwd / "waiting", waiting=JOBS // 2)
    with serving(cwd / "waiting") as (base, _):
        lines += [line(page, base, addresses) for page, addresses in WAITING.items()]
    page_mb = page_bytes(cwd) / 1e6
    return [
        f"Pages of `mpsq web` with {JOBS:,} jobs, each opened {TIMES} times, at most {LIMIT_MS} ms."
        f" Memory of the server: {idle:.1f} MB at"
        f" rest, {after:.1f} MB after all these pages of ended jobs; at most {LIMIT_MB} MB.\n",
        *lines,
        f"\nA page of `mpsq report --html`, of {RUNS} runs of {ITERATIONS:,} iterations: {page_mb:.2f} MB of 5.",
    ]


@contextmanager
def serving(home: Path) -> Iterator[tuple[str, psutil.Process]]:
    """The address of a server of that queue, and its process."""
    command = [sys.executable, "-m", "queue_runner.cli", "web", "--port", "0"]
    env = {**os.environ, "MPSQ_HOME": str(home)}
    server = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert server.stdout is not None
        yield server.stdout.readline().strip().partition("/?")[0], psutil.Process(server.pid)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=30)


def rss_mb(server: psutil.Process) -> float:
    return float(server.memory_info().rss / 1e6)


def line(page: str, base: str, addresses: Sequence[str]) -> str:
    """A page's line; its first request, which loads templates and modules, does not count."""
    size = len(opened(base + addresses[-1]))
    samples = []
    for n in range(TIMES):
        begin = time.perf_counter()
        opened(base + addresses[n % len(addresses)])
        samples.append((time.perf_counter() - begin) * 1e3)
    p50, p95 = (sorted(samples)[int(TIMES * share)] for share in (0.5, 0.95))
    return f"| {page} | {p50:.4g} ms | {p95:.4g} ms | {size / 1e3:.0f} kB |"


def opened(address: str) -> bytes:
    with urllib.request.urlopen(address) as answer:
        body = bytes(answer.read())
    assert body.endswith(b"</html>")
    return body


def page_bytes(cwd: Path) -> int:
    """The size of the page of a report of RUNS runs in four rows."""
    from tests.pages.pages_fixture import page_of
    from tests.reports.report_fixture import Store

    store = Store(cwd / "page")
    for n in range(RUNS):
        median_s = (0.4, 0.1)[n % 2] * (1 + n % 7 / 1000)
        run_id = store.run(("cpu", "mps")[n % 2], n % 4 > 1, median_s)
        losses = [4.0 / (1 + i / 100) + n / 1000 for i in range(ITERATIONS)]
        store.iterations(run_id, [median_s * (1 + i % 7 / 100) for i in range(ITERATIONS)], losses=losses)
    try:
        return len(page_of(store).encode())
    finally:
        store.db.close()


def fill(home: Path, count: int = JOBS, waiting: int = 0) -> None:
    """So many jobs of one run with the environment of a real submission; all but the last ones have ended."""
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
        for start in range(0, count, ROWS):
            new = [NewJob(spec) for spec in specs[start : start + ROWS]]
            jobs.submit(connection, "bench", 0, new, [(n, 1) for n in range(len(new))])
    engine.dispose()
    with sqlite3.connect(layout.db) as raw:
        raw.execute(
            "UPDATE runs SET state = 'DONE', outcome = 'SUCCEEDED', exit_code = 0, ended_at = created_at WHERE id <= ?",
            [count - waiting],
        )
        raw.execute(
            "INSERT INTO summaries (run_id, n_iters, n_measure, median_s, mad_s)"
            " SELECT id, 5000, 4996, 0.1, 0.001 FROM runs WHERE state = 'DONE'"
        )
        raw.execute(
            "INSERT INTO exits (run_id, real_s, user_s, sys_s, max_rss_bytes, exit_json)"
            " SELECT id, 500, 400, 20, 500000000, '{}' FROM runs WHERE state = 'DONE'"
        )
    checkpoint(layout.db)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="mpsq-bench-") as name:
        print("\n".join(table(Path(name))))
