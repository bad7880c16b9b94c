"""TensorBoard's event files, by tensorboardX: a folder for each run, with its numbers as series over iterations."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from queue_runner.export.formats import need
from queue_runner.export.selected import EVALS, ITERATIONS, METRICS, RUNS, Selected, SelectedRun
from queue_runner.tables import elide

NAME = "tensorboard"
HELP = "a log directory of TensorBoard, a folder for each run (tensorboardX)"
_NUMBERS = ("dur_s", "loss", "allocated_bytes", "reserved_bytes")
_SUMMARY = frozenset({"n_iters", "n_measure", "loss_first", "loss_last", "loss_min", "val_loss_last"})
_MOST_COLUMNS = 100
"""Of the name of a folder: file systems take 255 bytes, and a letter of one column has up to two, of two up to four."""


def write(selected: Selected, folder: Path) -> None:
    """Write a folder for each run, whose name says when the run is not valid.

    The wall time of every value is that of the run's start: iterations have durations, not times of day. Values are
    float32, as in every such file. Raises: UsageError without tensorboardX.
    """
    tensorboard_x = need("tensorboardX")
    for run in selected.runs:
        known = {field.name: x for field, x in zip(RUNS.fields, run.values, strict=True) if x is not None}
        at = known.get("started_at") or known.get("ended_at") or known.get("created_at") or 0.0
        place = folder / folder_name(run)
        writer = tensorboard_x.SummaryWriter(logdir=str(place), max_queue=1000, flush_secs=3600)
        try:
            writer.add_text("run", _as_table(known), 0, at)
            for name, value in known.items():
                if (name.endswith(("_s", "_bytes")) and name != "backoff_s") or name in _SUMMARY:
                    writer.add_scalar(f"run/{name}", value, 0, at)
            for name, step, value in _scalars(selected, run.id):
                writer.add_scalar(name, value, step, at)
        finally:
            writer.close()
        for path in place.glob("events.out.tfevents.*"):  # named by the library after this machine
            path.rename(place / f"events.out.tfevents.{at:.0f}.mpsq")


def folder_name(run: SelectedRun) -> str:
    """Return the run and its settings; of a long one the middle is left out."""
    title = re.sub(r"[^\w.=+()-]+", " ", run.title).strip()
    return elide(title, _MOST_COLUMNS) + ("" if run.valid else " (not valid)")


def _scalars(selected: Selected, run_id: int) -> Iterator[tuple[str, int, float]]:
    """Yield the numbers of a run by name, with the unit in it, and step: the iteration; of a metric without one, how
    many of that name came before."""
    for i, *numbers in selected.of_run(ITERATIONS, run_id, "i", *_NUMBERS):
        yield from ((f"iteration/{name}", i, x) for name, x in zip(_NUMBERS, numbers, strict=True) if x is not None)
    for i, split, metric, value, dur_s in selected.of_run(EVALS, run_id, "i", "split", "metric", "value", "dur_s"):
        series = f"eval/{split}/{metric}"
        yield from ((name, i, x) for name, x in ((series, value), (f"{series}/dur_s", dur_s)) if x is not None)
    counts: Counter[str] = Counter()
    for i, name, value, unit in selected.of_run(METRICS, run_id, "i", "name", "value", "unit"):
        suffix = (unit or "").replace("/", "_per_").replace("%", "percent")
        series = name if not suffix or name.endswith(f"_{suffix}") else f"{name}_{suffix}"
        if value is not None:
            yield f"metric/{series}", i if i is not None else counts[series], value
        counts[series] += 1


def _as_table(known: Mapping[str, object]) -> str:
    """Return the known values of a run as a Markdown table."""
    texts = {name: str(value).replace("|", "\\|").replace("\n", " ") for name, value in known.items()}
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in texts.items())])
