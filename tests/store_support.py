"""Support of tests of the store: the claim of a run, and the statements that a transaction runs."""

from __future__ import annotations

import time
from typing import Any

import pytest

from queue_runner.lanes import Lane
from queue_runner.model import DEFAULT_LANE
from queue_runner.store import lane_claims
from queue_runner.store.engine import Connection
from queue_runner.store.jobs import Claimed


def claim_next(connection: Connection, *, token: str = "t" * 32, now: float | None = None) -> Claimed | None:
    """Claim the next run that may start, as a worker without lanes does; None where there is none."""
    at = time.time() if now is None else now
    for run in [*lane_claims.waiting(connection, at)][:1]:
        return lane_claims.claim(connection, Lane(DEFAULT_LANE), token, "boot", run.run_id, at)
    return None


def statements_of(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which every statement that runs from now on is appended; one for many rows is appended once."""
    statements: list[str] = []

    def noting(method: Any) -> Any:
        def run(connection: Connection, statement: Any, *values: Any) -> Any:
            statements.append(str(statement))
            return method(connection, statement, *values)

        return run

    for name in ("rows", "each", "change", "change_all", "execute"):
        monkeypatch.setattr(Connection, name, noting(getattr(Connection, name)))
    return statements
