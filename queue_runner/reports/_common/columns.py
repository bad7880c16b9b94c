"""Columns that several reports share: the key in csv and json, the heading, and the format of a value in tables."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from queue_runner import units
from queue_runner.monitor.run_view import outcome_style
from queue_runner.tables import Column


def short(x_s: Any) -> str:
    """Format seconds with 3 digits, in the fitting unit."""
    return units.short_duration(x_s, 3)


def _of_verdict(name: str) -> Callable[[Any], Any]:
    """Return how to read a value of a row's verdict on the time, which is named `judged`."""
    return lambda row: getattr(row.judged, name, None)


def _of_answer(name: str) -> Callable[[Any], Any]:
    """Return how to read a value of a row's answer: its verdict, or with --by the answer on the metric."""
    return lambda row: getattr(row.answer, name, None)


def _rounded(name: str) -> Callable[[Any], Any]:
    """Return how to read a count of bytes or iterations, which is a median for rows of several runs."""
    return lambda row: None if (value := getattr(row, name)) is None else round(value)


_SHARED = (
    Column("table", "table", units.count, True),
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
    Column("outcome", "outcome", style=lambda row: outcome_style(row.outcome)),
    Column("direction", "direction"),
    Column("n_iters", "iterations", units.count, True, value=_rounded("n_iters")),
    Column("n_measure", "measured", units.count, True, value=_rounded("n_measure")),
    Column("n_samples", "samples", units.count, True),
    Column("i", "i", units.count, True),
    Column("loss", "loss", units.loss, True),
    Column("loss_last", "batch loss", units.loss, True),
    Column("val_loss_last", "val loss", units.loss, True),
    Column("eval_step_first", "first step", units.count, True),
    Column("eval_step_last", "at step", units.count, True),
    Column("eval_train_loss", "eval train", units.loss, True),
    Column("eval_val_loss", "eval val", units.loss, True),
    Column("projected_real_s", "projected full run", units.duration, True),
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
    Column("peak_flops", "peak", units.flops_per_s, True, value=lambda row: row.peak and row.peak.flops),
    Column("peak_source", "peak source", value=lambda row: row.peak and row.peak.source),
    Column("real_s", "real", units.seconds, True),
    Column("user_s", "user", units.seconds, True),
    Column("sys_s", "sys", units.seconds, True),
    Column("max_rss_bytes", "max RSS", units.size, True, value=_rounded("max_rss_bytes")),
    Column("peak_reserved_bytes", "GPU memory", units.size, True, value=_rounded("peak_reserved_bytes")),
    Column("allocated_bytes", "allocated", units.size, True),
    Column("is_baseline", "baseline"),
    Column("speedup", "speedup", units.ratio, True),
    Column("speedup_low", "95 % low", units.ratio, True, value=_of_verdict("low")),
    Column("speedup_high", "95 % high", units.ratio, True, value=_of_verdict("high")),
    Column("verdict", "verdict", value=lambda row: row.answer and str(row.answer.word)),
    Column("undecided_because", "undecided because", value=lambda row: (row.answer and row.answer.next_step) or None),
    Column("n_machines", "machines", units.count, True),
    Column("n_rounds", "rounds", units.count, True, value=_of_answer("n")),
    Column("given_after", "word after", units.count, True, value=_of_answer("given_after")),
    Column("more_rounds", "more rounds", units.count, True, value=_of_answer("more")),
    Column("same_within", "same within", lambda share: units.percent(share, 2), True, value=_of_verdict("same_within")),
    Column("metrics", "metrics", str, value=lambda row: {name: x.as_json() for name, x in row.metrics.items()}),
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


def of_answer(name: str, key: str = "") -> Column:
    """Return the column of a value of a row's answer, under another key if its name is not what tables show."""
    return Column(key or name, (key or name).replace("_", " "), value=_of_answer(name))


def shared(key: str, value: Callable[[Any], Any]) -> Column:
    """Return a shared column with another way to read its value."""
    return replace(_BY_KEY[key], value=value)


def through(attribute: str, keys: str) -> tuple[Column, ...]:
    """Return shared columns of rows that have these values in an attribute: `through("run", "device dtype")`."""
    return tuple(replace(column, value=attrgetter(f"{attribute}.{column.key}")) for column in columns(keys))
