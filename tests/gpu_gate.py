"""The gate on a real NVIDIA GPU: `python -m tests.gpu_gate` prints a table. Never part of `make test`.

A foreign process multiplies matrices on the GPU: how soon the gate tells it, and how soon after its end the waiting job
starts.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from queue_runner.model import DEFAULT_LANE
from queue_runner.store import read

MPSQ = [sys.executable, "-m", "queue_runner.cli.main"]
TRIES = 5
FOREIGN = (
    "import torch\n"
    "a = torch.rand(8192, 8192, device='cuda', dtype=torch.bfloat16)\n"
    "torch.cuda.synchronize(); print('ready', flush=True)\n"
    "while True:\n"
    "    for _ in range(20): b = a @ a\n"
    "    torch.cuda.synchronize()\n"
)


def until(condition: Callable[[], bool], what: str, limit_s: float = 120.0) -> float:
    """Wait until the condition holds. Returns the Unix time at which it did."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come to pass in {limit_s:.0f} s")
        time.sleep(0.01)
    return time.time()


@contextlib.contextmanager
def foreign() -> Iterator[None]:
    """A process of somebody else that keeps the GPU busy."""
    process = subprocess.Popen([sys.executable, "-c", FOREIGN], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n", "torch cannot use the GPU"
        yield
    finally:
        process.kill()
        process.wait()


def mpsq(*words: str) -> None:
    subprocess.run([*MPSQ, *words], check=True, capture_output=True)


def blocked(db: Path) -> str:
    with read.reading(db) as connection:
        return read.lane(connection, DEFAULT_LANE).blocked_reason or ""


def runs_left(db: Path) -> int:
    with read.reading(db) as connection:
        return int(connection.execute("SELECT count(*) AS n FROM runs WHERE state <> 'DONE'").fetchone()["n"])


def gate(db: Path, folder: Path) -> tuple[list[float], list[float], list[float]]:
    """Seconds from a submission beside a foreign process to the reason, from its end to the job's first instruction,
    and from a submission on a quiet GPU to that."""
    lines, opened, quiet = [], [], []
    stamp = folder / "stamp"
    command = ["submit", "--gate-timeout", "10m", "--device", "cuda", "--", "/bin/sh", "-c", f": > {stamp}"]
    for _ in range(TRIES):
        with foreign():
            time.sleep(3)  # it has loaded the GPU for longer than the driver averages
            mpsq(*command)
            since = time.time()
            lines.append(until(lambda: "GPU" in blocked(db), "the reason") - since)
            time.sleep(5)
            assert not stamp.exists(), "it started beside the foreign process"
        ended = time.time()
        until(stamp.exists, "the start")
        opened.append(stamp.stat().st_mtime - ended)
        until(lambda: runs_left(db) == 0, "its end")
        stamp.unlink()
        time.sleep(5)
        mpsq(*command)
        since = time.time()
        until(stamp.exists, "the start")
        quiet.append(stamp.stat().st_mtime - since)
        until(lambda: runs_left(db) == 0, "its end")
        stamp.unlink()
    return lines, opened, quiet


def row(what: str, values: list[float], unit: str = "s") -> str:
    return (
        f"| {what} | {statistics.median(values):.3f} {unit} | {min(values):.3f} to {max(values):.3f} | {len(values)} |"
    )


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="mpsq-gpu-gate-") as name:
        folder = Path(name)
        (folder / "locks").mkdir(mode=0o700)
        (folder / "home").mkdir(mode=0o700)
        os.environ["MPSQ_HOME"], os.environ["MPSQ_LOCKS"] = str(folder / "home"), str(folder / "locks")
        db = folder / "home" / "mpsq.db"
        mpsq("submit", "--no-gate", "--", "/usr/bin/true")
        worker = subprocess.Popen([sys.executable, "-m", "queue_runner.worker"], stderr=subprocess.DEVNULL)
        try:
            until(lambda: runs_left(db) == 0, "the first job")
            lines, opened, quiet = gate(db, folder)
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait(60)
    print("| what | median | range | n |\n|---|--:|--:|--:|")
    print(row("submit beside a process on the GPU -> the gate says so", lines))
    print(row("end of that process -> first instruction of the waiting job (at most 5 s)", opened))
    print(row("submit on a quiet GPU -> first instruction", quiet))
    return 0 if max(opened) <= 5.0 else 1


if __name__ == "__main__":
    sys.exit(main())
