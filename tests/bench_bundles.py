"""The figures of `make bench` that concern bundles: a large one exported, merged, and a submission beside the merge.

`python -m tests.bench_bundles [RUNS [ITERATIONS]]` measures this part alone.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from queue_runner.paths import Layout
from tests.reports.report_fixture import Store

RUNS = 10_000
ITERATIONS = 1_000
JOBS = 20
MPSQ = [str(Path(sys.executable).with_name("mpsq"))]


def rows(cwd: Path, row: Callable[..., str], n_runs: int = RUNS, n_iterations: int = ITERATIONS) -> list[str]:
    """The table's rows, measured in a folder of their own below `cwd`."""
    folder = cwd / "bundles"
    fill(folder / "theirs", n_runs, n_iterations)
    bundle = folder / "g1.mpsq"
    with bundle.open("wb") as file:
        export_s = _took(lambda: _mpsq(folder / "theirs", "export", "--bundle", "g1", stdout=file))
    ours = folder / "ours"
    ours.mkdir()
    _mpsq(ours, "submit", "--hold", "--", "/usr/bin/true")
    alone_s = [_took(lambda: _mpsq(ours, "submit", "--hold", "--", "/usr/bin/true")) for _ in range(5)]
    begin = time.monotonic()
    merge = subprocess.Popen([*MPSQ, "import", str(bundle)], env=_env(ours), stdout=subprocess.DEVNULL)
    beside_s, lock_s = [], []
    probe = threading.Thread(target=_take_lock, args=(Layout(ours).db, merge, lock_s))
    probe.start()
    while merge.poll() is None:
        beside_s.append(_took(lambda: _mpsq(ours, "submit", "--hold", "--", "/usr/bin/true")))
    probe.join()
    merge_s = time.monotonic() - begin
    assert merge.returncode == 0
    with sqlite3.connect(Layout(ours).db) as connection:
        assert connection.execute("SELECT count(*) FROM v_iteration").fetchone() == (n_runs * n_iterations,)
    what = f"a bundle of {n_runs:,} runs of {n_iterations:,} iterations"
    return [
        row(f"{what}: size", "-", [bundle.stat().st_size / 1e6], "MB"),
        row(f"{what}: export", "-", [export_s], "s"),
        row(f"{what}: merge", "-", [merge_s], "s"),
        row("the longest wait for the write lock beside that merge", "1 s", [max(lock_s)], "s"),
        row("a submission beside that merge", "1 s", sorted(beside_s), "s"),
        row("a submission without it", "-", sorted(alone_s), "s"),
    ]


def _take_lock(db: Path, merge: subprocess.Popen[bytes], took_s: list[float]) -> None:
    """Take the write lock again and again, as each command that writes does, until the merge ends."""
    connection = sqlite3.connect(db, timeout=60, isolation_level=None)
    connection.execute("PRAGMA wal_autocheckpoint=0")
    while merge.poll() is None:
        took_s.append(_took(lambda: connection.execute("BEGIN IMMEDIATE")))
        connection.execute("ROLLBACK")
        time.sleep(0.05)
    connection.close()


def fill(home: Path, n_runs: int, n_iterations: int) -> None:
    """Make a queue whose submission g1 has so many runs, with times, losses and memory as a trainer reports them."""
    store = Store(home)
    store.db.execute("BEGIN")
    run_ids = [store.run(params={"width": k % JOBS}, median_s=0.1) for k in range(n_runs)]
    numbers = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < ? - 1)"
    store.db.execute(
        f"{numbers} INSERT INTO iterations SELECT r.value, n.i * 130 + 200, n.i, 0.1 + abs(random() % 1000000) / 1e9,"
        " 4.0 / (1 + n.i) + abs(random() % 1000000) / 1e9, 3, 1, 123456789, 234567890"
        " FROM json_each(?) AS r CROSS JOIN n",
        [n_iterations, str(run_ids)],
    )
    store.db.execute("COMMIT")
    store.db.close()


def _env(home: Path) -> dict[str, str]:
    return {**os.environ, "MPSQ_HOME": str(home), "MPSQ_LOCKS": str(home.parent / "locks")}


def _mpsq(home: Path, *words: str, **options: Any) -> None:
    subprocess.run([*MPSQ, *words], env=_env(home), check=True, **{"stdout": subprocess.DEVNULL, **options})


def _took(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _row(what: str, bar: str, values: list[float], unit: str) -> str:
    return f"{what}: {values[len(values) // 2]:.3f} {unit} (bar {bar}; {min(values):.3f} to {max(values):.3f})"


if __name__ == "__main__":
    sizes = [int(word) for word in sys.argv[1:]]
    with tempfile.TemporaryDirectory(prefix="mpsq-bench-") as name:
        print("\n".join(rows(Path(name), _row, *sizes)))
