"""Metrics that rows are compared by, besides the time: which of them a question compares, and which get verdicts. Pure.

A metric is a number that a run ends with: one that --metric reads from its log, one that the program sends, or its last
training or validation loss.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from statistics import fmean

from queue_runner.analysis.grouping import Arm, round_of, seed_of
from queue_runner.analysis.intervals import FIRST_LOOK
from queue_runner.analysis.reported_run import ReportedRun

LOSSES = {"train_loss": "loss_last", "val_loss": "val_loss_last"}
"""The losses that a run ends with, by the column of v_run. A metric that has the same name is used instead."""
LARGEST = 1e100
"""A diverged run may print more, and its square would overflow."""
INTERNAL = frozenset(
    [
        *("cpu_s", "recompilations", "graph_breaks", "neighbour_busy_share", "reference_loss_cpu"),
        *("reference_loss_device", "mfu_printed", "loss_mean", "mean_step", "train_runtime", "majority_accuracy"),
        *("peak", "peak_allocated_bytes", "peak_reserved_bytes", "prefill_tokens_per_s", "decode_tokens_per_s"),
        *("sample_characters", "samples", "sample_tokens"),
    ]
)
"""Metrics of mpsq's own programs and parsers that other reports read. So are those with a dot or slash, of cells."""
_LOSS = re.compile(r"(^|[^a-z])loss$", re.IGNORECASE)
_LEARNS = ("subject", "config", "dtype")
"""Values that, like the settings of a row, change its training."""


def is_loss(name: str) -> bool:
    """Whether the lowest value of a metric is the best, by its name."""
    return _LOSS.search(name) is not None


def value(row: ReportedRun, name: str) -> float | None:
    """Return the run's last value of the metric; None if it has none, or one that is not a number or too large."""
    x = row.metrics.get(name)
    if x is None and name in LOSSES:
        x = getattr(row, LOSSES[name])
    return x if x is not None and abs(x) <= LARGEST else None


def obstacles(arms: Sequence[Arm], named: Collection[str] = ()) -> dict[str, str]:
    """Return the metrics that these rows are compared by, each with what prevents a verdict, "" if nothing does.

    Those that are `named` are always compared. Losses are compared where the rows train
    differently, over the same number of iterations. Losses of one training on several devices answer another question
    (the report `numerics`), and each verdict on them would cost the times rounds.
    """
    rows = [row for arm in arms for row in arm.used]
    names = dict.fromkeys([*(name for row in rows for name in row.metrics), *named])
    training = {*_LEARNS, *(name for arm in arms for row in arm.runs for name in row.settings)}
    differently = any(len({str(arm.key.get(name)) for arm in arms}) > 1 for name in training)
    if differently and len({row.n_iters for row in rows}) == 1:
        names |= dict.fromkeys(LOSSES)
    compared = {name: _same_seed(arms) or _repeated(arms, name) for name in names if _varies(arms, name, name in named)}
    several = sum(bool(arm.used) for arm in arms) > 1
    for name in {*named} - compared.keys():
        no_run = all(value(row, name) is None for row in rows)
        why = "no run has it: check its name, and the pattern of --metric" if no_run else _IN_ONE_ROW
        compared[name] = why if several else ""
    return compared


_IN_ONE_ROW = "fewer than two rows have it; --metric reads it from the output, mpsq_report sends it"


def mean(arm: Arm, name: str) -> float | None:
    """Return the mean of the metric over the shown runs; None if none has it."""
    values = [x for row in arm.shown if (x := value(row, name)) is not None]
    return fmean(values) if values else None


def _varies(arms: Sequence[Arm], name: str, is_named: bool) -> bool:
    """Return whether two rows have the metric, and not all runs the same value: the number of parameters answers
    nothing, unless somebody asks about it."""
    values = [{x for row in arm.used if (x := value(row, name)) is not None} for arm in arms]
    return sum(map(bool, values)) > 1 and (is_named or len(set().union(*values)) > 1)


def _same_seed(arms: Sequence[Arm]) -> str:
    """Return the obstacle of rounds with one seed: their differences are nearly constant, so a verdict is too sure."""
    for arm in arms:
        seeds = {*map(seed_of, arm.used)}
        if len({round_of(row) for row in arm.used}) > 1 and len(seeds) == 1:
            return "the seed did not change with the round; leave --seed out"
    return ""


def _repeated(arms: Sequence[Arm], name: str) -> str:
    """Return the obstacle of a program whose values are the same in all rounds: it ignores the seed."""
    for arm in arms:
        values = [x for row in arm.used if (x := value(row, name)) is not None]
        if len(values) >= FIRST_LOOK and len({*values}) == 1:
            return "a row repeats it; use MPSQ_SEED as seed"
    return ""
