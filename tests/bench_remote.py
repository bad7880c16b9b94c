"""The figures of `make bench` that concern blocks: 10,000 jobs over 100 nodes of a scripted sbatch and squeue.

No Slurm is asked and no node runs anything: sbatch and squeue are scripts that write and print a file, and this process
writes what 100 nodes would. `python -m tests.bench_remote` measures this part alone.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

NODES = 100
JOBS = 10_000
ENDED_EACH = 10
"""Number of runs that end on each node."""
FOLLOWED_S = 10.0
LIMIT_S = 600.0
_SBATCH = """\
#!/bin/sh
for word in "$@"; do case "$word" in --job-name=*) token=${{word#--job-name=}};; esac; done
echo "1|RUNNING|None|n1|N/A|$token" >> {file}
echo 1
"""


def rows(cwd: Path, row: Callable[..., str], command_ms: Callable[..., Sequence[float]]) -> list[str]:
    """The table's rows, of a queue of its own below `cwd`."""
    before = {name: os.environ[name] for name in ("MPSQ_HOME", "PATH")}
    home = cwd / "remote"
    os.environ["MPSQ_HOME"] = str(home)
    os.environ["PATH"] = f"{_scripted(cwd / 'bin')}:{os.environ['PATH']}"
    fill(home, cwd / "shared")
    argv = [sys.executable, "-m", "queue_runner.worker"]
    worker = subprocess.Popen(argv, cwd=cwd, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        process = psutil.Process(worker.pid)
        sent_s = _until(home, "SELECT count(*) FROM runs WHERE token IS NOT NULL", JOBS)
        blocks = [path.parent for path in (cwd / "shared").glob("*/block.json")]
        for block in blocks:
            begin(block)
        _until(home, "SELECT count(*) FROM runs WHERE state = 'RUNNING'", NODES)
        spent = sum(process.cpu_times()[:2])
        time.sleep(FOLLOWED_S)
        cpu = (sum(process.cpu_times()[:2]) - spent) / FOLLOWED_S * 100
        memory = process.memory_info().rss / 1e6
        status = command_ms(["status"], cwd, 7)
        for block in blocks:
            end(block)
        ended_s = _until(home, "SELECT count(*) FROM runs WHERE state = 'DONE'", NODES * ENDED_EACH)
        after = process.memory_info().rss / 1e6
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(60)
        os.environ.update(before)
    subject = f"{JOBS:,} jobs over {NODES} nodes of scripted sbatch and squeue"
    return [
        row(f"{subject}: submitted -> all sent", "-", [sent_s], "s"),
        row("the same, a run on each node: the front's worker, memory", "100 MB", [memory], "MB"),
        row("the same, its CPU", "-", [cpu], "% of a core"),
        row("the same, `mpsq status`", "300 ms", status, "ms"),
        row(f"the same, {NODES * ENDED_EACH:,} ends there -> all stored", "-", [ended_s], "s"),
        row("the same, memory then", "100 MB", [after], "MB"),
    ]


def _scripted(folder: Path) -> Path:
    folder.mkdir()
    jobs = folder / "jobs"
    jobs.touch()
    (folder / "sbatch").write_text(_SBATCH.format(file=jobs))
    (folder / "squeue").write_text(f"#!/bin/sh\nexec cat {jobs}\n")
    for program in ("sbatch", "squeue"):
        (folder / program).chmod(0o755)
    return folder


def fill(home: Path, shared: Path) -> None:
    """JOBS jobs of one run, in NODES groups, with the environment of a real submission."""
    from queue_runner.host.home import ensure_home
    from queue_runner.spec import JobSpec, NewJob
    from queue_runner.store import jobs, migrate
    from queue_runner.store.engine import open_engine, writing

    layout = ensure_home(home)
    layout.config.write_text(f'[on.slurm]\nfolder = "{shared}"\n')
    migrate.ensure(layout)
    environment = {f"VARIABLE_{n}": "x" * 40 for n in range(40)}
    spec = JobSpec(kind="command", name="true", argv=("true",), cwd=str(home), env=environment, on={"to": "slurm"})
    engine = open_engine(layout.db)
    with writing(engine) as connection:
        for group in range(NODES):
            each = JOBS // NODES
            jobs.submit(connection, "bench", group, [NewJob(spec)] * each, [(n, 1) for n in range(each)])
    engine.dispose()


def begin(folder: Path) -> None:
    """Write what a node does that has started its first run."""
    from queue_runner.remote import block
    from queue_runner.remote.fence import FenceHolder, take_fence
    from queue_runner.remote.json_files import read_json

    there = block.Folder(folder)
    assert take_fence(there.fence, FenceHolder())
    run = (read_json(there.instructions) or {})["runs"][0]
    _write(there, f"{run['job_id']}.{run['number']}", "began.json", {"at": time.time(), "started": time.time()})


def end(folder: Path) -> None:
    """Write what a node does that has ended its first runs."""
    from queue_runner.remote import block
    from queue_runner.remote.json_files import read_json
    from tests.remote.block_support import write_result

    there = block.Folder(folder)
    for run in (read_json(there.instructions) or {})["runs"][:ENDED_EACH]:
        name = f"{run['job_id']}.{run['number']}"
        _write(there, name, "began.json", {"at": 10.0, "started": 11.0})
        write_result(there, name)


def _write(there: Any, name: str, file: str, data: dict[str, Any]) -> None:
    from queue_runner.remote.json_files import write_json

    (there.run(name).path / "warden").mkdir(parents=True, exist_ok=True)
    write_json(there.run(name).path / file, data, durable=False)


def _until(home: Path, sql: str, count: int) -> float:
    """Wait until a query counts so many; return how many seconds that took."""
    start = time.perf_counter()
    with sqlite3.connect(f"file:{home}/mpsq.db?mode=ro", uri=True) as connection:
        while int(connection.execute(sql).fetchone()[0]) < count:
            if time.perf_counter() - start > LIMIT_S:
                raise TimeoutError(sql)
            time.sleep(0.1)
    return time.perf_counter() - start


if __name__ == "__main__":
    from tests import bench

    with tempfile.TemporaryDirectory(prefix="mpsq-bench-", ignore_cleanup_errors=True) as scratch:
        os.environ |= {"MPSQ_HOME": scratch, "MPSQ_LOCKS": f"{scratch}/locks"}
        print("\n".join(rows(Path(scratch), bench.row, bench.command_ms)))
