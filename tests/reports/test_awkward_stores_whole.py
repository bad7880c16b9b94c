"""Every report of every awkward store: no traceback, something said, in 80 columns. Here for its length alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from queue_runner import reports
from queue_runner.errors import MpsqError
from queue_runner.reports._common import printing
from tests.reports import test_awkward_stores as awkward
from tests.reports.report_fixture import Store

pytestmark = pytest.mark.process

OPTIONS: Sequence[dict[str, Any]] = (
    {}, {"where": ["device=quantum"]}, {"vs": "device=cpu"}, {"group_by": "device"}, {"group_by": "framework"},
    {"include_invalid": True}, {"iters": "1000:2000"},
)  # fmt: skip


@pytest.fixture
def store(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    made = Store(tmp_path / "home")
    yield made
    made.db.close()


@pytest.mark.parametrize(
    "fill",
    [
        awkward.nothing,
        awkward.one,
        awkward.failed,
        awkward.one_iteration,
        awkward.contended,
        awkward.lost,
        awkward.versions,
        awkward.commands,
    ],
)
def test_every_report_of_an_awkward_store_says_something_in_80_columns(
    store: Store, fill: Callable[[Store], None]
) -> None:
    fill(store)
    for name in reports.names():
        for options in OPTIONS:
            try:
                result = store.report(name, **options)
            except MpsqError as error:
                assert error.hint, (name, options, error.message)
                continue
            text = printing.as_text(name, result, "table")
            assert text.strip() and max(map(len, text.splitlines())) <= 80, (name, options, text)
            assert "None" not in text and printing.as_text(name, result, "json"), (name, options, text)
