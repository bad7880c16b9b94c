"""Progress of the running run, as far as its events are stored. Each further look reads only what is new."""

from __future__ import annotations

import sqlite3
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from queue_runner.model import PHASES

NEWEST = 200
"""Number of newest measured iterations from which the time per iteration of a running job is computed."""


@dataclass(frozen=True)
class RunProgress:
    """Progress of the running run. Times in seconds; None is unknown. `iters` are the iterations done, including those
    before the checkpoint that a resumed run continued from."""

    phase: str | None
    iters: int
    planned_iters: int | None
    median_s: float | None
    loss: float | None
    elapsed_s: float | None
    left_s: float | None


class Tracker:
    """A tracker of one run after another. A look costs only what is new since the last one, however long the run is."""

    def __init__(self) -> None:
        self._begin(None)

    def _begin(self, run_id: int | None) -> None:
        self._run_id = run_id
        self.newest_s: deque[float] = deque(maxlen=NEWEST)
        """Times of the newest measured iterations in seconds, the oldest first."""
        self._iters = self._first = 0
        self._loss: float | None = None
        self._open: list[str] = []
        self._iteration_offset = self._phase_offset = -1

    def look(self, connection: sqlite3.Connection, row: Mapping[str, Any]) -> RunProgress:
        """Return the current progress of a run; `row` is its newest row of v_run."""
        if row["run_id"] != self._run_id:
            self._begin(row["run_id"])
        self._read_iterations(connection)
        self._read_phases(connection)
        times = sorted(self.newest_s)
        median_s = times[len(times) // 2] if times else None
        planned = row["planned_iters"]
        iters = self._iters + (self._first if row["resumed_from"] else 0)
        return RunProgress(
            phase=self._open[-1] if self._open else None,
            iters=iters,
            planned_iters=planned,
            median_s=median_s,
            loss=self._loss,
            elapsed_s=max(time.time() - (row["started_at"] or row["claimed_at"]), 0.0),
            left_s=max(planned - iters, 0) * median_s if planned and median_s is not None else None,
        )

    def _read_iterations(self, connection: sqlite3.Connection) -> None:
        values = [self._run_id, self._iteration_offset]
        (counted,) = connection.execute(
            "SELECT count(*) AS n, min(i) AS first, max(offset) AS last FROM iterations"
            " WHERE run_id = ? AND offset > ?",
            values,
        )
        if not counted["n"]:
            return
        newest = list(
            connection.execute(
                "SELECT dur_s, loss, phase FROM iterations WHERE run_id = ? AND offset > ? AND offset <= ?"
                " ORDER BY offset DESC LIMIT ?",
                [*values, counted["last"], NEWEST],
            )
        )
        if not self._iters:
            self._first = counted["first"]
        self._iters += counted["n"]
        self._iteration_offset = counted["last"]
        self.newest_s.extend(r["dur_s"] for r in reversed(newest) if PHASES[r["phase"]] == "measure")
        self._loss = next((r["loss"] for r in newest if r["loss"] is not None), self._loss)

    def _read_phases(self, connection: sqlite3.Connection) -> None:
        """Read the phases that have begun and not ended, the innermost last."""
        new = connection.execute(
            "SELECT offset, name, edge FROM phases WHERE run_id = ? AND offset > ? ORDER BY offset",
            [self._run_id, self._phase_offset],
        )
        for edge in new:
            self._phase_offset = edge["offset"]
            if edge["edge"] == "begin":
                self._open.append(edge["name"])
            elif edge["name"] in self._open:
                del self._open[self._open.index(edge["name"]) :]
