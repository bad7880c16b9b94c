"""A queue in use for a day, within an hour: `python -m tests.soak`. Never part of `make test`.

Each simulated hour users submit some hundred short runs and a question that is run until it is decided. Every real
minute a schedule fires. All the while there are reports, a terminal with `mpsq status --watch`, and a browser. One seed
decides all of it. Printed are the worker's, the dashboard's and the server's own memory and
descriptors, the longest log of SQLite and the disk space of a run. It fails if one of them grows by more than a tenth
from the second quarter to the last one.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import psutil

from tests.bench import MPSQ, query, start_worker
from tests.bench_web import opened, serving
from tests.queue_support import ANY_MACHINE
from tests.terminal_support import Terminal

MAY_GROW = 1.1
WAL_MAY_HAVE = 64 << 20
"""Below this size a log of SQLite may vary as it likes."""
TRAINER = 'for i in 0 1 2 3; do echo "iter $i: loss $((4 - i)).{n}, time 10.00ms, mfu 1.00%"; done'
READS = (
    *(("report",), ("report", "@last", "--explain"), ("status",), ("list",), ("why", "@last")),
    *(("show", "@last"), ("report", "trend"), ("list", "--all")),
)
ROWS_PRINTED = 8


@dataclass(frozen=True)
class Sample:
    """What the processes and files of a queue take at the end of a simulated hour, per run where it says so."""

    hours: float
    n_runs: int
    memory_mb: tuple[float, ...]
    descriptors: tuple[int, ...]
    wal_bytes: int
    disk_bytes: float

    @property
    def disk_bytes_per_run(self) -> float:
        return self.disk_bytes / max(self.n_runs, 1)


class Day:
    """The queue, its users and what watches them."""

    def __init__(self, folder: Path, seed: int, jobs_per_hour: int) -> None:
        self.folder, self.jobs_per_hour = folder, jobs_per_hour
        self.chance = random.Random(seed)
        self.home = Path(os.environ["MPSQ_HOME"])
        self.longest_wal = 0
        self.n_reads = 0

    def mpsq(self, *words: str) -> None:
        done = subprocess.run([*MPSQ, *words], cwd=self.folder, capture_output=True, text=True)
        if done.returncode not in (0, 1):  # 1: a report without an answer yet
            raise RuntimeError(f"mpsq {' '.join(words)} ended with {done.returncode}: {done.stderr}")

    def submit(self) -> None:
        """Submit the jobs of an hour: grids of a trainer, a question, and one that fails."""
        left = self.jobs_per_hour
        while left > 0:
            size = min(left, self.chance.choice((10, 40, 100)))
            values = ",".join(str(self.chance.randrange(10**4, 10**5)) for _ in range(size))
            command = ("sh", "-c", TRAINER)
            self.mpsq("submit", "--parser", "nanogpt", "--set", f"n={values}", "--no-preflight", "--", *command)
            left -= size
        slow = self.chance.choice((0.02, 0.04, 0.06))
        self.mpsq("submit", "--until", "decided", "--set", f"s=0.02,{slow}1", "--no-preflight", "--", "sleep", "{s}")
        self.mpsq("submit", "--name", "fails", "--", "sh", "-c", "exit 3")

    def read(self, base: str, terminal: Terminal) -> None:
        """Read as users do: a report or a list, and pages of the browser."""
        self.mpsq(*self.chance.choice(READS))
        groups = int(query("SELECT max(id) FROM groups")[0][0])
        for page in (
            "/",
            "/history",
            f"/group/{self.chance.randint(1, groups)}",
            f"/job/{self.chance.randint(1, groups)}",
        ):
            opened(base + page)
        terminal.read()
        terminal.raw = ""
        self.n_reads += 1
        self.longest_wal = max(self.longest_wal, (self.home / "mpsq.db-wal").stat().st_size)

    def sample(self, hours: float, processes: Sequence[psutil.Process]) -> Sample:
        ended = int(query("SELECT count(*) FROM runs WHERE state = 'DONE'")[0][0])
        paths = [path for path in self.home.rglob("*") if "backups" not in path.parts and path.name != "mpsq.db-wal"]
        disk = sum(path.lstat().st_blocks * 512 for path in paths)
        wal, self.longest_wal = self.longest_wal, 0
        return Sample(
            hours,
            ended,
            tuple(process.memory_full_info().uss / 1e6 for process in processes),
            tuple(process.num_fds() for process in processes),
            wal,
            disk,
        )


def waiting() -> int:
    return int(query("SELECT count(*) FROM runs WHERE state IN ('QUEUED', 'RUNNING')")[0][0])


def soak(options: argparse.Namespace, folder: Path) -> list[Sample]:
    """Let the hours pass. Return a sample of each."""
    (folder / "home").mkdir(mode=0o700)
    hour_s = options.minutes * 60 / options.hours
    settings = f"backup_every_s = {max(hour_s * 6, 60)}\nkeep_backups = 2\nhold_after_failures = 0\n"
    (folder / "home" / "config.toml").write_text(ANY_MACHINE + settings)
    day = Day(folder, options.seed, round(options.jobs / options.hours))
    day.mpsq("schedule", "add", "* * * * *", "--name", "nightly", "--", "--", "sh", "-c", "exit 0")
    worker = start_worker(folder)
    samples: list[Sample] = []
    terminal = Terminal("status", "--watch")
    try:
        with serving(folder / "home") as (base, server):
            processes = (psutil.Process(worker.pid), psutil.Process(terminal.process.pid), server)
            for hour in range(1, round(options.hours) + 1):
                begin = time.monotonic()
                day.submit()
                while waiting() or time.monotonic() - begin < hour_s:
                    day.read(base, terminal)
                    time.sleep(1)
                time.sleep(2)  # the worker writes its log back, and the server gives memory back
                samples.append(day.sample(hour, processes))
                print(f"hour {hour}: {time.monotonic() - begin:.0f} s, {samples[-1]}", file=sys.stderr, flush=True)
    finally:
        terminal.close()
        worker.send_signal(signal.SIGTERM)
        worker.wait(60)
    return samples


def growth(samples: Sequence[Sample]) -> dict[str, float]:
    """Return by what each value has grown from the second quarter to the last one, as a ratio of means."""
    quarter = max(len(samples) // 4, 1)
    early, late = samples[quarter : 2 * quarter] or samples[:1], samples[-quarter:]

    def ratio(value: Callable[[Sample], float]) -> float:
        return mean(map(value, late)) / max(mean(map(value, early)), 1.0)

    return {
        **{f"memory of the {name}": ratio(lambda s, n=n: s.memory_mb[n]) for n, name in enumerate(PROCESSES)},  # type: ignore[misc]
        **{f"descriptors of the {name}": ratio(lambda s, n=n: s.descriptors[n]) for n, name in enumerate(PROCESSES)},  # type: ignore[misc]
        "log of SQLite": ratio(lambda s: max(s.wal_bytes, WAL_MAY_HAVE)),
        "disk space of a run": ratio(lambda s: s.disk_bytes_per_run),
    }


PROCESSES = ("worker", "dashboard", "server")


def table(samples: Sequence[Sample]) -> str:
    """Return some of the samples as a table."""
    every = max(len(samples) // ROWS_PRINTED, 1)
    lines = [
        "| hour | runs | memory (MB): worker, dashboard, server | descriptors | log of SQLite | disk, per run |",
        "|--:|--:|--:|--:|--:|--:|",
    ]
    for each in [*samples[: every > 1], *samples[every - 1 :: every]]:
        memory = ", ".join(f"{value:.1f}" for value in each.memory_mb)
        descriptors = ", ".join(map(str, each.descriptors))
        lines.append(
            f"| {each.hours:g} | {each.n_runs:,} | {memory} | {descriptors} | {each.wal_bytes / 1e6:.1f} MB"
            f" | {each.disk_bytes_per_run / 1e3:.1f} kB |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=24.0, help="simulated hours")
    parser.add_argument("--minutes", type=float, default=50.0, help="how long they take if the machine keeps up")
    parser.add_argument("--jobs", type=int, default=10_000, help="jobs of all hours, besides questions and schedules")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background of a shell ignores it
    with tempfile.TemporaryDirectory(prefix="mpsq-soak-") as name:
        os.environ["MPSQ_HOME"], os.environ["MPSQ_LOCKS"] = f"{name}/home", f"{name}/locks"
        begin = time.monotonic()
        samples = soak(options, Path(name))
        took_s = time.monotonic() - begin
    ratios = growth(samples)
    print(table(samples))
    print(f"\n{options.hours:g} hours in {took_s / 60:.1f} minutes, seed {options.seed}. Growth: ", end="")
    print(", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()))
    return int(any(ratio > MAY_GROW for ratio in ratios.values()))


if __name__ == "__main__":
    sys.exit(main())
