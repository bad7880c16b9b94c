"""The chart of the report trend: a line per row, with its steps and what changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pages.pages_fixture import page_of
from tests.pages.test_render import HOSTILE, Seen
from tests.reports.test_trend import Nights

pytestmark = pytest.mark.process


def test_each_row_has_a_line_with_its_step_and_the_versions(tmp_path: Path) -> None:
    store = Nights(tmp_path / "home")
    text = HOSTILE["markup"] if "markup" in HOSTILE else next(iter(HOSTILE.values()))
    store.nights(lambda k: 0.1 if k < 12 else 0.106)
    store.nights(lambda k: 0.4, device="cpu", name=text)
    page = page_of(store, "trend")
    assert page.count('<path class="sample"') == 2 and page.count('class="dot"') == 40
    assert page.count("a step at g13") == 1 and "g13: macOS 26.1 -&gt; 26.2" in page
    assert "6.4 % slower" in Seen(page).text and not [
        name for name, _ in Seen(page).attributes if name.startswith("on")
    ]
