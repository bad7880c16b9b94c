"""The figures of `make bench` that concern watching: large logs, how late a line is shown, what a dashboard costs."""

from __future__ import annotations

import os
import pty
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from tests.bench import MPSQ, ended

LOG_BYTES = 1 << 30
TAIL = 50
FOLDERS = 10_000
WATCHED_S = 20.0
JOB = (
    "import json, os, time\n"
    "out = open(os.environ['MPSQ_EVENTS'], 'a', buffering=1)\n"
    "say = lambda **event: out.write(json.dumps(event) + '\\n')\n"
    "say(type='hello', t=0.0, v=1, workload='bench', device='cpu', planned_iters=100000)\n"
    "say(type='phase', t=0.0, name='measure', edge='begin')\n"
    "begin = time.perf_counter()\n"
    "for i in range(100000):\n"
    "    time.sleep(0.02)\n"
    "    say(type='iter', t=time.perf_counter() - begin, i=i, dur_s=0.02, loss=2.5, phase='measure', synced=True)\n"
    "    i % 25 or print(time.time(), flush=True)\n"
)


def rows(cwd: Path, row: Callable[..., str], until: Callable[[Callable[[], bool]], None]) -> list[str]:
    """The table's rows; a worker must be running the queue."""
    seconds, rss = tail(cwd)
    job = subprocess.run(
        [*MPSQ, "submit", "--json", "--", sys.executable, "-c", JOB], check=True, cwd=cwd, capture_output=True
    )
    assert job.returncode == 0
    late = lateness_ms(cwd)
    cpu, memory = watching(cwd)
    subprocess.run([*MPSQ, "cancel", "@last"], check=True, cwd=cwd, capture_output=True)
    until(lambda: _left() == 0)
    return [
        row(f"`mpsq logs --tail {TAIL}` of a log of 1 GiB", "300 ms", seconds, "ms"),
        row("its peak memory", "50 MB", rss, "MB"),
        row("a line written by a job -> printed by `mpsq logs -f`", "500 ms", late, "ms"),
        row("`mpsq status --watch` beside a run, CPU", "1 %", [cpu], "% of a core"),
        row("the same, memory", "50 MB", [memory], "MB"),
        row(f"`mpsq status` with {FOLDERS:,} run folders", "300 ms", status_ms(cwd), "ms"),
    ]


def _left() -> int:
    with sqlite3.connect(f"file:{os.environ['MPSQ_HOME']}/mpsq.db?mode=ro", uri=True) as connection:
        return int(connection.execute("SELECT count(*) FROM runs WHERE state <> 'DONE'").fetchone()[0])


def tail(cwd: Path, times: int = 7) -> tuple[list[float], list[float]]:
    """Milliseconds and megabytes of a `logs --tail` of run 1.1, whose log is made that large."""
    log = Path(os.environ["MPSQ_HOME"]) / "runs" / "1.1" / "stdout.log"
    content = log.read_bytes()
    block = b"".join(b"step %7d: loss 1.2345, time 123.45 ms, mfu 12.34 %%\n" % i for i in range(20_000))
    with log.open("wb") as stream:
        while stream.tell() < LOG_BYTES:
            stream.write(block)
    took, rss = [], []
    for _ in range(times):
        begin = time.perf_counter()
        process = subprocess.Popen([*MPSQ, "logs", "1.1", "--tail", str(TAIL)], cwd=cwd, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.read().count(b"\n") == TAIL
        took_s, peak_mb = ended(process, begin)
        took.append(took_s * 1e3)
        rss.append(peak_mb)
    log.write_bytes(content)
    return sorted(took), sorted(rss)


def lateness_ms(cwd: Path, lines: int = 15) -> list[float]:
    """The job prints the time; how late is it here?"""
    times: list[float] = []
    with subprocess.Popen(
        [*MPSQ, "logs", "-f"], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as follower:
        assert follower.stdout is not None
        for line in follower.stdout:
            times.append((time.time() - float(line)) * 1e3)
            if len(times) > lines:
                break
        follower.kill()
    return sorted(times[1:])  # the first line may have been there before


def watching(cwd: Path) -> tuple[float, float]:
    """Percent of a core and megabytes of a dashboard on a terminal, once it has started."""
    master, slave = pty.openpty()
    env = {**os.environ, "TERM": "xterm"}
    watcher = subprocess.Popen([*MPSQ, "status", "--watch"], cwd=cwd, stdin=slave, stdout=slave, stderr=slave, env=env)
    os.close(slave)
    drain = threading.Thread(target=_drain, args=[master], daemon=True)
    drain.start()
    try:
        process = psutil.Process(watcher.pid)
        time.sleep(3.0)
        before = process.cpu_times()
        time.sleep(WATCHED_S)
        after = process.cpu_times()
        spent_s = after.user + after.system - before.user - before.system
        return spent_s / WATCHED_S * 100, process.memory_info().rss / 1e6
    finally:
        watcher.terminate()
        watcher.wait()
        os.close(master)


def _drain(fd: int) -> None:
    try:
        while os.read(fd, 1 << 16):
            pass
    except OSError:  # the terminal is gone
        pass


def status_ms(cwd: Path, times: int = 7) -> Sequence[float]:
    """`mpsq status` in a queue with many finished runs' folders, each with a few files."""
    from queue_runner.paths import Layout

    layout = Layout(Path(os.environ["MPSQ_HOME"]))
    for number in range(FOLDERS):
        folder = layout.run_dir(f"9{number}.1")
        (folder / "warden").mkdir(parents=True)
        for name in ("stdout.log", "stderr.log", "events.jsonl", "spec.json", "warden/exit.json"):
            (folder / name).write_bytes(b"x")
    took = []
    for _ in range(times):
        begin = time.perf_counter()
        subprocess.run([*MPSQ, "status"], check=True, cwd=cwd, stdout=subprocess.DEVNULL)
        took.append((time.perf_counter() - begin) * 1e3)
    return sorted(took)
