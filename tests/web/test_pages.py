"""What the pages of mpsq web show: runs in every state, hostile names, a store that is not well, changes."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from queue_runner import reports
from queue_runner.host.run_dir import RunDir
from queue_runner.model import Condition, Ending, Outcome
from queue_runner.monitor import eta, group_summary, queue_state, run_view
from queue_runner.pages import render
from queue_runner.paths import Layout
from queue_runner.spec import NewJob, Terms
from queue_runner.store import jobs, read
from queue_runner.store.engine import open_engine, writing
from queue_runner.times import clock
from queue_runner.web import actions, live, log_page, overview, views
from tests import named_rows
from tests.cli_support import SPEC, Cli, end_running_run, full_queue, taint
from tests.pages.pages_fixture import evening
from tests.queue_support import until
from tests.reports.report_fixture import Store
from tests.store_support import claim_next
from tests.web.site_support import Browser

pytestmark = pytest.mark.process

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"' onmouseover='alert(1)",
    "{{ 7 * 7 }}{% include 'x' %}",
    "\u202egnp.exe\u2066",
    "a\x1b[31mb\x1b]0;title\x07",
    "&lt;b&gt;",
)


@pytest.fixture
def queue(home: Path) -> Layout:
    return full_queue(home)


@pytest.fixture
def browser(queue: Layout) -> Browser:
    return Browser(queue)


class Elements(HTMLParser):
    """What a browser makes of a page: element names, and those with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def inert(page: str) -> None:
    """Check that nothing on the page runs but our files."""
    for tag, attributes in Elements(page).found:
        assert tag not in ("img", "style", "iframe", "object", "embed", "base"), tag
        assert not any(name.startswith("on") or name == "style" for name in attributes), attributes
        if tag == "script":
            assert attributes.get("type") == "application/json" or str(attributes["src"]).startswith("/static/")
        for name in ("href", "src", "action"):
            address = attributes.get(name) or "/"
            assert address == "data:," or (address.startswith(("/", "#")) and not address.startswith("//")), address


def text_of(page: str) -> str:
    return unescape(re.sub(r"<[^>]+>", " ", page))


def test_the_queue(browser: Browser) -> None:
    page = text_of(browser.get("/"))
    assert "20 of 40" in page and "20.00 ms" in page and "2.1000" in page and "about 400 ms" in page
    assert re.search(r"worker\s+none.* mpsq ", page)
    assert re.search(r"1\s+5\.1\s+waits1\s+a worker", page) and re.search(r"2\s+6\.1\s+waits2", page)
    assert "KILLED(9)" in page and "FAILED(3)" in page and "SUCCEEDED" in page
    passed = [*re.findall(r"so far\s+(\d\S* \w+)", page), *re.findall(r"(\S+ \w+) ago", page)]
    assert len(passed) == 5 and not any("." in text or "ms" in text for text in passed), "it had parts of seconds"


def test_times_that_are_not_valid_are_marked_in_every_list(queue: Layout, browser: Browser) -> None:
    pages = ("/", "/history", "/job/1.2")
    assert all("invalid" not in line for page in pages for line in _rows(browser.get(page)) if "SUCCEEDED" in line)
    taint(queue, "1.1")
    for page in pages:
        marked = [line for line in _rows(browser.get(page)) if re.search(r"invalid\s+SUCCEEDED", line)]
        assert len(marked) == 1, page
    (line,) = (line for line in _rows(browser.get("/history")) if "invalid" in line and "SUCCEEDED" in line)
    assert "1/2" in line


def _rows(page: str) -> list[str]:
    return [text_of(row) for row in re.findall(r"<tr.*?</tr>", page, flags=re.DOTALL)]


def test_a_held_run_says_so(browser: Browser, mpsq: Cli) -> None:
    mpsq.ok("pause", "5")
    assert re.search(r"5\.1\s+\w+\s+held\s+mpsq resume 5", text_of(browser.get("/")))


def test_a_paused_lane_says_so_where_nothing_runs(queue: Layout, browser: Browser, mpsq: Cli) -> None:
    """It was a screen further down on a phone, under what waits."""
    mpsq.ok("pause")
    end_running_run(queue, Ending(Outcome.SUCCEEDED, 0))
    page = text_of(browser.get("/"))
    assert page.count("until mpsq resume") == 1
    assert page.index("Running") < page.index("until mpsq resume") < page.index("Waiting")


def test_no_worker_is_missed_where_all_that_waits_is_held(home: Path, mpsq: Cli) -> None:
    """A worker would start nothing either."""
    mpsq.ok("submit", "--hold", "--", "true")
    browser = Browser(Layout(home))
    browser.enter()
    wrong = browser.get("/").partition('<section id="wrong">')[2].partition("</section>")[0]
    assert "no worker runs" not in wrong
    mpsq.ok("resume", "1")
    assert "no worker runs" in browser.get("/").partition('<section id="wrong">')[2].partition("</section>")[0]


def test_a_job_is_what_show_and_why_say(queue: Layout, browser: Browser) -> None:
    page = text_of(browser.get("/job/2"))
    assert "exit code 3" in page and "after a fix, mpsq rerun g" in page
    assert "invalid: contended" in page and "others used" in page
    assert "[hidden]" in page and "hunter2" not in page
    assert page[page.index("Run 2.1") : page.rindex("history")].count("FAILED(3)") == 1, "it was a fact, too"
    assert "one op" in page and "Phases" in page
    visible = re.sub("<title>.*?</title>", "", browser.get("/job/2"))  # without what a pointer shows
    assert visible.count("others used the CPU") == 1, "its caveats were shown three times"
    with sqlite3.connect(queue.db) as raw:
        raw.execute("DELETE FROM phases")
    assert "No samples" not in page and page.count("time since") == 1, "two bars were equal"
    assert "Phases" not in browser.get("/job/2"), "a program that reports none had a section without content"


def test_a_run_with_samples_has_one_bar(tmp_path: Path) -> None:
    """Above the samples stood a second bar of the same length."""
    page = Browser(evening(Store(tmp_path / "home"), 2, 20).layout).get("/job/1")
    assert "GPU busy" in page and "Phases" in page and 'aria-label="when each run ran"' not in page


def test_a_job_of_several_runs_shows_each_and_the_one_that_is_named(browser: Browser) -> None:
    assert "Run 1.2" in text_of(browser.get("/job/1"))
    page = browser.get("/job/1.1")
    assert "Run 1.1" in text_of(page) and 'href="/job/1.2"' in page


def test_a_job_that_runs_shows_its_progress(queue: Layout, browser: Browser) -> None:
    page = browser.get("/job/4")
    assert '<progress aria-label="iterations" max="40" value="20">' in page and page.count("<polyline") == 2
    assert "20 of 40" in text_of(page) and "about 400 ms of training" in text_of(page)
    assert "<progress" not in browser.get("/job/1") and "<progress" not in browser.get("/job/5")
    (queue.run_dir("4.1") / "warden" / "exit.json").write_text(
        json.dumps({"v": 1, "exit_code": 0, "ended_at": 2.0, "real_s": 1.0})
    )
    assert "unsaved" in (page := browser.get("/job/4")) and "<progress" not in page


def test_a_job_that_ended_shows_its_iterations(queue: Layout, browser: Browser) -> None:
    def plots(path: str) -> Any:
        data = re.search(r'id="plots">(.*?)</script>', browser.get(path), re.DOTALL)
        return data and json.loads(data[1])

    for path in ("/job/1.1", "/job/2"):  # one that succeeded, one that failed
        (family,) = plots(path)
        (run,) = family["runs"]
        assert run["run"] in ("1.1", "2.1") and run["dur"] == [0.02] * 20 and run["loss"][0] == 4.0
    assert plots("/job/4") is None and plots("/job/5") is None
    assert "plots.js" in browser.get("/job/4")  # it gets them when it ends


@pytest.mark.parametrize("page", ["job", "log"])
def test_an_id_that_names_nothing_is_a_sentence(browser: Browser, page: str) -> None:
    passwords = ("../../etc/passwd", "..%2f..%2fmpsq.db")
    for id in ("99", "1.9", "x", *passwords, "g99", "@last'--", "1%00", "9" * 30, "1.1/x"):
        answer = browser.client.get(f"/{page}/{id}")
        assert answer.status_code == 404, id
        assert "Traceback" not in answer.text and "root:" not in answer.text and "SQLite" not in answer.text, id
    assert "/job/1 shows the runs of job 1" in browser.get(f"/{page}/1.9", 404)
    for path in (f"/{page}/99", "/history?q=g99", "/compare?ids=99"):
        assert "the history shows every job" in browser.get(path, 404) and "mpsq list" not in browser.get(path, 404)


def test_the_history_finds_words_states_tags_and_ids(browser: Browser, mpsq: Cli) -> None:
    mpsq.ok("edit", "3", "--note", "Night Shift")

    def found(query: str) -> list[int]:
        return [int(id) for id in re.findall(r'name="id" value="(\d+)"', browser.get(f"/history?{query}"))]

    assert found("") == [6, 5, 4, 3, 2, 1]
    assert found("state=failed") == [3, 2] and found("state=queued") == [6, 5]
    assert found("q=g2") == [6, 5] and found("q=3") == [3] and found("q=1.2") == [1]
    assert found("q=waits") == [6, 5] and found("q=WAITS1") == [5] and found("q=mps+waits2") == [6]
    assert (
        found("q=night+shift") == [3]
        and found("tag=night") == [4, 3, 2, 1]
        and found("q=train.py") == [6, 5, 4, 3, 2, 1]
    )
    assert found("q=100%25") == [] and found("q=_") == []
    assert found("q=lr%3D0.1") == [6, 5, 4, 3, 2, 1] and found("q=lr%3D0.2") == []
    assert found("q=/bin") == []  # what was captured of an environment is not looked through


def test_the_history_says_how_long_a_command_took_and_what_it_is(browser: Browser, mpsq: Cli) -> None:
    mpsq.ok("cancel", "5")
    page = browser.get("/history")
    job = next(row for row in page.split("<tr>") if 'value="2"' in row)
    assert re.search(r'"per run">[\d.]+ m?s', job)
    cancelled = next(row for row in page.split("<tr>") if 'value="5"' in row)
    assert '"badge ">CANCELLED' in cancelled  # nothing is wrong with it
    assert "0 of 1 round done" in browser.get("/") and "1 failed" not in browser.get("/")


def test_a_column_that_no_row_fills_is_left_out(tmp_path: Path) -> None:
    store = Store(tmp_path / "home")
    for _ in range(2):
        store.run("cpu", median_s=None, outcome="FAILED", exit_code=1, reason="boom", name="bad")
        store.run("cpu", group=2)
    browser = Browser(store.layout)
    pages = ("/job/1", "/history?q=bad", "/job/2", "/history")
    assert [">per iteration</th>" in browser.get(page) for page in pages] == [False, False, True, True]


def test_the_history_has_pages(browser: Browser) -> None:
    first = browser.get("/history?n=4&tag=&q=toy")
    assert not re.findall(r'name="id" value="(\d+)"', first)
    first = browser.get("/history?n=4")
    assert re.findall(r'name="id" value="(\d+)"', first) == ["6", "5", "4", "3"]
    older = unescape(re.search(r'href="([^"]+)" rel="next"', first)[1])  # type: ignore[index]
    second = browser.get(older)
    assert re.findall(r'name="id" value="(\d+)"', second) == ["2", "1"] and 'rel="next"' not in second


@pytest.mark.parametrize("query", ["state=nonsense", "n=x", "before=1;drop", "n=-1", "q=g77"])
def test_a_search_that_cannot_be_is_a_sentence(browser: Browser, query: str) -> None:
    page = browser.get(f"/history?{query}", 404)
    assert "<h1>" in page and ("q=g77" not in query or 'value="g77"' in page)


def words_of(html: str) -> str:
    return " ".join(text_of(html).split())


def test_the_page_of_a_comparison_is_that_of_the_report(browser: Browser) -> None:
    page = browser.get("/compare?id=1&id=2&id=3")
    assert 'name="ids" value="1 2 3"' in page and "mpsq report 1 2 3" in words_of(page)
    assert 'src="/static/uPlot/uPlot.iife.min.js"' in page or "Table A" in page or "No rows" in page
    assert "<style" not in page and "style=" not in page  # the policy would refuse both
    refused = browser.get("/compare?ids=g1&vs=nonsense", 404)
    assert "--vs" in refused and 'value="nonsense"' in refused
    assert "mpsq report trend" in words_of(browser.get("/compare?ids=&vs=&where=&report=trend"))  # of all runs
    assert "did you mean" in browser.get("/compare?ids=g1&report=device", 404)


def test_a_comparison_of_no_named_jobs_says_what_it_chose(browser: Browser) -> None:
    page = browser.get("/compare?ids=&vs=&where=&report=devices")
    form = page[page.index('aria-label="question"') : page.index("<main>")]
    assert 'href="/group/1"' in form and 'href="/group/2"' in form
    assert "/group/" not in browser.get("/compare?ids=g1")


def test_to_compare_the_chosen_without_any_is_refused(browser: Browser) -> None:
    """It showed an empty form."""
    forms = re.findall(r'<form method="get" action="/compare">.*?</form>', browser.get("/history"), re.DOTALL)
    (button,) = re.findall(r'<button name="(\w+)" value="(\w+)">', forms[0])
    address = f"/compare?{'='.join(button)}"
    assert 'role="alert"' in browser.get(address, 404)
    assert 'class="box' in browser.get(f"{address}&id=1") and 'role="alert"' not in browser.get("/compare")


def test_no_other_file_is_served(browser: Browser) -> None:
    for path in ("../render.py", "%2e%2e/render.py", "uPlot/../../render.py", "uPlot/LICENSE", "", "web.js/"):
        assert browser.client.get(f"/static/{path}").status_code == 404, path


def test_every_script_and_style_is_a_file_of_ours(browser: Browser) -> None:
    """The policy admits nothing else, and nothing inline."""
    for path in ("/", "/history", "/job/1", "/log/1.1", "/compare", "/compare?id=1"):
        page = browser.get(path)
        inert(page)
        for address in re.findall(r'(?:src|href)="(/static/[^"]+)"', page):
            browser.get(address)


# -- hostile texts -----------------------------------------------------------------------------------------------------


@pytest.fixture
def hostile(queue: Layout) -> Layout:
    engine = open_engine(queue.db, check=False)
    with writing(engine) as connection:
        new = [
            NewJob(
                replace(SPEC, name=f"n{n} {text}", params={"note": text}, argv=("echo", text), config=text),
                terms=Terms(note=text, tags=("hostile",)),
            )
            for n, text in enumerate(HOSTILE)
        ]
        jobs.submit(connection, "mpsq submit hostile", 7, new, [(n, 1) for n in range(len(new))])
    engine.dispose()
    return queue


def test_names_settings_and_notes_are_text(hostile: Layout) -> None:
    browser = Browser(hostile, write=True)
    browser.enter()
    for path in ("/", "/history", "/compare?id=g3", *(f"/job/{n}" for n in range(7, 7 + len(HOSTILE)))):
        page = browser.get(path)
        inert(page)
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", page), path
        assert "49" not in re.findall(r"n3 ([^<]{0,4})", page), path


def test_what_was_searched_for_is_text(browser: Browser) -> None:
    for text in HOSTILE:
        page = browser.client.get("/history", params={"q": text, "tag": text}).text
        inert(page)
        page = browser.client.get("/compare", params={"ids": text, "vs": text, "report": text, "where": text}).text
        inert(page)


def test_a_log_is_text(queue: Layout, browser: Browser) -> None:
    RunDir(queue.run_dir("1.1")).stdout.write_bytes("\n".join(HOSTILE).encode() + b"\n\x00\xff\xfe 10%\r 20%\rdone\n")
    page = browser.get("/log/1.1?stream=stdout")
    inert(page)
    assert "\x1b" not in page and "\x00" not in page
    shown = unescape(re.search(r"<pre[^>]*>(.*?)</pre>", page, re.DOTALL)[1])  # type: ignore[index]
    assert "</script><script>alert(1)</script>\n" in shown and "ab\n" in shown
    assert "10%" not in shown and shown.endswith("done\n")


def test_a_log_that_is_a_link_is_not_read(queue: Layout, browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2")
    log = RunDir(queue.run_dir("1.1")).stdout
    log.unlink()
    log.symlink_to(tmp_path / "secret")
    assert "hunter2" not in browser.get("/log/1.1")


def test_there_are_two_logs_and_no_other_file(browser: Browser) -> None:
    for stream in ("../warden/exit.json", "spec", "spec.json", "events", "", "path"):
        answer = browser.client.get("/log/1.1", params={"stream": stream})
        assert answer.status_code == 404 and "hunter2" not in answer.text, stream


def test_a_large_log_is_cut_and_says_so(queue: Layout, browser: Browser) -> None:
    RunDir(queue.run_dir("1.1")).stdout.write_text("x" * 200 + "\n" + ("y" * 999 + "\n") * 3000)
    page = browser.get("/log/1.1?stream=stdout")
    assert page.count("yyy\n") == log_page.LINES and "the last 5,000 lines" in page
    assert "lines</a>" not in browser.get("/log/1.1?stream=stderr")
    assert browser.get("/log/1.1").count("yyy\n") == log_page.LINES - 1, "the last line comes from stderr"
    page = browser.get("/log/1.1?lines=99999")
    assert "1 MiB" in page and len(page) < log_page.CHARS_MOST + 5000
    assert '&amp;lines=10000"' in browser.get("/log/4.1?lines=99999"), "what follows has as many"


def test_a_log_without_output_says_so(queue: Layout, browser: Browser) -> None:
    for path in (RunDir(queue.run_dir("1.1")).stdout, RunDir(queue.run_dir("1.1")).stderr):
        path.write_text("")
    assert "It wrote nothing." in browser.get("/log/1.1")
    assert "nothing to stderr" in browser.get("/log/1.1?stream=stderr")


@pytest.mark.parametrize(("run", "said"), [("5.1", "has not started"), ("1.1", "was removed")])
def test_a_log_that_is_not_there_is_a_sentence(queue: Layout, browser: Browser, run: str, said: str) -> None:
    for path in (RunDir(queue.run_dir("1.1")).stdout, RunDir(queue.run_dir("1.1")).stderr):
        path.unlink()
    assert said in browser.get(f"/log/{run}")


# -- a store that is not well ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/history", "/job/1", "/log/1.1", "/compare?id=1"])
def test_a_store_that_cannot_be_read_is_a_sentence(
    queue: Layout, browser: Browser, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queue_runner.web.views.PATIENCE_S", 0.01)
    monkeypatch.setattr("queue_runner.web.log_page.PATIENCE_S", 0.01)
    whole = queue.db.read_bytes()
    with sqlite3.connect(queue.db, isolation_level=None) as raw:
        raw.execute("PRAGMA journal_mode=DELETE")
        raw.execute("BEGIN EXCLUSIVE")
        assert "locked" in browser.get(path, 503)
        raw.execute("ROLLBACK")
        raw.execute("UPDATE alembic_version SET version_num = '9999'")
    raw.close()
    assert "newer than schema" in browser.get(path, 503)
    queue.db.write_bytes(b"x" * 5000)
    assert "not a database" in browser.get(path, 503)
    queue.db.unlink()
    assert "is missing" in browser.get(path, 503)
    queue.db.write_bytes(whole)
    browser.get(path)


def test_a_home_without_a_queue_is_a_sentence(home: Path) -> None:
    assert "no queue" in Browser(Layout(home)).get("/", 503)


def test_an_empty_queue_is_a_page(layout: Layout) -> None:
    browser = Browser(layout)
    assert "nothing" in browser.get("/") and "no matching jobs" in browser.get("/history")


# -- changes -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def writer(queue: Layout) -> Browser:
    browser = Browser(queue, write=True)
    browser.enter()
    return browser


def press(browser: Browser, page: str, verb: str, id: str, status: int = 303, **more: str) -> str:
    """Press a button; returns the text of the page after it."""
    forms = [f for name, f in browser.forms(page) if name == verb and f["id"] == id and more.items() <= f.items()]
    answer = browser.post(verb, forms[0])
    assert answer.status_code == status, answer.text
    return text_of(browser.get(answer.headers["location"]) if status == 303 else answer.text)


def history(layout: Layout, job: int) -> list[tuple[str, str]]:
    with read.reading(layout.db) as connection:
        return [(event["actor"], event["verb"]) for event in named_rows.events(connection, job)]


def test_hold_release_and_move_as_the_command_does(queue: Layout, writer: Browser) -> None:
    assert "run 5.1 is held" in press(writer, "/", "hold", "5.1")
    assert "run 5.1 is no longer held" in press(writer, "/", "release", "5.1")
    assert "6.1 is moved" in press(writer, "/", "move", "6.1", where="top")
    assert [verb for verb, form in writer.forms("/") if form["id"] == "6.1"]
    with read.reading(queue.db) as connection:
        assert [run.run for run in run_view.queue(connection)] == ["4.1", "6.1", "5.1"]
    assert ("web", "hold") in history(queue, 5) and ("web", "release") in history(queue, 5)
    assert ("web", "move") in history(queue, 6)


def test_a_change_leads_back_to_the_place_of_its_button(queue: Layout, writer: Browser) -> None:
    """The page opened at its top."""
    with writing(open_engine(queue.db, check=False)) as connection:
        jobs.submit(connection, "mpsq submit third", 8, [NewJob(SPEC), NewJob(SPEC)], [(0, 1), (1, 1)])
    for page, verb, id, place in (
        ("/", "hold", "7.1", "run-7.1"),
        ("/", "release", "7.1", "run-7.1"),
        ("/", "cancel", "7.1", "run-8.1"),
        ("/", "cancel", "8.1", "queue"),
        ("/job/5", "hold", "5.1", "acts"),
    ):
        location = writer.post(verb, writer.form(page, verb, id)).headers["location"]
        assert location.startswith(f"{page}") and location.endswith(f"#{place}")
        answer = writer.get(location)
        assert f'id="{place}" tabindex="-1"' in answer and f"run {id}" in text_of(answer)


def test_cancel_and_retry_as_the_command_does(queue: Layout, writer: Browser) -> None:
    assert "run 5.1 cancelled" in press(writer, "/job/5", "cancel", "5.1")
    assert "as run 5.2" in press(writer, "/job/5", "retry", "5.1")
    assert {("web", "cancel"), ("web", "retry")} <= {*history(queue, 5)}


def test_what_came_of_it_is_told_once(writer: Browser) -> None:
    answer = writer.post("hold", writer.form("/", "hold", "5.1"))
    assert "is held" in writer.get(answer.headers["location"])
    assert "is held" not in writer.get(answer.headers["location"])


def test_a_change_that_is_too_late_is_a_sentence(queue: Layout, writer: Browser) -> None:
    fields = writer.form("/job/4", "cancel", "4.1")
    end_running_run(queue, Ending(Outcome.SUCCEEDED, 0))
    answer = writer.post("cancel", fields)
    page = writer.get(answer.headers["location"])
    assert "had already ended" in page and 'role="alert"' in page
    fields = {"id": "1.1", "csrf": writer.access.form_token("retry", "1.1")}
    answer = writer.post("retry", {**fields, "back": "/job/1.1"})
    page = writer.get(answer.headers["location"])  # a refusal stands where the button is
    assert answer.headers["location"].startswith("/job/1.1?") and 'role="alert"' in page
    assert "succeeded: nothing failed" in text_of(page)


def test_a_retry_that_cannot_work_is_refused_where_it_was_asked(queue: Layout, writer: Browser) -> None:
    """It was a page of its own, without the way back."""
    with writing(open_engine(queue.db, check=False)) as connection:
        jobs.submit(connection, "mpsq submit third", 8, [NewJob(replace(SPEC, secrets=("GONE",)))], [(0, 1)])
    press(writer, "/job/7", "cancel", "7.1")
    page = press(writer, "/job/7", "retry", "7.1")
    assert "cannot be retried" in page and "Run 7.1" in page


def test_the_page_of_a_submission_is_its_answer_so_far(browser: Browser) -> None:
    page = browser.get("/group/1")
    assert "mpsq report" in page and 'data-refresh="queue"' in page and 'href="/job/4.1"' in page
    assert re.search(r"\d of \d rounds\D+\d failed", text_of(page))
    assert browser.get("/group/g1") == page  # its name everywhere
    assert all("<h1>" in browser.get(f"/group/{id}", 404) for id in ("99", "x", "g99", "g", "gg1", "1.1"))
    assert 'href="/group/2"' in browser.get("/") and "0 of 1 round done" in text_of(browser.get("/"))


def test_rounds_that_may_still_follow_are_counted(queue: Layout, browser: Browser) -> None:
    """It was "of 2 rounds", and the 2 grew."""
    with sqlite3.connect(queue.db) as connection:
        connection.execute("UPDATE groups SET until = 'decided'")
    assert "of at most 20 rounds done" in text_of(browser.get("/group/1"))
    assert "of at most 20 rounds done" in text_of(browser.get("/"))
    with sqlite3.connect(queue.db) as connection:
        connection.execute("UPDATE groups SET closed_at = 1, closed_why = 'decided'")
    assert "of 2 rounds done" in text_of(browser.get("/group/1"))


def test_the_page_of_an_open_submission_says_why_it_waits_or_runs(queue: Layout, browser: Browser, mpsq: Cli) -> None:
    """It named the command that says so."""

    def opening(group: int) -> str:
        page = browser.get(f"/group/{group}")
        return page[page.index("<h1>") : page.index("<details")]

    assert 'href="/job/4.1"' in opening(1) and "is running" in text_of(opening(1))
    assert '<div class="quiet"><p><a href="/job/4.1"' in opening(1), "a second box stood above the answer"
    assert '<div class="box"><p><a href="/job/5.1"' in opening(2)
    assert 'href="/job/5.1"' in opening(2) and "mpsq worker" in text_of(opening(2))
    assert "no run has ended" not in browser.get("/group/2") and "no verdict" not in browser.get("/group/2")
    assert not any("mpsq status" in browser.get(page) for page in ("/", "/group/1", "/group/2", "/job/5"))
    with sqlite3.connect(queue.db) as raw:
        raw.execute("UPDATE runs SET blocked_reason = 'it waits' WHERE state = 'QUEUED'")
    assert '<a href="/">the queue</a> shows what it waits for' in browser.get("/group/2")
    with sqlite3.connect(queue.db) as raw:
        raw.execute("UPDATE runs SET blocked_reason = NULL WHERE state = 'QUEUED'")
    mpsq.ok("pause")
    assert "the queue is paused" in text_of(opening(2))
    mpsq.ok("pause", "g2")
    page = text_of(browser.get("/group/2"))
    assert re.findall("mpsq resume \\w+", page) == ["mpsq resume g2"], "a second command released one of its jobs"
    assert "waits for mpsq resume g2" in text_of(browser.get("/"))
    mpsq.ok("resume", "6")
    assert "run 6.1 " in text_of(opening(2)) and "waits for mpsq resume g2" not in text_of(browser.get("/"))
    mpsq.ok("cancel", "g2")
    assert '<div class="box"><p>' not in opening(2)


def test_the_page_of_a_submission_begins_with_its_question_and_answer(tmp_path: Path) -> None:
    """The command, the buttons and the runs stood above both."""
    store = Store(tmp_path / "home")
    for k in range(4):
        for device, usual_s in (("cpu", 0.4), ("mps", 0.1)):
            store.run(device, median_s=usual_s * (1 + k / 100))
    store.run("mps", median_s=None, outcome="FAILED", exit_code=1)
    browser = Browser(store.layout, write=True)
    browser.enter()
    page = browser.get("/group/1")
    parts = ("<h1>", "<strong>g1</strong>", "rounds done", "mps eager is", 'action="/do/retry"', 'id="run-1.1"', "<svg")
    places = [page.index(part) for part in parts]
    assert places == sorted(places)


def test_the_page_of_a_held_submission_says_each_thing_once(queue: Layout, browser: Browser, mpsq: Cli) -> None:
    """The command stood far below the button, and a section described how they had been measured."""
    mpsq.ok("pause", "g2")
    writer = Browser(queue, write=True)
    writer.enter()
    for client, step in ((browser, "mpsq resume g2"), (writer, "<button>resume</button>")):
        page = client.get("/group/2")
        top = page[page.index("<h1>") : page.index("5.1</a></td>")]
        assert "is held" in top and step in top
        assert page.count("mpsq resume") + page.count("<button>resume") == 1
        assert "How it was measured" not in page and "note</summary>" not in page


def test_the_page_of_a_submission_that_failed_says_so_first_and_leads_to_the_run(tmp_path: Path) -> None:
    store = Store(tmp_path / "home")
    store.run("cpu", False, None, outcome="FAILED", exit_code=1, reason="<KeyError>")
    page = Browser(store.layout).get("/group/1")
    answer = page[page.index('<section id="answer"') : page.index("How it was measured")]
    assert '<a href="/job/1.1">' in answer and "&lt;KeyError&gt;" in answer


def test_the_page_of_a_judgement_says_whether_the_candidate_is_kept(queue: Layout, browser: Browser, mpsq: Cli) -> None:
    mpsq.ok("cancel", "g2")
    with sqlite3.connect(queue.db) as connection:
        connection.execute("UPDATE groups SET until = 'judge {}', closed_at = 1, closed_why = 'keep: 5 % faster'")
    assert "keep: 5 %" in text_of(browser.get("/group/2"))


def test_the_first_page_has_the_answer_so_far_and_what_went_wrong(
    queue: Layout, browser: Browser, mpsq: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parts() -> tuple[str, str]:
        page = browser.get("/")
        sections = re.findall(r'<section id="(answer|wrong)">(.*?)</section>', page, re.DOTALL)
        by_id = {id: text_of(section) for id, section in sections}
        return by_id["answer"], by_id["wrong"]

    answer, wrong = parts()
    assert "Answer so far" in answer and "g1" in answer and "rounds done" in answer
    assert re.search(r"3\.1\s+killed\s+KILLED\(9\)", wrong) and "FAILED(3)" in wrong and "no data" in wrong
    assert "no worker" in wrong
    monkeypatch.setattr(overview, "MOST_RUNS", 3)
    assert "5 runs: see" in text_of(Browser(queue).get("/"))
    mpsq.ok("cancel", "g2")
    mpsq.ok("retry", "2.1")
    taint(queue, "1.2")
    _, wrong = parts()
    assert re.search(r"FAILED\(3\).*its retry has not ended", wrong), "nothing went wrong while a retry waited"
    assert wrong.count("its retry") == 1 and "KILLED(9)" in wrong
    assert re.search(r"1\.2\s+\w+\s+SUCCEEDED.*not valid", wrong)


def test_a_failure_leads_to_the_job_that_repeats_it(queue: Layout, browser: Browser, mpsq: Cli) -> None:
    """Its pages offered to run it again, or no next step, while the new job waited, or had succeeded."""
    before = browser.get("/group/1")
    mpsq.ok("rerun", "2")
    queued = json.loads(mpsq.ok("rerun", "2", "--json").out)
    again, page = queued["jobs"][0], f'href="/group/{queued["group"]}"'
    assert page in browser.get("/group/1") and page not in before, "a stored page was shown"
    wrong = text_of(re.findall(r'<section id="wrong">(.*?)</section>', browser.get("/"), re.DOTALL)[0])
    assert re.search(rf"FAILED\(3\).* job {again}\s+repeats it: QUEUED", wrong) and wrong.count("repeats it") == 1
    assert f'Next: <a href="/job/{again}">' in browser.get("/job/2")
    assert "repeats g1" in words_of(browser.get(f"/group/{queued['group']}"))
    third = json.loads(mpsq.ok("rerun", str(again), "--json").out)["jobs"][0]
    assert f'Next: <a href="/job/{third}">' in browser.get("/job/2")
    again = third
    assert f"mpsq why {again}" in mpsq.ok("why", "2").out and "repeats it" not in mpsq.ok("why", str(again)).out
    with sqlite3.connect(queue.db) as connection:
        ended = "state = 'DONE', outcome = 'SUCCEEDED', started_at = 1, ended_at = 2, exit_code = 0"
        connection.execute(f"UPDATE runs SET {ended} WHERE job_id = ?", [third])
    (wrong,) = re.findall(r'<section id="wrong">(.*?)</section>', Browser(queue).get("/"), re.DOTALL)
    assert "FAILED(3)" not in wrong and "KILLED(9)" in wrong, "a failure that was mended stayed"


def test_the_first_page_names_the_questions_before_the_newest(queue: Layout, browser: Browser, mpsq: Cli) -> None:
    """Of a night it had only the newest question, and runs that never started filled the table of ended ones."""
    end_running_run(queue, Ending(Outcome.SUCCEEDED, 0))
    with writing(open_engine(queue.db, check=False)) as connection:
        assert claim_next(connection) is not None
    end_running_run(queue, Ending(Outcome.SUCCEEDED, 0))
    mpsq.ok("cancel", "6")
    page = browser.get("/")
    answer = page[page.index('<section id="answer">') : page.index('<div id="queue"')]
    assert re.search(r"g2.*Earlier answers g1 .+ mpsq submit first", " ".join(text_of(answer).split()))
    assert 'href="/group/1"' in answer and 'id="ended-5.1"' in page and 'id="ended-6.1"' not in page


def test_the_questions_before_the_newest_have_their_verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were commands alone."""
    store = Store(tmp_path / "home")
    for group, n_rounds in enumerate((5, 2, 2), 1):
        for k in range(n_rounds):
            for device, usual_s in (("cpu", 0.4), ("mps", 0.1)):
                store.run(device, False, usual_s * (1 + k / 100), group=group, config=f"c{group}", ended_at=1e9 + group)
    earlier = text_of(Browser(store.layout).get("/")).partition("Earlier answers")[2].partition("Waiting")[0]
    assert re.search(r"g2\s+undecided\s+test\s+g1\s+mps eager is [\d.]+ x faster[^)]+\)\s+test", earlier)
    monkeypatch.setattr(overview, "MOST_RUNS_EARLIER", 5)
    assert "10 runs: see its page" in text_of(Browser(store.layout).get("/"))


def test_a_report_is_computed_again_only_when_it_may_have_changed(
    queue: Layout, browser: Browser, mpsq: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []
    run = reports.run

    def counted(name: str, *arguments: Any) -> Any:
        built.append(name)
        return run(name, *arguments)

    monkeypatch.setattr(reports, "run", counted)
    pages = ("/", "/group/1", "/compare?id=1&id=2")
    first = [browser.get(page) for page in pages]
    assert built == ["devices"] * 3
    assert [browser.get(page) for page in pages[1:]] == first[1:] and browser.get("/") and len(built) == 3
    mpsq.ok("cancel", "5")  # of another submission
    assert browser.get("/") and browser.get("/group/1") == first[1] and len(built) == 3
    end_running_run(queue, Ending(Outcome.FAILED, 1))
    assert "FAILED(1)" in browser.get("/group/1") and browser.get("/") and len(built) == 5


def test_a_failed_run_opens_at_its_error(queue: Layout, browser: Browser) -> None:
    RunDir(queue.run_dir("2.1")).stderr.write_text("Traceback (most recent call last):\nValueError: the reason\n")
    page = browser.get("/job/2.1")
    assert page.index("ValueError: the reason") < page.index("What it is")
    assert 'class="log"' not in browser.get("/job/1.1")


def test_only_what_is_possible_has_a_button(writer: Browser) -> None:
    assert {verb for verb, _ in writer.forms("/job/1")} == set()
    assert {verb for verb, _ in writer.forms("/job/2")} == {"retry"}
    assert {verb for verb, _ in writer.forms("/job/4")} == {"cancel"}
    assert {verb for verb, _ in writer.forms("/job/5")} == {"hold", "move", "cancel"}
    press(writer, "/job/2", "retry", "2.1")
    assert {verb for verb, _ in writer.forms("/job/2.1")} == set()


def test_a_submission_has_the_buttons_of_its_runs(queue: Layout, browser: Browser, writer: Browser) -> None:
    """Only the first page and those of jobs had any."""

    def verbs(group: int) -> set[str]:
        return {verb for verb, form in writer.forms(f"/group/{group}") if form["id"] == f"g{group}"}

    assert verbs(1) == {"cancel", "retry"} and verbs(2) == {"hold", "cancel"}
    assert browser.forms("/group/2") == [], "a reader has none, also after one that may write"
    page = press(writer, "/group/2", "hold", "g2")
    assert "run 5.1 is held; run 6.1 is held" in page and "is held;" not in text_of(writer.get("/group/2"))
    assert verbs(2) == {"release", "cancel"} and ("web", "hold") in history(queue, 6)
    press(writer, "/group/2", "release", "g2")
    assert "cancelled" in press(writer, "/group/2", "cancel", "g2") and verbs(2) == set()
    assert "is retried as run 2.2" in press(writer, "/group/1", "retry", "g1")
    page = writer.get("/group/1")
    assert 'id="run-2.2"' in page and 'id="run-2.1"' not in page and "5 runs</summary>" in page


def test_a_change_of_many_runs_is_one_sentence(queue: Layout, writer: Browser) -> None:
    with writing(open_engine(queue.db, check=False)) as connection:
        jobs.submit(connection, "mpsq submit third", 8, [NewJob(SPEC)] * 20, [(n, 1) for n in range(20)])
    assert "run 7.1 is held (and 19 more runs)" in press(writer, "/group/3", "hold", "g3")


def test_a_retry_that_is_always_refused_has_no_button(queue: Layout, writer: Browser, mpsq: Cli) -> None:
    with writing(open_engine(queue.db, check=False)) as connection:
        terms = Terms(after=((2, Condition.OK),)), Terms(deadline_at=time.time() + 1e4)
        jobs.submit(connection, "third", 8, [NewJob(SPEC, terms=each) for each in terms], [(0, 1), (1, 1)])
    mpsq.ok("cancel", "g3")
    assert 'href="/job/2"' in writer.get("/job/7") and writer.forms("/job/7") == []
    assert [verb for verb, _ in writer.forms("/job/8")] == ["retry"]
    with sqlite3.connect(queue.db) as raw:
        raw.execute("UPDATE jobs SET deadline_at = 1 WHERE id = 8")
    assert writer.forms("/job/8") == []
    mpsq.ok("retry", "2")  # which may succeed now
    assert [verb for verb, _ in writer.forms("/job/7")] == ["retry"]


def test_a_held_run_has_no_place_to_move_to(queue: Layout, writer: Browser, mpsq: Cli) -> None:
    """Its page had it at the top, but it did not start."""
    fields = next(form for verb, form in writer.forms("/") if (verb, form["id"]) == ("move", "5.1"))
    mpsq.ok("pause", "5")
    assert {verb for verb, form in writer.forms("/") if form["id"] == "5.1"} == {"release", "cancel"}
    assert {verb for verb, _ in writer.forms("/job/5")} == {"release", "cancel"}
    page = writer.get(writer.post("move", fields).headers["location"])  # it was held meanwhile
    assert "mpsq resume 5" in page[: page.index("Running</h2>")]
    assert "mpsq resume 5" in mpsq.ok("edit", "5", "--top").out


def test_a_retry_after_a_time_limit_says_that_it_keeps_the_limit(queue: Layout, writer: Browser) -> None:
    """It will time out again; the command beside the button gives more time."""
    assert "limit</button>" not in writer.get("/job/3") and "limit</button>" not in writer.get("/group/1")
    end_running_run(queue, Ending(Outcome.TIMED_OUT))
    assert "<button>retry with the same code and limit</button>" in writer.get("/job/4")
    assert "<button>retry the failed with the same code and limit</button>" in writer.get("/group/1")


def test_after_a_failure_the_next_step_runs_the_code_that_was_fixed(tmp_path: Path) -> None:
    """The page of the submission named `why`, that named `logs`, and the page of the run had both."""
    store = Store(tmp_path / "home")
    store.run("cpu", False, None, outcome="FAILED", exit_code=1, workload=None)
    browser = Browser(store.layout, write=True)
    browser.enter()
    RunDir(store.layout.run_dir("1.1")).path.mkdir(parents=True)
    RunDir(store.layout.run_dir("1.1")).stdout.write_text("no data")
    for page in ("/group/1", "/job/1"):
        html = browser.get(page)
        assert re.search("after a fix[:,] mpsq rerun g1 --missing", " ".join(text_of(html).split()))
        assert "mpsq why" not in html and "mpsq logs" not in html
        assert re.search("<button>retry.* with the same code</button>", html)


def test_a_step_whose_output_has_a_page_is_a_link() -> None:
    steps = (
        "mpsq logs 7.1 -f follows it",
        "mpsq why 3 explains it",
        "mpsq report g1 shows its numbers",
        "mpsq report g1",
    )
    steps += ("compare them: mpsq report g1 --vs lr=1e-3 --by loss",)
    pages = ("/log/7.1", "/job/3", "/group/1", "/group/1", "/compare?ids=g1&amp;vs=lr%3D1e-3")
    for step, page in zip(steps, pages, strict=True):
        assert f'<a href="{page}">' in render.linked(step)
    assert "<a" not in render.linked("mpsq report g2 --by time") and "<b>" not in render.linked("<b>")


def test_a_run_that_is_cancelled_here_says_so(queue: Layout, writer: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    """It named the number of the user, and the history the web."""
    monkeypatch.delenv("USER", raising=False)
    monkeypatch.setattr(actions, "_WITHIN_S", 0.0)
    press(writer, "/job/4", "cancel", "4.1")
    assert RunDir(queue.run_dir("4.1")).cancel.read_text() == "web"


# -- what is sent ------------------------------------------------------------------------------------------------------


def test_an_event_is_one_line_of_json() -> None:
    sent = live.event("text", "a\nb\r\n\n</script>\u2028")
    name, data, *rest = sent.split("\n")
    assert name == "event: text" and rest == ["", ""] and "\r" not in sent and "\u2028" not in sent
    assert json.loads(data.removeprefix("data: ")) == "a\nb\r\n\n</script>\u2028"


def test_too_many_listeners_are_turned_away(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MOST", 0)
    for path in ("/live", "/log/4.1/follow"):
        answer = browser.client.get(path)
        assert answer.status_code == 503 and answer.headers["retry-after"]


def test_the_time_of_the_end_is_given_where_it_is_known() -> None:
    known, unknown = (eta.Turn("5.1", eta.Expected(real_s, "", 0), 1e9, 1e9 + 60) for real_s in (60.0, None))
    assert views.until([known], 1e9) == clock(1e9 + 60, 1e9)
    assert views.until([replace(known, finish_sure=False)], 1e9).endswith(" or later")
    assert views.until([known, unknown], 1e9) == views.until([known, None], 1e9) == ""


def test_more_waiting_runs_than_the_page_has_are_not_its_whole_queue(
    queue: Layout, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "the next 2" not in browser.get("/") and "2 waiting runs" in browser.get("/")
    with writing(open_engine(queue.db, check=False)) as connection:
        jobs.submit(connection, "mpsq submit third", 8, [NewJob(SPEC), NewJob(SPEC)], [(0, 1), (1, 1)])
    monkeypatch.setattr(views, "WAITING", 3)
    page = browser.get("/")
    assert ">2 waiting runs<" in page and "next 1 waiting run<" in page and "and 1 more run" in text_of(page)


def test_results_that_are_deleted_leave_every_saved_page(queue: Layout, mpsq: Cli) -> None:
    """The job takes its events with it, and the newest one was another's."""
    with read.reading(queue.db) as connection:
        before = queue_state.history(connection), group_summary.version(connection, 1)
    mpsq.ok("delete", "2", "--results", "--yes")
    with read.reading(queue.db) as connection:
        after = queue_state.history(connection), group_summary.version(connection, 1)
    assert before[0] != after[0] and before[1] != after[1]


def test_trouble_is_a_sentence_and_ends(queue: Layout) -> None:
    """Its first letter was sent, and the box stayed on the page."""
    watcher = live.Watcher(queue, lambda _: {"running": ["without", "with forms"]})
    settings = queue.config.read_text() if queue.config.exists() else ""
    with watcher._listening():
        queue.config.write_text("broken = [")
        sentences = until(lambda: watcher._parts.get("trouble"), "the trouble")[1]
        assert len(sentences) == 2 and all(str(queue.config) in sentence for sentence in sentences)
        queue.config.write_text(settings)
        until(lambda: watcher._parts["trouble"][1] == ["", ""], "its end")


def test_a_defect_does_not_end_the_updates(queue: Layout) -> None:
    """The thread ended, and every page stood still without a word."""
    defects = [OSError(24, "Too many open files"), KeyError("of ours")]

    def render(_observation: object) -> dict[str, list[str]]:
        if defects:
            raise defects.pop(0)
        return {"running": ["without", "with forms"]}

    watcher = live.Watcher(queue, render)
    with watcher._listening():
        until(lambda: watcher._parts.get("running"), "the page after both")
        assert not defects and watcher._parts["trouble"][1] == ["", ""]
