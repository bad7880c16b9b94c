"""mpsq web as people see it: the real server and a real browser, on a queue whose worker runs."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from queue_runner.host.run_dir import RunDir
from queue_runner.model import Ending, Outcome
from queue_runner.spec import NewJob
from queue_runner.store import jobs
from queue_runner.store.engine import open_engine, writing
from tests.browser_support import DESK, PHONE, opened
from tests.cli_support import SPEC, end_running_run, full_queue
from tests.queue_support import Queue, until
from tests.reports.report_fixture import Store
from tests.store_support import claim_next
from tests.web.server_support import Server, served
from tests.web.test_pages import HOSTILE

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

pytestmark = [pytest.mark.process, pytest.mark.needs_program("chromium")]

JOB = (
    "import json, os, sys, time\n"
    "out = open(os.environ['MPSQ_EVENTS'], 'a', buffering=1)\n"
    "say = lambda **event: out.write(json.dumps(event) + '\\n')\n"
    "say(type='hello', t=0.0, v=1, workload='toy', device='cpu', planned_iters=100000)\n"
    "say(type='phase', t=0.0, name='measure', edge='begin')\n"
    "i = 0\n"
    "while not os.path.exists(sys.argv[1]):\n"
    "    say(type='iter', t=i * 0.02, i=i, dur_s=0.02 + i % 7 / 1e4, loss=4.0, phase='measure', synced=True)\n"
    "    print('line', i, flush=True)\n"
    "    i += 1\n"
    "    time.sleep(0.02)\n"
    "print('the last line', flush=True)\n"
)


PAGES = ("", "history", "job/1", "job/2", "job/4", "job/5", "log/1.1", "group/1", "compare", "compare?id=g1")
REFUSED = ("job/99", "history?q=g99", "compare?ids=g1&vs=nonsense")
"""Pages with an error; for each the browser writes its status on the console."""
LOOKED_AT = {(PHONE, "light"): (*PAGES, *REFUSED), (DESK, "dark"): ("", "job/2", "group/1")}
"""Pages on which axe-core looks for barriers: in the dark, those with every colour."""

SIZES = (
    "[...document.querySelectorAll('body *')].filter(e => e.innerText?.trim()).map(e => getComputedStyle(e).fontSize)"
)
"""The sizes of all texts of a page."""


@contextmanager
def quiet(browser: Browser, server: Server, *size: Any, **profile: Any) -> Iterator[Page]:
    """A page of a new profile that fails for an error on its console and for a request elsewhere."""
    with opened(browser, *size, **profile) as seen:
        yield seen.page
        assert seen.troubles == [] and seen.foreign(server.base) == []


@pytest.mark.parametrize(("width", "scheme"), [(PHONE, "dark"), (DESK, "light")])
def test_every_page_fits_and_asks_nobody_else(home: Path, browser: Browser, width: int, scheme: str) -> None:
    full_queue(home)
    with served(home, "--write") as server, opened(browser, width, scheme, reduced_motion="reduce") as seen:
        seen.page.goto(server.address)
        seen.page.wait_for_url(f"{server.base}/")
        for name in (*PAGES, *REFUSED):
            seen.page.goto(f"{server.base}/{name}")
            seen.page.wait_for_load_state("load")
            assert name not in LOOKED_AT.get((width, scheme), ()) or seen.barriers() == [], name
            assert not seen.scrolls_sideways(), name
            assert {*seen.page.evaluate(SIZES)} <= {"14px", "16px", "20px", "26px"}, name
            seen.picture(f"{name or 'queue'}-{width}-{scheme}")
        assert seen.foreign(server.base) == [] and len(seen.troubles) == len(REFUSED), seen.troubles


def test_hostile_names_run_nothing(home: Path, browser: Browser) -> None:
    layout = full_queue(home)
    engine = open_engine(layout.db, check=False)
    with writing(engine) as connection:
        new = [NewJob(replace(SPEC, name=text, params={"x": text}, config=text)) for text in HOSTILE]
        jobs.submit(connection, "mpsq submit", 7, new, [(n, 1) for n in range(len(new))])
    engine.dispose()
    with served(home, "--write") as server, quiet(browser, server) as page:
        page.goto(server.address)
        page.wait_for_url(f"{server.base}/")
        page.locator("#queue", has_text="alert(1)").wait_for()
        for name in ("", "history", *(f"job/{n}" for n in range(7, 7 + len(HOSTILE))), "compare?id=g3"):
            page.goto(f"{server.base}/{name}")
            page.wait_for_load_state("load")
            assert page.evaluate("[...document.images].length + document.querySelectorAll('[onerror]').length") == 0


@pytest.mark.parametrize("script", [True, False])
def test_a_change_keeps_the_place_on_the_page(home: Path, browser: Browser, script: bool) -> None:
    """The page opened at its top, and the focus was lost."""
    layout = full_queue(home)
    with writing(open_engine(layout.db, check=False)) as connection:
        new = [NewJob(replace(SPEC, name=f"n{n}")) for n in range(40)]
        jobs.submit(connection, "mpsq submit", 7, new, [(n, 1) for n in range(len(new))])
    with served(home, "--write") as server, quiet(browser, server, java_script_enabled=script) as page:
        page.goto(server.address)
        page.goto(f"{server.base}/")
        page.locator("#group-3 > details > summary").click()
        page.locator("[id='run-40.1']").get_by_role("button", name="hold").click()
        row = page.locator("[id='run-40.1']:focus", has_text="held")
        row.wait_for()
        for part in (row, page.locator("#outcome", has_text="run 40.1 is held")):
            place = part.bounding_box()
            assert place is not None and 0 <= place["y"] < 844 - place["height"], place


def test_the_result_of_a_button_stands_beside_it_and_covers_nothing(home: Path, browser: Browser) -> None:
    """It lay over the text above the buttons; a cancelled submission had a focus frame around nothing."""
    full_queue(home)
    with served(home, "--write") as server, quiet(browser, server, PHONE) as page:
        page.goto(server.address)
        page.goto(f"{server.base}/job/5")
        page.get_by_role("button", name="hold").click()
        result, focused = page.locator("#outcome > p"), page.locator("#acts:focus")
        focused.filter(has_text="run 5.1 is held").wait_for()
        above, notice = page.locator("main > .box").bounding_box(), result.bounding_box()
        assert above is not None and notice is not None and above["y"] + above["height"] <= notice["y"]
        page.goto(f"{server.base}/group/2")
        page.locator("summary", has_text="cancel").click()
        page.get_by_role("button", name="cancel all").click()
        focused.filter(has_text="6.1 cancelled").wait_for()


def test_what_happens_arrives_without_a_reload(queue: Queue, browser: Browser, tmp_path: Path) -> None:
    script, stop = tmp_path / "job.py", tmp_path / "stop"
    script.write_text(JOB)
    with served(queue.layout.home) as server, quiet(browser, server) as page:
        page.goto(server.address)
        page.wait_for_url(f"{server.base}/")
        page.locator("#running", has_text="nothing").wait_for()
        page.evaluate("window.same = true")
        queue.submit(f"exec {sys.executable} {script} {stop}", name="hello")
        queue.worker()
        running = page.locator("#running")
        running.locator("progress").wait_for(timeout=30_000)
        running.get_by_role("link", name="log").focus()
        first = int(running.locator("progress").get_attribute("value") or 0)
        until(lambda: int(running.locator("progress").get_attribute("value") or 0) > first, "more iterations")
        assert page.evaluate("document.activeElement.textContent") == "log"  # an update takes no focus
        assert "ms" in running.inner_text() and running.locator("polyline").count() == 2

        log = page.context.new_page()
        log.goto(f"{server.base}/log/1")
        log.locator("#log", has_text="line 3").wait_for(timeout=30_000)
        length = len(log.locator("#log").inner_text())
        until(lambda: len(log.locator("#log").inner_text()) > length, "more of the log")
        job = page.context.new_page()
        requests: list[str] = []
        job.on("request", lambda request: requests.append(request.url))
        job.goto(f"{server.base}/job/1")
        job.get_by_role("link", name="log").focus()
        job.evaluate("getSelection().selectAllChildren(document.querySelector('#progress dt'))")
        values: set[str | None] = set()
        until(lambda: values.add(job.locator("progress").get_attribute("value")) or len(values) > 3, "more iterations")
        assert job.evaluate("[document.activeElement.textContent, `${getSelection()}`]") == ["log", "phase"]
        assert requests.count(f"{server.base}/job/1") < 3  # once as its stream began: its progress comes with that
        log.bring_to_front()
        stop.touch()
        log.locator("#log", has_text="the last line").wait_for(timeout=30_000)
        text = log.locator("#log").inner_text()
        assert text.count("line 0\n") == 1  # from its beginning, and nothing twice
        job.bring_to_front()
        job.locator("figure.plot[data-kind=dur] canvas").wait_for(timeout=30_000)
        assert job.locator("figure.plot[data-kind=loss] canvas").count() == 1 and job.locator("progress").count() == 0
        page.bring_to_front()
        page.locator("#queue", has_text="SUCCEEDED").wait_for(timeout=30_000)
        assert page.evaluate("window.same") and page.locator("#lost").is_hidden()


def test_the_charts_of_a_submission_get_the_rounds_that_arrive(queue: Queue, browser: Browser, tmp_path: Path) -> None:
    """The first round makes them; what the reader has chosen there stays when the second arrives."""
    script = tmp_path / "job.py"
    script.write_text(
        JOB.replace(
            "not os.path.exists(sys.argv[1])", "i < 30 or not os.path.exists(sys.argv[1] + os.environ['MPSQ_RUN'])"
        )
    )
    with served(queue.layout.home) as server, quiet(browser, server) as page:
        page.goto(server.address)
        page.wait_for_url(f"{server.base}/")
        queue.submit(f"exec {sys.executable} {script} {tmp_path}/", repeats=2, name="hello")
        page.goto(f"{server.base}/group/1")
        assert page.locator("figure.plot").count() == 0
        queue.worker()
        (tmp_path / "1.1").touch()
        plot = page.locator("figure.plot[data-kind=dur]")
        plot.locator("canvas").wait_for(timeout=60_000)
        assert page.locator("figure.plot[data-kind=loss] canvas").count() == 1
        plot.get_by_role("button", name="logarithmic").click()
        until(lambda: page.locator("tr", has_text="RUNNING").count() == 1, "the second round")
        page.evaluate("document.querySelector('figure.plot canvas').isOld = true")
        before = page.locator("#plots").text_content()
        (tmp_path / "1.2").touch()
        is_old = "document.querySelector('figure.plot canvas').isOld === true"
        until(lambda: not page.evaluate(is_old), "a chart that is drawn anew")
        assert page.locator("#plots").text_content() != before
        assert page.evaluate("document.activeElement.textContent") == "logarithmic"
        assert plot.get_by_role("button", name="logarithmic").get_attribute("aria-pressed") == "true"


MADE = "<!doctype html><p id='lost' hidden></p><main data-refresh='1'>{}</main><script src='{}'></script>"
"""A page of mpsq web that is made up, since which part of a real one moves is chance."""


def made_page(page: Page, server: Server, first: str, second: str) -> None:
    """Open a page whose body is `first`; after the next change of the queue it is `second`."""
    page.goto(server.address)
    page.wait_for_url(f"{server.base}/")
    script = page.locator("script[src*='web.js']").get_attribute("src") or ""

    def answer(route: Route) -> None:
        asked_again = route.request.resource_type == "fetch"
        route.fulfill(content_type="text/html", body=MADE.format(second if asked_again else first, script))

    page.route("**/made", answer)
    page.goto(f"{server.base}/made")


def test_an_update_that_moves_what_has_the_focus_keeps_it(home: Path, browser: Browser) -> None:
    """It was moved before its new neighbour, and lost the focus."""
    layout = full_queue(home)
    first, second = "<p>one</p><p>two</p><button id='b'>b</button>", "<button id='b'>b</button><p>one</p><p>new</p>"
    with served(home) as server, quiet(browser, server) as page:
        made_page(page, server, first, second)
        page.locator("#b").focus()
        end_running_run(layout, Ending(Outcome.SUCCEEDED, 0))
        page.get_by_text("new").wait_for(timeout=30_000)
        assert page.evaluate("document.activeElement.id") == "b"
        assert page.locator("main").inner_html() == second.replace("'", '"')


@pytest.mark.parametrize("second", ["<p>new</p><p>one</p><p>two</p><p>three</p>", "<p>two</p><p>new</p>"])
def test_selected_text_that_does_not_change_stays_selected(home: Path, browser: Browser, second: str) -> None:
    """A sentence before it made every later paragraph that of its neighbour."""
    layout = full_queue(home)
    with served(home) as server, quiet(browser, server) as page:
        made_page(page, server, "<p>one</p><p>two</p><p>three</p>", second)
        page.evaluate("getSelection().selectAllChildren(document.querySelectorAll('main p')[1])")
        end_running_run(layout, Ending(Outcome.SUCCEEDED, 0))
        page.get_by_text("new").wait_for(timeout=30_000)
        assert page.evaluate("getSelection().toString()") == "two"
        assert page.locator("main").inner_html() == second


def test_an_open_cancel_never_becomes_that_of_the_next_run(home: Path, browser: Browser) -> None:
    """The update took the open fold of the run that ended, and gave it the id of the one that began."""
    layout = full_queue(home)
    with served(home, "--write") as server, quiet(browser, server) as page:
        page.goto(server.address)
        page.wait_for_url(f"{server.base}/")
        running = page.locator("#running")
        running.get_by_text("cancel …").click()
        running.get_by_role("button", name="cancel run 4.1").wait_for()
        end_running_run(layout, Ending(Outcome.SUCCEEDED, 0))
        with writing(open_engine(layout.db, check=False)) as connection:
            assert claim_next(connection) is not None
        running.locator("strong", has_text="waits1").wait_for()
        assert running.locator("details").count() == 1 and running.locator("details[open]").count() == 0


def test_each_chart_of_a_live_page_stays_that_of_its_family(home: Path, browser: Browser) -> None:
    """A family that arrived before another one got its chart, with the heading of the other."""
    store = Store(home)

    def run(workload: str, device: str) -> None:
        run_id = store.run(device, workload=workload, ended_at=1e9 + store.db.total_changes)
        store.iterations(run_id, [0.1, 0.11, 0.1])

    run("nanogpt", "cpu")
    store.run("cpu", workload="waits", outcome=None, median_s=None)
    with served(home) as server, quiet(browser, server) as page:
        page.goto(server.address)
        page.wait_for_url(f"{server.base}/")
        page.goto(f"{server.base}/group/1")
        plots = page.locator("figure.plot[data-kind=dur]")
        plots.get_by_role("button", name="logarithmic").click()
        for workload in ("a-workload", "z-workload"):
            run(workload, "mps")
        store.db.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('job_events', 1)")  # as each event does
        plots.get_by_role("button", name="mps eager").nth(1).wait_for(timeout=30_000)
        headings = [plot.locator("h3").inner_text() for plot in plots.all()]
        arms = [plot.locator(".arm").inner_text() for plot in plots.all()]
        assert len(headings) == 3 and all("nanogpt" in heading for heading in headings if "workload" not in heading)
        for heading, arm, plot in zip(headings, arms, plots.all(), strict=True):
            is_first = "nanogpt" in heading
            assert arm == ("cpu eager" if is_first else "mps eager"), heading
            pressed = plot.get_by_role("button", name="logarithmic").get_attribute("aria-pressed")
            assert pressed == str(is_first).lower(), heading


def test_a_followed_log_says_what_keeps_it_and_how_it_ended(home: Path, browser: Browser) -> None:
    layout = full_queue(home)
    log = RunDir(layout.run_dir("4.1")).stdout
    lines = [f"this is line {n}\n" for n in range(900)]
    log.write_text("".join(lines[:600]))
    with served(home) as server, quiet(browser, server) as page:
        page.goto(server.address)
        page.wait_for_url(f"{server.base}/")
        page.goto(f"{server.base}/log/4.1?stream=stdout")
        text = page.locator("#log")

        def add(upto: int) -> None:
            with log.open("a") as file:
                file.write("".join(lines[:upto][len(log.read_text().splitlines()) :]))
            text.filter(has_text=f"line {upto - 1}\n").wait_for(timeout=30_000)

        add(800)
        page.evaluate("document.getElementById('log').scrollTop = 1000")
        page.evaluate("window.dispatchEvent(new Event('pagehide'))")
        page.evaluate("window.dispatchEvent(new Event('pageshow'))")
        add(850)
        assert page.evaluate("document.getElementById('log').scrollTop") == 1000  # it was thrown to the end
        assert text.text_content() == "".join(lines[100:850])  # all that the page had, and nothing twice

        with sqlite3.connect(layout.db) as raw:
            (version,) = raw.execute("SELECT version_num FROM alembic_version").fetchone()
            raw.execute("UPDATE alembic_version SET version_num = '9999'")
        page.locator("#lost", has_text="newer than schema").wait_for(timeout=30_000)
        with sqlite3.connect(layout.db) as raw:
            raw.execute("UPDATE alembic_version SET version_num = ?", [version])
        page.locator("#lost").wait_for(state="hidden", timeout=30_000)
        add(900)
        end_running_run(layout, Ending(Outcome.SUCCEEDED, 0))
        page.locator(".badge", has_text="SUCCEEDED").wait_for(timeout=30_000)
        assert text.text_content() == "".join(lines[100:900])


def test_the_log_of_an_ended_run_opens_at_its_end(home: Path, browser: Browser) -> None:
    layout = full_queue(home)
    RunDir(layout.run_dir("2.1")).stdout.write_text("".join(f"this is line {n}\n" for n in range(300)))
    with served(home) as server, quiet(browser, server) as page:
        page.goto(server.address)
        page.wait_for_url(f"{server.base}/")
        page.goto(f"{server.base}/log/2.1")
        below = "(log => log.scrollHeight - log.scrollTop - log.clientHeight)(document.getElementById('log'))"
        assert page.evaluate(below) < 2 and page.evaluate("document.getElementById('log').scrollTop") > 1000


def test_buttons_change_the_queue(home: Path, browser: Browser) -> None:
    full_queue(home)
    with served(home, "--write") as server, quiet(browser, server) as page:
        page.goto(server.address)
        page.wait_for_url(f"{server.base}/")
        row = page.locator("tr", has_text="waits2")
        row.get_by_role("button", name="hold").click()
        page.get_by_role("status").get_by_text("run 6.1 is held").wait_for()
        page.locator("tr", has_text="waits2").get_by_text("cancel …").click()
        page.get_by_role("button", name="cancel run 6.1").click()
        page.get_by_role("status").get_by_text("run 6.1 cancelled").wait_for()
        page.goto(f"{server.base}/job/2")
        page.get_by_role("button", name="retry").dblclick()
        page.get_by_role("status").get_by_text("run 2.1 is retried as run 2.2").wait_for()


def test_the_page_of_a_run_follows_it_and_keeps_what_came_of_a_button(home: Path, browser: Browser) -> None:
    """The page of a waiting run never changed, and an update took the sentence away that nobody had read."""
    layout = full_queue(home)
    with served(home, "--write") as server, quiet(browser, server) as page:
        page.add_init_script("document.addEventListener('patched', () => { window.patched = true; })")
        page.goto(server.address)
        page.wait_for_url(f"{server.base}/")
        page.goto(f"{server.base}/job/5.1")
        page.get_by_role("button", name="to top").click()
        page.get_by_role("status").get_by_text("5.1 is moved").wait_for()
        end_running_run(layout, Ending(Outcome.SUCCEEDED, 0))
        with writing(open_engine(layout.db, check=False)) as connection:
            assert claim_next(connection) is not None
        page.locator(".badge", has_text="RUNNING").first.wait_for(timeout=30_000)
        assert page.evaluate("window.patched")
        assert page.get_by_text("5.1 is moved").is_visible()
        end_running_run(layout, Ending(Outcome.FAILED, 1))
        page.locator(".badge", has_text="FAILED(1)").first.wait_for(timeout=30_000)


def test_open_leads_a_browser_in_and_no_command_line_has_the_token(
    home: Path, browser: Browser, tmp_path: Path
) -> None:
    """The stand-in for the user's browser writes down what it was asked to open."""
    full_queue(home)
    asked = tmp_path / "asked"
    program = tmp_path / "stand-in-browser"
    program.write_text(f'#!/bin/sh\necho "$1" > {asked}.new && mv {asked}.new {asked}\n')
    program.chmod(0o755)
    os.environ["BROWSER"] = str(program)
    try:
        server = Server(home, "--open", "--write")
    finally:
        del os.environ["BROWSER"]
    try:
        until(asked.exists, "the browser")
        uri = asked.read_text().strip()
        assert uri.startswith("file://") and server.address.partition("token=")[2] not in uri
        file = Path(uri.removeprefix("file://"))
        assert file.parent.stat().st_mode & 0o077 == 0
        with browser.new_context() as context:
            page = context.new_page()
            page.goto(uri)
            page.wait_for_url(f"{server.base}/")
            page.get_by_role("button", name="hold").first.wait_for()  # the cookie came along
    finally:
        code, err = server.end()
    assert code == 0 and "Traceback" not in err
    assert not file.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_at_once_with_pages_open(home: Path, browser: Browser, number: int) -> None:
    full_queue(home)
    server = Server(home)
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(server.address)
        page.wait_for_url(f"{server.base}/")
        page.locator("#running progress").wait_for()
        code, err = server.end(number)
        page.locator("#lost").wait_for(state="visible")
    assert code == 0 and len(err.splitlines()) == 1 and "Ctrl-C" in err
