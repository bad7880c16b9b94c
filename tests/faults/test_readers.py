"""Readers of foreign bytes refuse them, or read them, and never end with another error (readers.py)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.readers import READERS, try_reader

pytestmark = pytest.mark.process

EXAMPLES = 20_000 if os.environ.get("MPSQ_FAULTS") == "long" else 120


@pytest.mark.parametrize("name", sorted(READERS))
def test_a_reader_of_foreign_bytes(name: str, tmp_path: Path) -> None:
    try_reader(name, tmp_path, EXAMPLES)
