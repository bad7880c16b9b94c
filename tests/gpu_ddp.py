"""nanogpt on two GPUs against one at the same global batch: `python tests/gpu_ddp.py`. Never part of `make test`.

One submission: --gpus 1 and --gpus 2 of the same settings, in interleaved rounds. Printed are the losses of both side
by side with their largest relative difference, and a table in Markdown: milliseconds an iteration and tokens a second,
with the speed-up of two GPUs and its 95 % interval. `--device cpu` tries this program with two processes over gloo.

fp32 is the default because losses can be compared there: rounding alone is left between one process and two. For speed
as it is used: --dtype bf16 --config gpt2 --compile on --set grad_accum=8.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from queue_runner.analysis.rounds import mean_interval
from queue_runner.analysis.stats import mad, median
from queue_runner.paths import Layout
from queue_runner.store import read
from tests import named_rows

MPSQ = [sys.executable, "-m", "queue_runner.cli.main"]
Runs = Mapping[int, Sequence[Mapping[str, Any]]]
"""Rows of v_run by number of GPUs, each with its `losses` by iteration."""


def measure(options: argparse.Namespace, layout: Layout) -> Runs:
    """Queue and run both arms. Return the runs that succeeded."""
    line = {
        "workload": "nanogpt", "config": options.config, "device": options.device, "dtype": options.dtype,
        "compile": options.compile, "repeats": options.rounds, "set": dict(pair.split("=", 1) for pair in options.set),
    }  # fmt: skip
    lines = layout.home / "jobs.jsonl"
    lines.write_text("".join(json.dumps({**line, "gpus": n}) + "\n" for n in (1, options.gpus)))
    as_they_are = ["--no-preflight", "--no-gate"]
    subprocess.run([*MPSQ, "submit", "--from", str(lines), "--order-seed", "1", *as_they_are], check=True)
    subprocess.run([*MPSQ, "worker", "--until-idle"], check=True, timeout=options.seconds)
    runs: dict[int, list[Mapping[str, Any]]] = {1: [], options.gpus: []}
    with read.reading(layout.db) as connection:
        for row in named_rows.runs(connection):
            print(f"{row['run']}: {row['outcome']} {row['reason'] or ''}".rstrip(), flush=True)
            if row["outcome"] == "SUCCEEDED":
                at = named_rows.detail(connection, "iterations", row["run_id"])
                losses = {one["i"]: one["loss"] for one in at}
                runs[json.loads(row["spec_json"])["gpus"]].append({**dict(row), "losses": losses})
    return runs


def of_losses(runs: Runs, gpus: int) -> list[str]:
    """Return the losses of both side by side, some of them, and the largest relative difference of all."""
    single, several = runs[1][0]["losses"], runs[gpus][0]["losses"]
    apart = {i: abs(several[i] - loss) / abs(loss) for i, loss in single.items()}
    shown = [i for i in single if i % max(1, len(single) // 6) == 0 or i == max(single)]
    lines = [f"| iteration | 1 GPU | {gpus} GPUs |", "|---|---|---|"]
    lines += [f"| {i} | {single[i]:.7f} | {several[i]:.7f} |" for i in shown]
    at = max(apart, key=apart.__getitem__)
    return [*lines, f"largest relative difference of {len(apart)} losses: {apart[at]:.2g} (iteration {at})"]


def of_speed(runs: Runs, gpus: int) -> list[str]:
    """Return the table of speeds, and the speed-up with its interval."""
    times = {n: [row["median_s"] for row in rows if row["median_s"]] for n, rows in runs.items()}
    lines = ["| | runs | ms an iteration | tokens/s |", "|---|---|---|---|"]
    for n, values in times.items():
        name, middle = f"{n} GPU" + ("s" if n > 1 else ""), median(values)
        spread, rate = 1e3 * mad(values, middle), runs[n][0]["tokens_per_iter"] / middle
        lines.append(f"| {name} | {len(values)} | {1e3 * middle:.3f} ± {spread:.3f} | {rate:,.0f} |")
    ratio = f"{median(times[1]) / median(times[gpus]):.3f}"
    if interval := mean_interval([one / several for one, several in zip(times[1], times[gpus], strict=False)]):
        ratio += f" (95 %: {interval[0]:.3f} to {interval[1]:.3f})"
    taints = sorted({row["taints"] for rows in runs.values() for row in rows if row["taints"]})
    return [*lines, f"speed-up of {gpus} GPUs: {ratio}", *([f"taints: {', '.join(taints)}"] if taints else [])]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--config", default="tiny")
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument("--compile", default="off", choices=["off", "on"])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--set", action="append", default=["grad_accum=8", "max_iters=100", "eval_interval=0"])
    parser.add_argument("--seconds", type=float, default=500.0, help="after which it gives up")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mpsq-ddp-") as temporary:
        home = Path(temporary) / "home"
        for folder in (home, Path(temporary) / "locks"):
            folder.mkdir(mode=0o700)
        os.environ |= {"MPSQ_HOME": str(home), "MPSQ_LOCKS": str(Path(temporary) / "locks")}
        (home / "config.toml").write_text("min_free_bytes = 0\n")
        runs = measure(options, Layout(home))
        if not all(runs.values()):
            sys.exit("one side has no run that succeeded")
        print("\n".join([*of_losses(runs, options.gpus), "", *of_speed(runs, options.gpus)]), flush=True)


if __name__ == "__main__":
    main()
