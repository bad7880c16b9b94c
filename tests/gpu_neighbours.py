"""Lanes on two real NVIDIA GPUs: `python -m tests.gpu_neighbours` prints what it finds. Never part of `make test`.

The same jobs, one submission each, run one after the other without lanes and side by side on the lanes, in turn. That
shows whether the GPUs of one host are isolated, and what lanes save. Words behind the command are options of the
submissions: `python -m tests.gpu_neighbours --config gpt2 --dtype bf16`.
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
from collections.abc import Iterator
from pathlib import Path

from queue_runner.store import read
from tests.gpu_gate import mpsq, row, runs_left, until

TURNS = 4
"""Turns of the jobs without lanes and with them."""
SAME_WITHIN = 0.01
"""Largest relative difference between a run alone and one beside others at which the lanes count as isolated."""
OPTIONS = ("--config", "shakespeare_char", "--set", "max_iters=200", "--set", "eval_interval=0")
LIMIT_S = 1500.0


@contextlib.contextmanager
def working(lanes: str) -> Iterator[None]:
    """A worker with this setting."""
    mpsq("config", "set", "lanes", lanes)
    worker = subprocess.Popen([sys.executable, "-m", "queue_runner.worker"], stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(60)


def one_turn(db: Path, lanes: str, options: list[str], n: int) -> tuple[float, list[float], int]:
    """Seconds from the submission of `n` equal jobs to the end of the last, the median time of an iteration of each
    in seconds, and how many lanes they ran on."""
    with working(lanes):
        since = time.time()
        for _ in range(n):
            mpsq("submit", "nanogpt", "--device", "cuda", "--no-gate", *options)
        until(lambda: runs_left(db) == 0, "the jobs", LIMIT_S)
        took_s = time.time() - since
    with read.reading(db) as connection:
        sql = "SELECT median_s, lane FROM v_run ORDER BY run_id DESC LIMIT ?"
        rows = connection.execute(sql, [n]).fetchall()
    return took_s, [one["median_s"] for one in rows if one["median_s"]], len({one["lane"] for one in rows})


def medians_of(turns: list[tuple[float, list[float], int]]) -> list[float]:
    return [median_s for _, medians, _ in turns for median_s in medians]


def main(options: list[str]) -> int:
    from queue_runner.host import lane_list

    n = len(lane_list.resolve("auto")[0])
    if n < 2:
        print(f"this needs two GPUs that NVML lists, and there are {n}")
        return 1
    with tempfile.TemporaryDirectory(prefix="mpsq-gpu-neighbours-") as name:
        folder = Path(name)
        (folder / "locks").mkdir(mode=0o700)
        (folder / "home").mkdir(mode=0o700)
        os.environ["MPSQ_HOME"], os.environ["MPSQ_LOCKS"] = str(folder / "home"), str(folder / "locks")
        db = folder / "home" / "mpsq.db"
        serial, beside = [], []
        for turn in range(TURNS):
            turns = [("serial", serial), ("auto", beside)]
            for lanes, values in turns if turn % 2 else turns[::-1]:
                values.append(one_turn(db, lanes, options, n))
    print("| what | median | range | n |\n|---|--:|--:|--:|")
    for what, values in ((f"{n} jobs one after the other", serial), (f"{n} jobs side by side on lanes", beside)):
        print(row(f"{what}: submit -> end of the last", [took_s for took_s, _, _ in values]))
        print(row(f"{what}: ms/iter", [1e3 * median_s for median_s in medians_of(values)], "ms"))
    ratio = statistics.median(medians_of(beside)) / statistics.median(medians_of(serial))
    print(f"an iteration takes {ratio:.4f} times as long beside other lanes as alone")
    return 0 if abs(ratio - 1) <= SAME_WITHIN and all(used == n for _, _, used in beside) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(OPTIONS)))
