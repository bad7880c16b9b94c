"""Lanes on two real NVIDIA GPUs: `python -m tests.gpu_neighbours` prints what it finds. Never part of `make test`.

Whether the GPUs of one host are isolated: mpsq bench --neighbours, alone and beside a run on every other lane. And what
lanes give: the same jobs one after the other without lanes, and side by side on them, in turn. Words behind the command
are options of the bench: `python -m tests.gpu_neighbours --config gpt2 --dtype bf16`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from queue_runner.store import read
from tests.gpu_gate import MPSQ, mpsq, row, runs_left, until

ROUNDS = 8
TURNS = 4
"""Turns of the jobs without lanes and with them."""
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


def said(*words: str) -> str:
    return subprocess.run([*MPSQ, *words], check=True, capture_output=True, text=True).stdout


def isolation(db: Path, options: list[str]) -> list[dict[str, Any]]:
    """The rows of the report on the rounds, which it prints."""
    with working("auto"):
        mpsq("bench", "nanogpt", "--neighbours", "--yes", "--no-gate", "--repeats", str(ROUNDS), *options)
        until(lambda: runs_left(db) == 0, "the rounds", LIMIT_S)
    print(said("report", "neighbours", "@last", "--explain"))
    rows: list[dict[str, Any]] = json.loads(said("report", "neighbours", "@last", "--json"))["rows"]
    return rows


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
        found = connection.execute(sql, [n]).fetchall()
    return took_s, [one["median_s"] for one in found if one["median_s"]], len({one["lane"] for one in found})


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
        rows = isolation(db, options)
        serial, beside = [], []
        for turn in range(TURNS):
            turns = [("serial", serial), ("auto", beside)]
            for lanes, kept in turns if turn % 2 else turns[::-1]:
                kept.append(one_turn(db, lanes, options, n))
    print("| what | median | range | n |\n|---|--:|--:|--:|")
    for what, of in ((f"{n} jobs one after the other", serial), (f"{n} jobs side by side on lanes", beside)):
        print(row(f"{what}: submit -> end of the last", [took_s for took_s, _, _ in of]))
        if medians := [1e3 * median_s for _, each, _ in of for median_s in each]:
            print(row(f"{what}: ms/iter", medians, "ms"))
    full = all(one["n_valid"] == ROUNDS for one in rows) and len(rows) == 2
    return 0 if full and all(used == n for _, _, used in beside) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(OPTIONS)))
