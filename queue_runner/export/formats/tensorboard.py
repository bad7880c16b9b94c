"""TensorBoard's event files, by tensorboardX: a folder for each run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from queue_runner.export._common import scalars
from queue_runner.export._common.library import need
from queue_runner.export._common.selected import Selected

NAME = "tensorboard"
HELP = "a log directory of TensorBoard, a folder for each run (tensorboardX)"


def write(selected: Selected, folder: Path) -> None:
    """Write a folder for each run, whose name says when the run is not valid.

    The wall time of every value is that of the run's start: iterations have durations, not times of day. Values are
    float32, as in every such file. Raises: UsageError without tensorboardX.
    """
    tensorboard_x = need("tensorboardX", "tensorboard")
    for run in selected.runs:
        place = folder / re.sub(r"[^\w.=+()-]+", " ", run.title).strip()[:100]
        writer = tensorboard_x.SummaryWriter(logdir=str(place), max_queue=1000, flush_secs=3600)
        try:
            writer.add_text("run", _as_table(run.known), 0, run.at)
            for name, value in scalars.of_summary(run).items():
                writer.add_scalar(name, value, 0, run.at)
            for scalar in scalars.of_run(selected, run.run.run_id):
                writer.add_scalar(scalar.name, scalar.value, scalar.step, run.at)
        finally:
            writer.close()
        for path in place.glob("events.out.tfevents.*"):  # named by the library after this machine
            path.rename(place / f"events.out.tfevents.{run.at:.0f}.mpsq")


def _as_table(known: Mapping[str, object]) -> str:
    """Return the known values of a run as a Markdown table."""
    texts = {name: str(value).replace("|", "\\|").replace("\n", " ") for name, value in known.items()}
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in texts.items())])
