"""A real store for tests of reports: the migrated schema with its constraints, and rows as runs leave them."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from queue_runner import reports
from queue_runner.model import PHASES
from queue_runner.paths import Layout
from queue_runner.reports._common.document import Result
from queue_runner.reports._common.report_options import read_options
from queue_runner.spec import JobSpec
from queue_runner.store import migrate, read

FLOPS_PER_ITER = 1.1626e12
"""of one step of the shakespeare_char configuration (docs/methodology.md)"""
TOKENS_PER_ITER = 16384.0


@cache
def _empty() -> bytes:
    """Return an empty database."""
    with TemporaryDirectory() as folder:
        layout = Layout(Path(folder) / "home")
        layout.home.mkdir()
        migrate.ensure(layout)
        return layout.db.read_bytes()


class Store:
    """A queue's database. `run` adds a run that ended; several with equal arguments are repeats of one job.
    A text for `compile` is a mode of torch.compile."""

    def __init__(self, folder: Path) -> None:
        self.layout = Layout(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.layout.db.write_bytes(_empty())
        self.db = sqlite3.connect(self.layout.db, isolation_level=None)
        self.db.execute("PRAGMA foreign_keys=ON")
        self.db.execute("PRAGMA synchronous=OFF")
        self.jobs: dict[str, int] = {}
        self._insert("groups", id=1, created_at=1e9, title="test", seed=0)

    def _insert(self, table: str, *, or_: str = "", **values: Any) -> int:
        names, marks = ", ".join(f'"{n}"' for n in values), ", ".join("?" for _ in values)
        cursor = self.db.execute(f"INSERT {or_} INTO {table} ({names}) VALUES ({marks})", list(values.values()))
        return int(cursor.lastrowid or 0)

    def fingerprint(self, kind: str, data: Mapping[str, Any]) -> str:
        text = json.dumps(data, sort_keys=True)
        digest = hashlib.sha256((kind + text).encode()).hexdigest()
        self._insert("fingerprints", or_="OR IGNORE", hash=digest, kind=kind, data_json=text)
        return digest

    def run(
        self,
        device: str | None = "cpu",
        compile: bool | str | None = False,
        median_s: float | None = 0.1,
        *,
        workload: str | None = "nanogpt",
        framework: str | None = "torch",
        version: str = "2.13.0",
        config: str | None = "tiny",
        dtype: str | None = "fp32",
        params: Mapping[str, Any] | None = None,
        argv: Sequence[str] = (),
        env_name: str = "",
        variables: Mapping[str, str] | None = None,
        find_max: str = "",
        outcome: str | None = "SUCCEEDED",
        exit_code: int | None = None,
        reason: str | None = None,
        taints: Mapping[str, tuple[str, str]] | None = None,
        machine: Mapping[str, Any] | None = None,
        software: Mapping[str, Any] | None = None,
        hello: Mapping[str, Any] | None = None,
        exit: Mapping[str, Any] | None = None,
        summary: Mapping[str, Any] | None = None,
        ended_at: float = 1e9,
        tags: Sequence[str] = (),
        group: int = 1,
        name: str | None = None,
        gpus: int = 1,
        prepare: str = "",
    ) -> int:
        """Add a run; returns its run_id. `summary` and others override what a quiet run would have."""
        spec = JobSpec(
            kind="workload" if workload else "command",
            name=name or workload or "train.py",
            workload=workload,
            framework=framework,
            device=device,
            compile=None if compile is None else bool(compile),
            compile_mode=compile if isinstance(compile, str) else "",
            dtype=dtype,
            config=config,
            params=dict(params or {}),
            argv=tuple(argv),
            env_name=env_name,
            prepare=prepare,
            variables=dict(variables or {}),
            find_max=find_max,
            env={"PATH": "/bin"},
            gpus=gpus,
        )
        job, number = self._job(spec, tags, group)
        done = outcome is not None
        run_id = self._insert(
            "runs",
            job_id=job,
            number=number,
            repeat=number,
            attempt=1,
            position=number,
            state="DONE" if done else "QUEUED",
            outcome=outcome,
            exit_code=exit_code,
            reason=reason,
            created_at=ended_at - 10,
            started_at=ended_at + (number - 1) / 1000 if done else None,
            ended_at=ended_at if done else None,
            machine_hash=self.fingerprint("machine", machine or {"name": "here"}) if done else None,
            software_hash=self.fingerprint("software", software or {"versions": {framework: version}})
            if done
            else None,
        )
        if done and median_s is not None:
            self._results(run_id, spec, version, median_s, hello or {}, summary or {})
        if done:
            times = {"real_s": 30.0, "slept_s": 0.0, "user_s": 50.0, "sys_s": 2.0, "max_rss_bytes": 500_000_000}
            self._insert("exits", run_id=run_id, **{"exit_json": "{}", **times, **(exit or {})})
        for kind, (severity, detail) in (taints or {}).items():
            self._insert("taints", run_id=run_id, kind=kind, severity=severity, detail=detail)
        return run_id

    def retry(self, of_run: int, *device: str, **run: Any) -> int:
        """Add another attempt at a run, of the same specification."""
        run_id = self.run(*device, **run)
        repeat = "(SELECT repeat FROM runs WHERE id = ?)"
        self.db.execute(f"UPDATE runs SET repeat = {repeat}, attempt = 2 WHERE id = ?", [of_run, run_id])
        return run_id

    def _job(self, spec: JobSpec, tags: Sequence[str], group: int) -> tuple[int, int]:
        self._insert("groups", or_="OR IGNORE", id=group, created_at=1e9, title="test", seed=0)
        text = ",".join([spec.content_hash(), spec.name, str(group), *tags])
        if text not in self.jobs:
            columns = ("name", "kind", "workload", "framework", "device", "dtype", "config")
            named = {name: getattr(spec, name) for name in columns}
            self.jobs[text] = self._insert(
                "jobs",
                group_id=group,
                created_at=1e9,
                spec_json=spec.to_json(),
                spec_hash=spec.content_hash(),
                compile=spec.compile,
                **named,
            )
            for tag in tags:
                self._insert("job_tags", job_id=self.jobs[text], tag=tag)
        job = self.jobs[text]
        return job, self.db.execute("SELECT count(*) FROM runs WHERE job_id = ?", [job]).fetchone()[0] + 1

    def _results(
        self,
        run_id: int,
        spec: JobSpec,
        version: str,
        median_s: float,
        hello: Mapping[str, Any],
        summary: Mapping[str, Any],
    ) -> None:
        said = {
            "workload": spec.workload,
            "framework": spec.framework,
            "framework_version": version,
            "device": spec.device,
            "dtype": spec.dtype,
            "compile": spec.compile,
            "config": spec.config,
            "flops_per_iter": FLOPS_PER_ITER if spec.workload else None,
            "tokens_per_iter": TOKENS_PER_ITER if spec.workload else None,
            "hello_json": "{}",
        }
        self._insert("hellos", run_id=run_id, **{**said, **hello})
        phases = {"setup": 2.0, "compile": 1.0, "warmup": 1.0, "measure": 20.0, "eval": 4.0, "checkpoint": 1.0}
        known = {
            "n_iters": 105,
            "n_measure": 100,
            "median_s": median_s,
            "mad_s": median_s * 0.01,
            "q1_s": median_s * 0.99,
            "q3_s": median_s * 1.01,
            "mean_s": median_s,
            "first_iter_s": median_s + 0.5,
            "first_iter_excess_s": 0.5,
            "drift_ratio": 1.0,
            "loss_first": 4.2,
            "loss_last": 1.9,
            "val_loss_last": 2.0,
            "other_s": 1.0,
            **{f"{name}_s": dur_s for name, dur_s in phases.items()},
        }
        self._insert("summaries", run_id=run_id, **{**known, **summary})
        for offset, (split, value) in enumerate((("train", 1.95), ("val", known["val_loss_last"]))):
            at = {"offset": 10**9 + offset, "metric": "loss", "i": 105, "split": split, "value": value}
            self._insert("evals", run_id=run_id, **at)

    def iterations(
        self,
        run_id: int,
        times: Iterable[float],
        first: int = 0,
        phase: str = "measure",
        losses: Sequence[float | None] = (),
    ) -> None:
        number = PHASES.index(phase)
        self.db.executemany(
            "INSERT INTO iterations (run_id, offset, i, dur_s, loss, phase, synced) VALUES (?, ?, ?, ?, ?, ?, 1)",
            [
                (run_id, i * 100, i, dur_s, losses[i - first] if losses else 2.5, number)
                for i, dur_s in enumerate(times, start=first)
            ],
        )

    def courses(
        self,
        run_id: int,
        started_at: float,
        phases: Iterable[tuple[str, float, float]],
        samples: Iterable[Mapping[str, Any]],
        every_s: float = 2.0,
    ) -> None:
        """Add phases (name, begin, end in seconds) and the course of the sensors of a run that began at that time."""
        marks = [(t_s, name, edge) for name, *ends in phases for t_s, edge in zip(ends, ("begin", "end"), strict=True)]
        for offset, (t_s, name, edge) in enumerate(marks):
            self._insert("phases", run_id=run_id, offset=offset, t_s=t_s, name=name, edge=edge)
        for k, sample in enumerate(samples):
            self._insert("conditions", run_id=run_id, at=started_at + k * every_s, data_json=json.dumps(sample))

    def watched(self, run_id: int, samples: Iterable[Mapping[str, Any]], every_s: float = 1.0) -> None:
        """Add the course of the sensors of a run of 30 s, measured from 5.2 s to 25.2 s."""
        self.db.execute("UPDATE runs SET started_at = 1e9 WHERE id = ?", [run_id])
        marks = ((0.0, "setup", "begin"), (5.2, "setup", "end"), (5.2, "measure", "begin"), (25.2, "measure", "end"))
        for offset, (t_s, name, edge) in enumerate(marks):
            self._insert("phases", run_id=run_id, offset=offset, t_s=t_s, name=name, edge=edge)
        for k, sample in enumerate(samples):
            self._insert("conditions", run_id=run_id, at=1e9 + k * every_s, data_json=json.dumps(sample))

    def metric(self, run_id: int, name: str, value: float) -> None:
        self._insert("metrics", run_id=run_id, offset=1, name=name, value=value, unit="nats")

    def many(self, n_runs: int, n_iterations: int = 0) -> None:
        """`n_runs` summarised runs over 2 devices x 2 modes."""
        self.db.execute("BEGIN")
        for k in range(n_runs):
            run_id = self.run(("cpu", "mps")[k % 2], k % 4 > 1, 0.1 * (1 + k % 2 + k % 97 * 1e-4))
            self.iterations(run_id, [0.1] * n_iterations)
        self.db.execute("COMMIT")

    def report(self, name: str = "devices", **options: Any) -> Result:
        """The report as `mpsq report` makes it, from a read-only connection."""
        with read.reading(self.layout.db) as connection:
            return reports.run(name, connection, read_options(**options))


def rows(result: Result) -> dict[str, Mapping[str, Any]]:
    """The rows of the default report by their labels."""
    return {row["label"]: row for row in result.rows}


def words(result: Result) -> str:
    """All sentences of a report."""
    return "\n".join([*result.lines, *result.notes])


class Models(Store):
    """Runs of resnet50 as jobs/resnet50_torch.py reports them; a run for each time."""

    def train(self, device: str, *times: float, evaluates: bool = False, **run: Any) -> None:
        params = {"mode": "eval"} if evaluates else {}
        hello = {
            "workload": "resnet50-eval" if evaluates else "resnet50", "tokens_per_iter": None, "samples_per_iter": 128,
            "flops_per_iter": (1.0 if evaluates else 3.0) * 128 * 8.2e9,
            "optimizer": None if evaluates else "SGD(fused)",
            **({"device_name": "NVIDIA H200"} if device == "cuda" else {}),
        }  # fmt: skip
        for time_s in times:
            spec = {"workload": "resnet50", "config": "full", "hello": hello, **run}
            self.run(device, median_s=time_s, **{**spec, "params": {**params, **run.get("params", {})}})

    def evaluate(self, device: str, *times: float, **run: Any) -> None:
        self.train(device, *times, evaluates=True, **run)


def around(time_s: float, n: int = 4) -> list[float]:
    return [time_s * (1 + k * 1e-3) for k in range(n)]
