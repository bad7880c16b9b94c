"""`make bench`: the figures of docs/benchmarks.md, measured in one run on an idle machine. Never part of `make test`.

Every figure is measured through the real program: the installed command, the real worker, real processes.
"""

from __future__ import annotations

import itertools
import os
import platform
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from queue_runner.host import locks

MPSQ = [str(Path(sys.executable).with_name("mpsq"))]


def once_ms(arguments: Sequence[str], cwd: Path) -> float:
    begin = time.perf_counter()
    subprocess.run([*MPSQ, *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=cwd)
    return (time.perf_counter() - begin) * 1e3


def command_ms(arguments: Sequence[str], cwd: Path, times: int = 11) -> list[float]:
    once_ms(arguments, cwd)  # byte code and page cache
    return sorted(once_ms(arguments, cwd) for _ in range(times))


def new_trees_ms(arguments: Sequence[str], root: Path, times: int = 5) -> list[float]:
    """Each time another content."""
    samples = []
    for number in range(times):
        (root / "new.py").write_text(f"new = {number}\n")
        samples.append(once_ms(arguments, root))
    return sorted(samples)


def start_worker(cwd: Path) -> subprocess.Popen[bytes]:
    worker = subprocess.Popen([sys.executable, "-m", "queue_runner.worker"], cwd=cwd, stderr=subprocess.DEVNULL)
    fifo = Path(os.environ["MPSQ_HOME"]) / "worker.fifo"
    until(fifo.exists)
    return worker


def until(condition: Callable[[], bool], limit_s: float = 600.0, every_s: float = 0.002) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("it did not come to pass")
        time.sleep(every_s)


def until_done(count: int) -> None:
    """Wait until so many runs are done, with looks so rare that the gate does not see them."""
    until(lambda: query("SELECT count(*) FROM runs WHERE state = 'DONE'")[0][0] >= count, every_s=0.2)


def query(sql: str) -> list[tuple[float, ...]]:
    with sqlite3.connect(f"file:{os.environ['MPSQ_HOME']}/mpsq.db?mode=ro", uri=True) as connection:
        return connection.execute(sql).fetchall()


GATE = {"off": ["--no-gate"], "on": ["--gate-timeout", "10m"]}
CALM_S = 4.0
"""Pause before a submission: the gate looks at the last few seconds, in which the one before shall not lie."""


def start_latency_ms(cwd: Path, times: int = 11) -> dict[str, list[float]]:
    """From the return of `mpsq submit` to the first instruction of the job, which writes its clock into a file; without
    and with the gate, in turn."""
    times_by_mode: dict[str, list[float]] = {"off": [], "on": []}
    stamp = cwd / "stamp"
    for gate in [*GATE] * times:
        stamp.unlink(missing_ok=True)
        time.sleep(CALM_S)
        # a shell's own start is about 1 ms; the clock is the file's modification time
        command = ["submit", *GATE[gate], "--", "/bin/sh", "-c", f": > {stamp}"]
        subprocess.run([*MPSQ, *command], check=True, cwd=cwd, capture_output=True)
        returned = time.time()
        until(stamp.exists)
        times_by_mode[gate].append((stamp.stat().st_mtime - returned) * 1e3)
        done = query("SELECT count(*) FROM runs")[0][0]
        until_done(int(done))
    return {gate: sorted(values) for gate, values in times_by_mode.items()}


def opening_s(cwd: Path, times: int = 5) -> list[float]:
    """From the end of a load on every processor to the first instruction of the job that the gate keeps for it."""
    samples = []
    stamp = cwd / "stamp"
    for _ in range(times):
        stamp.unlink(missing_ok=True)
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
        time.sleep(CALM_S)
        command = ["submit", *GATE["on"], "--", "/bin/sh", "-c", f": > {stamp}"]
        subprocess.run([*MPSQ, *command], check=True, cwd=cwd, capture_output=True)
        until(lambda: bool(query("SELECT 1 FROM lanes WHERE blocked_reason LIKE '%of the processors%'")), every_s=0.2)
        for process in busy:
            process.kill()
            process.wait()
        ended = time.time()
        until(stamp.exists)
        samples.append(stamp.stat().st_mtime - ended)
        until_done(int(query("SELECT count(*) FROM runs")[0][0]))
    return sorted(samples)


def gap_ms(cwd: Path, gate: str, times: int = 20) -> list[float]:
    """From the end of a no-op job to the start of the next, by the wardens' own clocks."""
    before = int(query("SELECT count(*) FROM runs")[0][0])
    time.sleep(CALM_S)
    command = ["submit", *GATE[gate], "--repeats", str(times), "--", "/usr/bin/true"]
    subprocess.run([*MPSQ, *command], check=True, cwd=cwd, capture_output=True)
    until_done(before + times)
    rows = query(f"SELECT started_at, ended_at FROM runs ORDER BY id DESC LIMIT {times}")[::-1]
    return sorted((after[0] - first[1]) * 1e3 for first, after in itertools.pairwise(rows))


WAITING = 10_000


def idle(worker: psutil.Process, seconds: float = 60.0) -> tuple[float, float]:
    """(RSS in MB, percent of one core) of a worker that has nothing to do."""
    spent = sum(worker.cpu_times()[:2])
    time.sleep(seconds)
    return worker.memory_info().rss / 1e6, (sum(worker.cpu_times()[:2]) - spent) / seconds * 100


def watching(cwd: Path, worker: psutil.Process) -> tuple[float, float]:
    """The same, beside a run that others wait for."""
    (cwd / "jobs.jsonl").write_text("".join(COMMAND.format(k=k) for k in range(1, WAITING + 1)))
    for words in (["--", "/bin/sleep", "600"], ["--from", "jobs.jsonl"]):
        subprocess.run([*MPSQ, "submit", *words], check=True, cwd=cwd, capture_output=True)
    time.sleep(15.0)  # a run is sampled more often in its first seconds
    figures = idle(worker)
    subprocess.run([*MPSQ, "cancel", "@last"], check=True, cwd=cwd, capture_output=True)
    subprocess.run([*MPSQ, "cancel", "sleep"], check=True, cwd=cwd, capture_output=True)
    return figures


def takeover_ms(
    cwd: Path, worker: subprocess.Popen[bytes], times: int = 5
) -> tuple[list[float], subprocess.Popen[bytes]]:
    """From the start of a new worker, the old one killed in mid-run, until it owns the queue. Returns it, too."""
    home = Path(os.environ["MPSQ_HOME"])
    samples = []
    for _ in range(times):
        before = int(query("SELECT count(*) FROM runs")[0][0])
        subprocess.run([*MPSQ, "submit", "--", "/bin/sleep", "1.5"], check=True, cwd=cwd, capture_output=True)
        until(lambda: bool(query("SELECT 1 FROM runs WHERE state = 'RUNNING'")))
        worker.kill()
        worker.wait()
        begin = time.perf_counter()
        worker = subprocess.Popen([sys.executable, "-m", "queue_runner.worker"], cwd=cwd, stderr=subprocess.DEVNULL)
        owner = worker.pid
        until(lambda owner=owner: (locks.read_holder(locks.worker_lock_path(home)) or {}).get("pid") == owner)  # type: ignore[misc]
        samples.append((time.perf_counter() - begin) * 1e3)
        until_done(before + 1)
    return sorted(samples), worker


def big_repository(cwd: Path, files: int = 5000) -> Path:
    """A repository of that many small files, one of them changed and one not tracked."""
    root = cwd / "big"
    for number in range(files):
        path = root / f"package{number // 50}" / f"module{number % 50}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"value = {number}\n" * 100)
    who = ["-c", "user.name=A", "-c", "user.email=a@example.com"]
    for arguments in (["init", "-q"], ["add", "-A"], [*who, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", str(root), *arguments], check=True)
    (root / "package0" / "module0.py").write_text("changed = True\n")
    (root / "new.py").write_text("new = True\n")
    return root


COMMAND = '{{"command": ["true", "{k}"], "name": "n{k}"}}\n'
CELL = '{{"workload": "nanogpt", "device": "cpu", "set": {{"lr": {k}e-6}}}}\n'


def from_file(cwd: Path, line: str, jobs: int, times: int) -> tuple[list[float], list[float]]:
    """`mpsq submit --from` of that many such lines into a queue of its own: seconds, and most memory in MB."""
    (cwd / "jobs.jsonl").write_text("".join(line.format(k=k) for k in range(1, jobs + 1)))
    home = os.environ["MPSQ_HOME"]
    os.environ["MPSQ_HOME"] = tempfile.mkdtemp(dir=cwd)
    took, rss = [], []
    try:
        for _ in range(times):
            begin = time.perf_counter()
            process = subprocess.Popen(
                [*MPSQ, "submit", "--from", "jobs.jsonl"], cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            took_s, peak_mb = ended(process, begin)
            took.append(took_s)
            rss.append(peak_mb)
    finally:
        os.environ["MPSQ_HOME"] = home
    return sorted(took), sorted(rss)


def ended(process: subprocess.Popen[bytes], begin: float) -> tuple[float, float]:
    """Wait for the end of a command that began then; return seconds and its most memory in MB. It must succeed."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return time.perf_counter() - begin, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6


def row(what: str, limit: str, values: Sequence[float], unit: str) -> str:
    middle = statistics.median(values)
    spread = f"{min(values):.4g}-{max(values):.4g} ({len(values)})" if len(values) > 1 else ""
    return f"{what} | {limit} | {middle:.4g} {unit} | {spread}".rstrip(" ")


def main() -> None:
    from tests import bench_bundles, bench_peers, bench_remote, bench_see, bench_store, bench_web

    with tempfile.TemporaryDirectory(prefix="mpsq-bench-") as name:
        cwd = Path(name)
        os.environ["MPSQ_HOME"], os.environ["MPSQ_LOCKS"] = str(cwd / "home"), str(cwd / "locks")
        subprocess.run(
            [*MPSQ, "submit", "--priority", "0", "--", "/usr/bin/true"], check=True, cwd=cwd, capture_output=True
        )
        rows = [
            row("`mpsq --help`", "150 ms", command_ms(["--help"], cwd), "ms"),
            row("`mpsq list`", "200 ms", command_ms(["list"], cwd), "ms"),
            row("`mpsq status`", "200 ms", command_ms(["status"], cwd), "ms"),
            row("`mpsq submit`", "130 ms", command_ms(["submit", "--", "/usr/bin/true"], cwd), "ms"),
            row("`mpsq submit --from` a file of 1,000 jobs", "2 s", from_file(cwd, CELL, 1_000, 5)[0], "s"),
        ]
        for what, line, bound in (("commands", COMMAND, "15 s"), ("cells of a workload, with preflights", CELL, "-")):
            took, rss = from_file(cwd, line, 100_000, 2)
            rows += [
                row(f"the same, of 100,000 {what}", bound, took, "s"),
                row("its peak memory", "200 MB", rss, "MB"),
            ]
        big = big_repository(cwd)
        submit, copy = ["submit", "--", "/usr/bin/true"], ["submit", "--snapshot", "copy", "--", "/usr/bin/true"]
        rows += [
            row("`mpsq submit` in a repository of 5,000 files", "1 s", command_ms(submit, big), "ms"),
            row("the same with `--snapshot copy`, of a tree that is stored", "1 s", command_ms(copy, big), "ms"),
            row("the same, of a tree that is not", "-", new_trees_ms(copy, big), "ms"),
        ]
        worker = start_worker(cwd)
        try:
            until_done(int(query("SELECT count(*) FROM runs")[0][0]))
            started = start_latency_ms(cwd)
            rows += [
                row("submit returns -> first instruction of the job", "150 ms", started["off"], "ms"),
                row("the same with the gate, on a quiet machine", "150 ms", started["on"], "ms"),
                row("end of a no-op job -> start of the next", "30 ms", gap_ms(cwd, "off"), "ms"),
                row("the same with the gate", "30 ms", gap_ms(cwd, "on"), "ms"),
                row(
                    "end of a load on every processor -> first instruction of the waiting job",
                    "5 s",
                    opening_s(cwd),
                    "s",
                ),
            ]
            rss, cpu = idle(psutil.Process(worker.pid))
            rows.append(row("idle worker, memory", "45 MB", [rss], "MB"))
            rows.append(row("idle worker, CPU", "0.1 %", [cpu], "%"))
            rss, cpu = watching(cwd, psutil.Process(worker.pid))
            rows.append(row(f"worker beside a run and {WAITING:,} waiting jobs, memory", "45 MB", [rss], "MB"))
            rows.append(row("the same, CPU", "0.1 %", [cpu], "%"))
            rows += bench_see.rows(cwd, row, until)
            took, worker = takeover_ms(cwd, worker)
            rows.append(row("worker killed in mid-run, a new one started -> it owns the queue", "1 s", took, "ms"))
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait(30)
        rows += bench_store.rows(cwd, row, command_ms)
        web = bench_web.table(cwd)
        peers = bench_peers.table(cwd)
        rows += bench_remote.rows(cwd, row, command_ms)
        rows += bench_bundles.rows(cwd, row)
    print("# Benchmarks\n")
    print("Made by `make bench`, in one run. These machines are noisy: compare ratios within a run, not across runs.\n")
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    print(f"{machine}, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}.\n")
    print("A negative latency: the job's first instruction ran before `mpsq submit` had returned to the shell.\n")
    print("what | at most | median | range (n)\n---|--:|--:|--:")
    print("\n".join([*rows, "", *web, "", *peers]))


if __name__ == "__main__":
    main()
