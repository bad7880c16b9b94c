"""Hold the built-in nanogpt against tests/reference_train.py in one queue: `python tests/gpu_against_train.py --pack .`

Both train the same model on the same tokens in the same torch, for as many iterations and evaluations, with warm
compiler caches, interleaved in one submission; each side's bare imports are measured in the same rounds. Printed is a
table in Markdown: real and user + sys, each less its own imports, and milliseconds an iteration, with ratios.

The folder of --pack holds input.txt and, for gpt2, the two files of GPT-2's vocabulary under the names of tiktoken's
cache. Everything else is made in a temporary home. It ends within --seconds: what is not measured by then is
cancelled, and the table says how many runs are in it.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from queue_runner.analysis.rounds import mean_interval
from queue_runner.analysis.stats import mad, median
from queue_runner.paths import Layout, jobs_dir
from queue_runner.store import read

ROOT = Path(__file__).resolve().parents[1]
STEADY_FROM = 20
MODELS: dict[str, dict[str, Any]] = {
    "shakespeare_char": {"tokens": "char", "max_iters": 200, "eval_iters": 20},
    "gpt2": {"tokens": "bpe", "max_iters": 60, "eval_iters": 10},
    "tiny": {"tokens": "char", "max_iters": 24, "eval_iters": 2},  # to try this program on a CPU
}
TINY = {"n_layer": 2, "n_head": 2, "n_embd": 64, "block_size": 32, "batch_size": 4}
DTYPES = {"bf16": "bfloat16", "fp32": "float32"}
IMPORTS = {
    "ours": "import runpy, sys; sys.argv = ['nanogpt_torch.py']; runpy.run_path({workload!r}, run_name='imported')",
    "train.py": "import runpy; runpy.run_path('reference_train.py', run_name='imported')",
}


class Comparison:
    """One comparison in a home of its own."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.said, self.folder = options, folder
        self.deadline = time.monotonic() + options.seconds
        self.layout = Layout(Path(os.environ["MPSQ_HOME"]))
        self.modes = ["off", "on"] if options.compile == "both" else [options.compile]
        self.models: list[str] = options.models.split(",")
        self.evaluations = 1
        self.text = folder / "input.txt"

    def prepare(self) -> None:
        """Lay out the text, the vocabulary, the tokens and the trainer."""
        pack, vocabulary = Path(self.said.pack), self.layout.cache / "tiktoken"
        vocabulary.mkdir(parents=True)
        shutil.copy(pack / "input.txt", self.text)
        for path in pack.iterdir():
            if re.fullmatch(r"[0-9a-f]{40}", path.name):
                shutil.copy(path, vocabulary)
        shutil.copy(ROOT / "tests" / "reference_train.py", self.folder)
        os.environ["MPSQ_CACHE"] = str(self.layout.cache)  # where the harness looks for the vocabulary
        sys.path.insert(0, str(jobs_dir()))
        from harness.data import text

        for tokenizer in {MODELS[model]["tokens"] for model in self.models}:
            dataset = text.load(str(self.text), tokenizer, 32)
            place = self.folder / tokenizer
            place.mkdir()
            for split, tokens in dataset.parts().items():
                (place / f"{split}.bin").write_bytes(array("H", tokens).tobytes())
            (place / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": dataset.vocab_size}))
        del os.environ["MPSQ_CACHE"]

    def ours(self, model: str, mode: str) -> dict[str, Any]:
        plan, options = MODELS[model], self.said
        setting = {
            "data": str(self.text), "tokens": plan["tokens"], "max_iters": plan["max_iters"],
            "eval_interval": plan["max_iters"], "eval_iters": plan["eval_iters"], "log_interval": 10,
            "warmup_iters": STEADY_FROM - 1, "eval_at_start": False, **(TINY if model == "tiny" else {}),
        }  # fmt: skip
        workload = {"workload": "nanogpt", "config": model, "device": options.device, "dtype": options.dtype}
        return {**workload, "compile": mode, "set": setting, "name": f"{model} {mode} ours"}

    def theirs(self, model: str, mode: str) -> dict[str, Any]:
        """As many iterations (theirs count from 0 to max_iters) and evaluations (theirs begin at iteration 0)."""
        plan, options = MODELS[model], self.said
        last = plan["max_iters"] - 1
        every = last // (self.evaluations - 1) if self.evaluations > 1 else last + 1
        words = {
            "data": plan["tokens"], "config": model, "device": options.device, "dtype": DTYPES[options.dtype],
            "compile": mode == "on", "max_iters": last, "eval_interval": every, "eval_iters": plan["eval_iters"],
            "steady_from": STEADY_FROM,
        }  # fmt: skip
        command = [sys.executable, "reference_train.py", *(f"--{key}={value}" for key, value in words.items())]
        return {"command": command, "parser": "nanogpt", "name": f"{model} {mode} train.py"}

    def imports(self, side: str) -> dict[str, Any]:
        program = IMPORTS[side].format(workload=str(jobs_dir() / "nanogpt_torch.py"))
        environment = [f"PYTHONPATH={os.pathsep.join([str(jobs_dir()), os.environ.get('PYTHONPATH', '')])}"]
        return {"command": [sys.executable, "-c", program], "env": environment, "name": f"imports {side}"}

    def run(self, jobs: Sequence[Mapping[str, Any]], repeats: int) -> dict[str, list[dict[str, Any]]]:
        """Queue the jobs, each `repeats` times and interleaved, and run them. Return the ended runs by name."""
        lines = self.folder / "jobs.jsonl"
        lines.write_text("".join(json.dumps({**job, "repeats": repeats}) + "\n" for job in jobs))
        as_they_are = ("--no-preflight", "--no-gate")
        submitted = self.mpsq("submit", "--from", str(lines), "--order-seed", "1", "--json", *as_they_are)
        group = json.loads(submitted)["group"]
        with (self.folder / "worker.log").open("ab") as log:
            worker = subprocess.Popen(
                [sys.executable, "-m", "queue_runner.cli", "worker", "--until-idle"], stderr=log, cwd=self.folder
            )
            try:
                worker.wait(max(1.0, self.deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                print(f"the time is over: the rest of {group} is cancelled", flush=True)
                self.mpsq("cancel", f"g{str(group).lstrip('g')}", "--no-wait")
                worker.wait(60)
        runs_by_arm: dict[str, list[dict[str, Any]]] = {}
        with read.reading(self.layout.db) as connection:
            rows = connection.execute(
                "SELECT * FROM v_run WHERE group_id = ? ORDER BY run_id", [int(str(group).lstrip("g"))]
            ).fetchall()
        names = {n: str(job["name"]) for n, job in enumerate(jobs)}
        first = min(row["job_id"] for row in rows)
        for row in rows:
            if row["started_at"] is not None:
                at_s = row["started_at"] - rows[0]["created_at"]
                name = names[row["job_id"] - first]
                print(f"{row['run']} {name}: {row['outcome']} at {at_s:.1f} s, real {row['real_s']} s", flush=True)
            if row["outcome"] == "SUCCEEDED" and (row["kind"] != "workload" or row["n_iters"]):
                runs_by_arm.setdefault(names[row["job_id"] - first], []).append(dict(row))
            elif row["outcome"] not in ("CANCELLED", "SUCCEEDED"):
                stderr = (self.layout.run_dir(row["run"]) / "stderr.log").read_text()[-2000:]
                print(f"{row['run']} {names[row['job_id'] - first]}: {row['outcome']} {row['reason']}\n{stderr}")
        return runs_by_arm

    def mpsq(self, *words: str) -> str:
        command = [sys.executable, "-m", "queue_runner.cli", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=self.folder)
        if done.returncode:
            sys.exit(f"mpsq {' '.join(words)}: {done.stderr}")
        return done.stdout

    def iteration_ms(self, row: Mapping[str, Any]) -> float:
        """Return the mean wall time of an iteration from number STEADY_FROM on, whatever lies between them but an
        evaluation: of ours by its events, of theirs by its last line."""
        folder = self.layout.run_dir(row["run"])
        if row["kind"] != "workload":
            match = re.search(r"^steady: ([\d.]+) ms", (folder / "stdout.log").read_text(), re.MULTILINE)
            return float(match[1]) if match else float("nan")
        events = map(json.loads, (folder / "events.jsonl").read_text().splitlines())
        at = {event["i"]: event["t"] for event in events if event["type"] == "iter"}
        last = max(at)
        return 1e3 * float(at[last] - at[STEADY_FROM - 1]) / (last - STEADY_FROM + 1)

    def measure(self) -> list[dict[str, Any]]:
        """Warm the caches, then run all arms and both imports in rounds. Return a row for each pair of arms."""
        pairs = [(model, mode) for model in self.models for mode in self.modes]
        compiled = [pair for pair in pairs if pair[1] == "on"]
        warm = self.run([self.ours(*pair) for pair in compiled or pairs[:1]], 1)
        with read.reading(self.layout.db) as connection:
            times = [
                connection.execute("SELECT COUNT(DISTINCT i) FROM v_eval WHERE run = ?", [rows[0]["run"]]).fetchone()
                for rows in warm.values()
            ]
        self.evaluations = max(next(iter(dict(row).values())) for row in times)
        self.run([self.theirs(*pair) for pair in compiled or pairs[:1]], 1)
        self.note("the caches are warm")
        arms = [arm for pair in pairs for arm in (self.ours(*pair), self.theirs(*pair))]
        runs_by_arm = self.run([*arms, self.imports("ours"), self.imports("train.py")], self.said.rounds)
        self.note("measured")
        bare = {side: runs_by_arm.get(f"imports {side}", []) for side in IMPORTS}
        rows = [self.row(f"imports {side}", bare[side], {}) for side in IMPORTS]
        for model, mode in pairs:
            name = f"{model} {'compiled' if mode == 'on' else 'eager'}"
            for side in IMPORTS:
                rows.append(self.row(f"{name} {side}", runs_by_arm.get(f"{model} {mode} {side}", []), less(bare[side])))
        return rows

    def row(self, name: str, runs: Sequence[Mapping[str, Any]], bare: Mapping[str, float]) -> dict[str, Any]:
        with read.reading(self.layout.db) as connection:
            evaluations = [
                len(connection.execute("SELECT DISTINCT i FROM v_eval WHERE run = ?", [row["run"]]).fetchall())
                for row in runs
            ]
        return {
            "name": name,
            "iterations": [self.iterations(row) for row in runs],
            "evaluations": evaluations,
            "real": [row["real_s"] - bare.get("real", 0.0) for row in runs],
            "cpu": [row["user_s"] + row["sys_s"] - bare.get("cpu", 0.0) for row in runs],
            "ms": [self.iteration_ms(row) for row in runs] if bare else [],
            "taints": sorted({row["taints"] for row in runs if row["taints"]}),
            "loss": [row["loss_last"] for row in runs],
        }

    def iterations(self, row: Mapping[str, Any]) -> int | None:
        """Return the number of iterations: train.py prints one in ten."""
        if row["kind"] == "workload":
            return int(row["n_iters"])
        return int(row["planned_iters"]) if row["planned_iters"] else None

    def note(self, text: str) -> None:
        left = self.deadline - time.monotonic()
        print(f"{text}; {left:.0f} s are left", flush=True)


def less(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the medians of a bare import's times."""
    if not runs:
        return {"real": 0.0, "cpu": 0.0}
    return {"real": median([r["real_s"] for r in runs]), "cpu": median([r["user_s"] + r["sys_s"] for r in runs])}


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of the table: medians with their MAD, and ratios ours / train.py with 95 % intervals."""
    lines = [
        "| | runs | iterations | evaluations | real less imports (s) | user + sys less imports (s) | ms an iteration |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [_spread(row[name], digits) for name, digits in (("real", 2), ("cpu", 2), ("ms", 3))]
        counts = [_alike(row["iterations"]), _alike(row["evaluations"])]
        lines.append(f"| {row['name']} | {len(row['real'])} | {' | '.join(counts + cells)} |")
    lines += ["", "| ours / train.py | real | user + sys | ms an iteration |", "|---|---|---|---|"]
    by_name = {row["name"]: row for row in rows}
    for name, ours in by_name.items():
        theirs = by_name.get(name.removesuffix("ours") + "train.py")
        if name.endswith("ours") and theirs is not None and ours["real"] and theirs["real"]:
            cells = [_ratio(ours[key], theirs[key]) for key in ("real", "cpu", "ms")]
            lines.append(f"| {name.removesuffix(' ours')} | {' | '.join(cells)} |")
    lines += [f"taints of {row['name']}: {', '.join(row['taints'])}" for row in rows if row["taints"]]
    return lines


def _spread(values: Sequence[float], digits: int) -> str:
    if not values:
        return "-"
    return f"{median(values):.{digits}f} ± {mad(values, median(values)):.{digits}f}"


def _alike(values: Sequence[object]) -> str:
    return "/".join(map(str, sorted(set(values), key=str))) if values and values != [None] * len(values) else "-"


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Return the ratio of the medians, and the interval of that of the geometric means."""
    if not ours or not theirs or min(*ours, *theirs) <= 0:
        return "-"
    ratio = f"{median(ours) / median(theirs):.3f}"
    if interval := mean_interval([mine / other for mine, other in zip(ours, theirs, strict=False)]):
        ratio += f" ({interval[0]:.3f} to {interval[1]:.3f})"
    return ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pack", required=True, help="folder with input.txt, and GPT-2's vocabulary for gpt2")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bf16", choices=DTYPES)
    parser.add_argument("--compile", default="both", choices=["off", "on", "both"])
    parser.add_argument("--models", default="shakespeare_char,gpt2", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=500.0, help="after which no run is left to finish")
    parser.add_argument("--out", help="folder for the rows as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mpsq-against-") as temporary:
        folder = Path(temporary)
        (folder / "locks").mkdir(mode=0o700)
        (folder / "work").mkdir()
        os.environ |= {"MPSQ_HOME": str(folder / "home"), "MPSQ_LOCKS": str(folder / "locks")}
        (folder / "home").mkdir(mode=0o700)
        (folder / "home" / "config.toml").write_text("min_free_bytes = 0\n")
        comparison = Comparison(options, folder / "work")
        comparison.prepare()
        comparison.note("prepared")
        rows = comparison.measure()
        print("\n".join(table(rows)), flush=True)
        print(comparison.mpsq("report", "breakdown", "--where", "workload=nanogpt"), flush=True)
        if options.out:
            Path(options.out).mkdir(parents=True, exist_ok=True)
        (Path(options.out) / "against_train.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
