"""examples/overnight: each change applies to the files that ship, and to those that the changes before it leave."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.fast

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "overnight"


def test_each_change_applies_to_any_champion() -> None:
    spec = importlib.util.spec_from_file_location("propose", FOLDER / "propose.py")
    assert spec is not None and spec.loader is not None
    propose = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(propose)
    texts = {name: (FOLDER / name).read_text() for name in propose.FILES}
    together = texts
    assert len(propose.CHANGES) == 10
    for change in propose.CHANGES.values():
        alone, together = propose.applied(change, texts), propose.applied(change, together)
        assert alone != texts
        for text in (*alone.values(), *together.values()):
            ast.parse(text)
