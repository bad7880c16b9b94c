"""Tests see which statements a transaction runs."""

from __future__ import annotations

from typing import Any

import pytest

from queue_runner.store.engine import Connection


def statements_of(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which every statement that runs from now on is appended; one for many rows is appended once."""
    statements: list[str] = []

    def noting(method: Any) -> Any:
        def run(connection: Connection, statement: Any, *values: Any) -> Any:
            statements.append(str(statement))
            return method(connection, statement, *values)

        return run

    for name in ("rows", "each", "records", "change", "change_all", "execute"):
        monkeypatch.setattr(Connection, name, noting(getattr(Connection, name)))
    return statements
