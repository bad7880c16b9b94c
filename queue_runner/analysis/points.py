"""The points of a run as they are stored: iterations, evaluations, borders of phases."""

from __future__ import annotations

from typing import NamedTuple


class IterationPoint(NamedTuple):
    """An iteration; `phase` is an index into model.PHASES, `synced` 0, 1 or model.SYNC_UNKNOWN."""

    i: int
    dur_s: float
    loss: float | None
    phase: int
    synced: int
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None


class EvalPoint(NamedTuple):
    i: int
    split: str
    metric: str
    value: float | None


class PhaseMark(NamedTuple):
    """A border of a phase, in seconds since the start of the run; `edge` is "begin" or "end"."""

    t_s: float
    name: str
    edge: str
