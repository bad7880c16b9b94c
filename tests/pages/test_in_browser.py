"""The page of a report in Chromium, from a file: complete and quiet, on a phone, a desk and paper, light and dark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser_support import DESK, PHONE, opened
from tests.pages.pages_fixture import evening, written
from tests.pages.test_render import HOSTILE
from tests.reports.report_fixture import Store
from tests.reports.test_trend import Nights

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.process, pytest.mark.needs_program("chromium")]

DRAWN = "Array.from(document.querySelectorAll('figure.plot canvas')).map(c => c.toDataURL().length)"
"""The sizes of the pictures that uPlot drew: an empty one is small."""

BEYOND = """[...document.querySelectorAll('table')].filter(t => [...t.querySelectorAll('th')].some(
    th => th.textContent === 'verdict')).flatMap(t => [...t.querySelectorAll('td')]).filter(
    td => td.getBoundingClientRect().left + td.scrollWidth > innerWidth).map(td => td.textContent)"""
"""The cells of the tables that have verdicts whose text goes beyond the right edge."""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evening")
    return written(evening(Store(folder / "home")), folder / "out.html")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_it_opens_quietly_and_fits(browser: Browser, page: Path, width: int, scheme: str) -> None:
    with opened(browser, width, scheme) as seen:
        seen.page.goto(page.as_uri())
        assert seen.troubles == []
        assert seen.foreign(page.as_uri()) == [] and seen.requests[0] == page.as_uri()
        assert not seen.scrolls_sideways()
        assert (width == PHONE) != (scheme == "light") or seen.barriers() == []
        assert seen.page.evaluate(BEYOND) == [], "verdicts are not scrolled to"
        assert len(seen.page.evaluate(DRAWN)) == 2 and min(seen.page.evaluate(DRAWN)) > 5000
        seen.picture(f"report-{width}-{scheme}")
        ground = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(255, 255, 255)") is (scheme == "light")


def test_the_page_of_a_trend_fits(browser: Browser, tmp_path: Path) -> None:
    store = Nights(tmp_path / "home")
    store.nights(lambda k: 0.1 if k < 12 else 0.106)
    page = written(store, tmp_path / "out.html", "trend")
    with opened(browser, PHONE, "dark") as seen:
        seen.page.goto(page.as_uri())
        assert not seen.scrolls_sideways() and seen.barriers() == [] and seen.troubles == []
        seen.picture("trend")


def test_the_buttons_of_a_plot_work(browser: Browser, page: Path) -> None:
    with opened(browser, DESK, "light") as seen:
        seen.page.goto(page.as_uri())
        figure = seen.page.locator("figure.plot").first
        before = figure.locator("canvas").evaluate("c => c.toDataURL()")
        said = figure.locator(".said")
        assert "19 iterations" in said.inner_text()
        figure.get_by_role("button", name="whole range").click()
        assert said.inner_text() == ""
        figure.get_by_role("button", name="cpu eager").click()
        assert figure.get_by_role("button", name="cpu eager").get_attribute("aria-pressed") == "false"
        figure.get_by_role("button", name="logarithmic").click()
        seen.page.wait_for_function(
            "before => document.querySelector('figure.plot canvas').toDataURL() !== before", arg=before
        )
        assert seen.troubles == []


def test_without_a_script_dots_tables_and_time_lines_are_there(browser: Browser, page: Path) -> None:
    with opened(browser, java_script_enabled=False) as seen:
        seen.page.goto(page.as_uri())
        assert seen.page.locator("circle.dot, svg.out").count() == 23  # 4 rows and 19 runs
        assert seen.page.locator("rect.block.measure").count() > 10
        assert seen.page.locator(".no-script").is_visible()
        assert not seen.page.locator("figure.plot").first.is_visible()


def test_on_paper_it_is_black_on_white(browser: Browser, page: Path) -> None:
    with opened(browser, DESK, "dark") as seen:
        seen.page.goto(page.as_uri())
        seen.page.emulate_media(media="print")
        assert seen.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert not seen.page.locator(".tools").first.is_visible()
        seen.picture("report-print")
        assert len(seen.page.pdf()) > 20_000


def test_a_script_of_a_user_never_runs(browser: Browser, tmp_path: Path) -> None:
    store = evening(Store(tmp_path / "home"), 2, 20)
    for text in HOSTILE.values():
        shown = text.encode("utf-8", "replace").decode()
        for median_s in (0.1, 0.2):
            run_id = store.run("cpu", False, median_s, dtype=shown, taints={"drift": ("caveat", shown)})
            store.iterations(run_id, [median_s] * 5)
    page = written(store, tmp_path / "out.html")
    with opened(browser, PHONE, "light") as seen:
        seen.page.goto(page.as_uri())
        assert seen.troubles == [] and seen.foreign(page.as_uri()) == []
        assert seen.page.locator("img").count() == 0
        assert not seen.scrolls_sideways()
        assert seen.page.get_by_text("onerror=alert(1)").count() > 0
        seen.picture("report-hostile")
