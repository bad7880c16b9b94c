"""`python -m tests.gpu_foreign`: on a machine with an NVIDIA GPU, count how often a foreign process on it is caught.

Into each of `--runs` runs of a queue of its own, which keep the GPU busy for `--seconds`, a process that is not the
queue's starts to compute; `--clean` more runs are left alone. It prints a table in Markdown: how many of each got the
taint. Needs mpsq's dependencies, nvidia-ml-py, and torch with CUDA in `--python`. A run takes some 20 s. Exit code 1 if
one was missed, or a clean one marked.
"""

from __future__ import annotations

import argparse
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from queue_runner.host import nvidia

LOAD = """
import pathlib, sys, time, torch
n, seconds = 4096, float(sys.argv[1])
while len(sys.argv) > 3 and not pathlib.Path(sys.argv[3]).exists():
    time.sleep(0.05)
a = torch.randn(n, n, device="cuda", dtype=torch.bfloat16)
b = torch.randn(n, n, device="cuda", dtype=torch.bfloat16)
a @ b
torch.cuda.synchronize()
pathlib.Path(sys.argv[2]).touch()
end = time.monotonic() + seconds
while time.monotonic() < end:
    for _ in range(20):
        a @ b
    torch.cuda.synchronize()
"""
START_S = 120.0
"""Limit for a start of torch with CUDA."""
KINDS = ("gpu_contended", "gpu_busy")


def main() -> int:
    """Make the runs, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--clean", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--python", default=sys.executable, help="an interpreter whose torch has CUDA")
    options = parser.parse_args()
    if nvidia.library() is None:
        print("no NVIDIA driver, or no nvidia-ml-py: pip install nvidia-ml-py", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="mpsq-gpu-") as folder:
        here = Path(folder)
        (here / "load.py").write_text(LOAD)
        environment = {**os.environ, "MPSQ_HOME": str(here / "home"), "MPSQ_LOCKS": str(here / "locks")}
        marks_by_kind: dict[str, list[tuple[str, ...]]] = {"foreign": [], "clean": []}
        for k in range(options.clean + options.runs):
            which = "clean" if k < options.clean else "foreign"
            taints = _one_run(here, k, options, environment, foreign=which == "foreign")
            marks_by_kind[which].append(taints)
            print(f"run {k + 1}, {which}: {', '.join(taints) or 'no taint'}", file=sys.stderr, flush=True)
        detail = _details(here / "home")
    print("| runs | number | gpu_contended | gpu_busy only | neither |")
    print("|---|--:|--:|--:|--:|")
    caught = {}
    for which, runs in marks_by_kind.items():
        contended = sum("gpu_contended" in taints for taints in runs)
        busy = sum("gpu_contended" not in taints and "gpu_busy" in taints for taints in runs)
        caught[which] = contended + busy
        name = "with a foreign process" if which == "foreign" else "left alone"
        print(f"| {name} | {len(runs)} | {contended} | {busy} | {len(runs) - contended - busy} |")
    print()
    print("\n".join(detail))
    return 0 if caught["foreign"] == options.runs and not caught["clean"] else 1


def _one_run(
    here: Path, k: int, options: argparse.Namespace, environment: Mapping[str, str], *, foreign: bool
) -> tuple[str, ...]:
    """Run one job to its end, beside a foreign process if wished; return the run's taints of the GPU."""
    loading = here / f"loading-{k}"
    load = [options.python, str(here / "load.py")]
    mpsq = [sys.executable, "-m", "queue_runner.cli"]
    command = [*load, str(options.seconds), str(loading)]
    _checked([*mpsq, "submit", "--device", "cuda", "--name", f"load{k}", "--", *command], environment)
    worker = subprocess.Popen([*mpsq, "worker", "--until-idle"], env=environment, start_new_session=True)
    other: subprocess.Popen[bytes] | None = None
    try:
        if foreign:  # it imports torch now, and goes to the GPU when the run has
            command = [*load, "600", str(here / f"other-{k}"), str(loading)]
            other = subprocess.Popen(command, env=environment, start_new_session=True)
        deadline = time.monotonic() + START_S
        while not loading.exists() and worker.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        if not loading.exists():
            raise SystemExit(f"run {k + 1} did not reach the GPU: is there a torch with CUDA? --python names another")
        worker.wait(START_S + options.seconds)
    finally:
        for process in (other, worker):
            if process is not None and process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM if process is worker else signal.SIGKILL)
                process.wait(30)
    if foreign and not (here / f"other-{k}").exists():
        raise SystemExit("the foreign process did not reach the GPU before the run ended: use more --seconds")
    time.sleep(2.0)  # until the driver's average forgets it
    with sqlite3.connect(here / "home" / "mpsq.db") as connection:
        rows = connection.execute(
            "SELECT t.kind FROM taints t JOIN v_run r ON r.run_id = t.run_id WHERE r.name = ? ORDER BY 1", [f"load{k}"]
        )
        return tuple(kind for (kind,) in rows if kind in KINDS)


def _checked(command: list[str], environment: Mapping[str, str]) -> None:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[-6:])}: {done.stderr.strip()}")


def _details(home: Path) -> list[str]:
    """Return the first taint in words, and what the samples had."""
    with sqlite3.connect(home / "mpsq.db") as connection:
        marks = ", ".join("?" * len(KINDS))
        taints = connection.execute(
            f"SELECT kind, detail FROM taints WHERE kind IN ({marks}) LIMIT 3", KINDS
        ).fetchall()
        hidden, known, n = connection.execute(
            "SELECT count(json_extract(data_json, '$.gpu_pids_hidden')),"
            " count(json_extract(data_json, '$.gpu_others_busy_share')), count(*) FROM conditions"
        ).fetchone()
    return [
        *(f"{kind}: {detail}" for kind, detail in taints),
        f"{n} samples: {known} knew others' use, {hidden} had hidden processes",
    ]


if __name__ == "__main__":
    sys.exit(main())
