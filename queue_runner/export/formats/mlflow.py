"""MLflow's tracking store, by MLflow's own client: one SQLite file, without a server."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from queue_runner.export._common import scalars
from queue_runner.export._common.library import need
from queue_runner.export._common.selected import Selected, SelectedRun
from queue_runner.model import Outcome, State

NAME = "mlflow"
HELP = "a tracking store of MLflow in one SQLite file, without a server (mlflow-skinny)"
FILE = "mlflow.db"
_AT_ONCE = 1000
"""Metrics of one log_batch: the most that MLflow takes."""
_PARAMS = ("workload", "framework", "framework_version", "config", "device", "device_name", "compile", "dtype", "seed")
_TAGS = (
    *("run", "kind", "name", "state", "outcome", "exit_code", "reason", "taints", "tags", "note", "argv", "spec_hash"),
)
_MOST_LETTERS = 5000
_STATUS = {Outcome.SUCCEEDED: "FINISHED", Outcome.CANCELLED: "KILLED", Outcome.KILLED: "KILLED"}


def write(selected: Selected, folder: Path) -> None:
    """Write an experiment for each workload or command, a run for each run. The time of every value is the run's start.

    Raises: UsageError without mlflow.
    """
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # read when mlflow is imported: an export tells nobody
    need("mlflow", "mlflow")
    entities, tracking = need("mlflow.entities", "mlflow"), need("mlflow.tracking", "mlflow")
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    client = tracking.MlflowClient(tracking_uri=f"sqlite:///{(folder / FILE).absolute()}")
    experiments: dict[str, str] = {}
    for run in selected.runs:
        subject = run.run.workload or run.run.name
        if subject not in experiments:
            experiments[subject] = client.create_experiment(subject, artifact_location="./artifacts")
        _write_run(client, entities, experiments[subject], selected, run)


def _write_run(client: Any, entities: Any, experiment: str, selected: Selected, run: SelectedRun) -> None:
    at_ms, known = round(run.at * 1000), run.known
    tags = {f"mpsq.{name}": str(known[name])[:_MOST_LETTERS] for name in _TAGS if name in known}
    tags |= {"mpsq.valid": str(run.valid).lower(), "mlflow.user": "mpsq", "mlflow.source.name": "mpsq export"}
    made = client.create_run(experiment, start_time=at_ms, tags=tags, run_name=run.title)
    params = {name: known[name] for name in _PARAMS if name in known}
    params |= {f"set.{name}": value for name, value in run.settings.items()}
    names = scalars.Names()
    written = [entities.Param(names.of(name), str(value)[:_MOST_LETTERS]) for name, value in params.items()]
    for some in _batches(written, 100):
        client.log_batch(made.info.run_id, params=some)
    summary = [scalars.Scalar(name, 0, value) for name, value in scalars.of_summary(run).items()]
    for values in (summary, scalars.of_run(selected, run.run.run_id)):
        metrics = (entities.Metric(scalar.name, scalar.value, at_ms, scalar.step) for scalar in values)
        for some in _batches(metrics, _AT_ONCE):
            client.log_batch(made.info.run_id, metrics=some)
    if run.run.outcome is not None:
        ended_ms = round(run.run.ended_at * 1000) if run.run.ended_at else at_ms
        client.set_terminated(made.info.run_id, _STATUS.get(Outcome(run.run.outcome), "FAILED"), ended_ms)
    else:
        client.update_run(made.info.run_id, "RUNNING" if run.run.state == State.RUNNING else "SCHEDULED")


def _batches(values: Iterable[Any], n: int) -> Iterator[list[Any]]:
    rest = iter(values)
    while some := list(islice(rest, n)):
        yield some
