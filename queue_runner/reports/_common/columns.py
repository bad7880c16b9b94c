"""Columns that several reports share: the key in csv and json, the heading, and the format of a value in tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from queue_runner import units
from queue_runner.model import Row
from queue_runner.monitor.run_view import outcome_style
from queue_runner.tables import Column
from queue_runner.text import one_line


@dataclass(frozen=True)
class RowColumn(Column):
    """A column whose text is made of several values of a row: `words` takes the whole row."""

    words: Callable[[Row], str] = str

    def show(self, row: Row) -> str:
        return one_line(self.words(row))


def short(x_s: Any) -> str:
    """Format seconds with 3 digits, in the fitting unit."""
    return units.short_duration(x_s, 3)


def as_printed(share: float | None) -> str:
    """Format a share of 1 as nanoGPT's train.py prints its mfu: "1.69 %", "0.19 %"."""
    return units.MISSING if share is None else f"{share * 100:.2f} %"


_SHARED = (
    Column("workload", "workload"),
    Column("model", "model"),
    Column("config", "config"),
    Column("label", "label"),
    Column("framework", "framework"),
    Column("framework_version", "version"),
    Column("device", "device"),
    Column("device_name", "device name"),
    Column("compile", "compile"),
    Column("dtype", "dtype"),
    Column("factors", "factors", str),
    Column("settings", "settings", str),
    Column("run", "run"),
    Column("runs", "runs", " ".join),
    Column("n_runs", "number of runs", units.count, True),
    Column("n_valid", "valid", units.count, True),
    Column("valid", "valid"),
    Column("compared", "compared"),
    Column("outcome", "outcome", style=lambda row: outcome_style(row["outcome"])),
    Column("direction", "direction"),
    Column("n_iters", "iterations", units.count, True),
    Column("n_measure", "measured", units.count, True),
    Column("n_samples", "samples", units.count, True),
    Column("i", "i", units.count, True),
    Column("loss", "loss", units.loss, True),
    Column("loss_last", "batch loss", units.loss, True),
    Column("val_loss_last", "val loss", units.loss, True),
    Column("eval_step_first", "first step", units.count, True),
    Column("eval_step_last", "at step", units.count, True),
    Column("eval_train_loss", "eval train", units.loss, True),
    Column("eval_val_loss", "eval val", units.loss, True),
    Column("projected_real_s", "projected total", units.duration, True),
    Column("time_of", "time of"),
    Column("median_s", "time", units.short_duration, True),
    Column("spread_s", "spread", units.short_duration, True),
    Column("spread_over", "spread over"),
    Column("q1_s", "lower quartile", units.short_duration, True),
    Column("q3_s", "upper quartile", units.short_duration, True),
    Column("first_iter_s", "first iteration", units.short_duration, True),
    Column("tokens_per_s", "tokens/s", units.number, True),
    Column("samples_per_s", "samples/s", units.number, True),
    Column("flops_per_s", "FLOP/s", units.flops_per_s, True),
    Column("bytes_per_s", "bytes/s", units.number, True),
    Column("mfu", "MFU", units.percent, True),
    Column("mfu_printed", "printed MFU", as_printed, True),
    Column("peak_flops", "peak", units.flops_per_s, True),
    Column("peak_source", "peak source"),
    Column("real_s", "real", units.seconds, True),
    Column("user_s", "user", units.seconds, True),
    Column("sys_s", "sys", units.seconds, True),
    Column("max_rss_bytes", "max RSS", units.size, True),
    Column("peak_reserved_bytes", "GPU memory", units.size, True),
    Column("allocated_bytes", "allocated", units.size, True),
    Column("is_baseline", "baseline"),
    Column("speedup", "speedup", units.ratio, True),
    Column("speedup_low", "95 % low", units.ratio, True),
    Column("speedup_high", "95 % high", units.ratio, True),
    Column("p", "p", lambda p: units.number(p, 2), True),
    Column("p_corrected", "p (Holm)", lambda p: units.number(p, 2), True),
    Column("verdict", "verdict"),
    Column("same_within", "same within", lambda share: units.percent(share, 2), True),
    Column("seen", "would be seen", lambda share: units.percent(share, 2), True),
    Column("taints", "taints", " ".join),
)
_BY_KEY = {column.key: column for column in _SHARED}


def columns(*parts: str | Column) -> tuple[Column, ...]:
    """Return the columns of a report in order: shared ones as keys separated by spaces, its own as Columns.

    Raises: KeyError for a key that is not shared.
    """
    chosen: list[Column] = []
    for part in parts:
        chosen += [_BY_KEY[key] for key in part.split()] if isinstance(part, str) else [part]
    return tuple(chosen)
