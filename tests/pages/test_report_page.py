"""The page of a report, from a real store: every part is there, nothing is requested, nothing of a user is markup."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from queue_runner import reports
from queue_runner.pages import report_page
from queue_runner.reports._common.report_options import read_options
from queue_runner.spec import NO_CODE, Aim
from queue_runner.store import read
from tests.pages.pages_fixture import evening, page_of
from tests.pages.test_render import HOSTILE, Seen
from tests.reports.report_fixture import Store
from tests.reports.test_sweeps import command

pytestmark = pytest.mark.process


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "home")
    for k in range(4):
        for device, median_s in (("cpu", 0.4), ("mps", 0.1)):
            run_id = made.run(device, False, median_s * (1 + k / 100))
            made.iterations(run_id, [median_s * (1 + i % 7 / 100) for i in range(100)])
            made.watched(run_id, [{"gpu_busy_share": 0.9, "others_cpu_share": 0.1, "load1": 2.0} for _ in range(20)])
    made.run("mps", False, 0.15, taints={"contended": ("invalid", "other programs used 40 % of the machine's cores")})
    return made


def test_every_part_is_there_in_order(store: Store) -> None:
    page = page_of(store)
    parts = ("answer", "tables", "runs", "behind")
    places = [page.index(f'<section id="{part}"') for part in parts]
    assert places == sorted(places)
    text = Seen(page).text
    assert "Which is faster" in text and "mps eager is 4.00 x" in text
    assert all(x in text for x in ("1 of 9 runs", "contended (1)", "one machine"))
    assert "GPU busy" in text and "median 90 %" in text
    assert "--html out.html" in text
    assert page.count('class="dot"') == 10 and page.count('class="out"') == 1
    assert "Hollow" not in text, "a legend of the marks that are there"
    assert all(x in page for x in ("run 2.5: 150.0 ms, left", "left out; contended: ", "machine&#39;s cores"))


def test_the_legend_of_a_metric_has_no_marks_that_its_charts_lack(tmp_path: Path) -> None:
    store = Store(tmp_path / "home")
    for k in range(3):
        for device in ("cpu", "mps"):
            store.metric(store.run(device, False, 0.1), "score", k / 10 + (device == "mps"))
    legends = re.findall("<figcaption>(Dot.*?)</figcaption>", page_of(store, by="score"))
    assert len(legends) == 2 and not re.search("bar|hollow|cross|no interval", legends[0].lower())


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_names_labels_and_remarks_of_users_are_text(store: Store, text: str) -> None:
    plain = text.encode("utf-8", "replace").decode()  # SQLite keeps no lone surrogate
    before = page_of(store)
    store.run("mps", False, 0.2, config=plain, taints={"op_fallback": ("caveat", plain)}, params={plain: plain})
    store.run("cpu", False, 0.3, config=plain, machine={"name": plain, "gpus": [plain]})
    page = page_of(store)
    seen = Seen(page)
    assert {*seen.tags} == {*Seen(before).tags}
    assert not [name for name, _ in seen.attributes if name.startswith("on")]
    assert not re.search(r"[\x00-\x08\x0e-\x1f\x7f\u202a-\u202e\u2066-\u2069]", page)


def test_the_gpu_of_an_apple_chip_is_named_with_its_cores(store: Store) -> None:
    store.run("mps", False, 0.2, machine={"cpu": "Apple M1 Max", "gpus": [{"cores": 32, "name": "Apple M1 Max"}]})
    assert "Apple M1 Max with 32" in Seen(page_of(store)).text


def test_nothing_is_requested(store: Store) -> None:
    seen = Seen(page_of(store))
    links = [value for name, value in seen.attributes if name in ("src", "href")]
    assert all(link == "data:," or link.startswith("#caveat-") for link in links)


@pytest.mark.parametrize("name", reports.names())
def test_every_report_has_a_page(store: Store, name: str) -> None:
    seen = Seen(page_of(store, name))
    assert ("id", "behind") in seen.attributes and "The same report" in seen.text
    assert bool(store.report(name).rows) == ("Numbers" in seen.text)


def test_an_empty_store_has_a_page_that_says_so(tmp_path: Path) -> None:
    text = Seen(page_of(Store(tmp_path / "empty"))).text
    assert "no run" in text and "Numbers" not in text


def test_a_page_of_runs_that_do_not_count_says_so_and_has_no_good_sign(tmp_path: Path) -> None:
    """It showed "yes: no caveats" for a crash, and for runs that had not ended."""
    store = Store(tmp_path / "home")
    store.run("cpu", median_s=None, outcome=None, group=1)
    store.run("cpu", median_s=None, outcome="FAILED", exit_code=1, group=2)
    waits, failed = (" ".join(Seen(page_of(store, selectors=[group])).text.split()) for group in ("g1", "g2"))
    assert "no run" in waits and "mpsq why g1" in waits
    assert "believed" not in waits and "Numbers" not in waits
    assert failed.count("FAILED(1)") == 1 and failed.index("run 2.1 FAILED(1)") < failed.index("How it was measured")
    assert "believed" not in failed and "Numbers" not in failed and "passes no verdict" not in failed


def test_failures_that_are_alike_are_counted_at_the_top(tmp_path: Path) -> None:
    store = Store(tmp_path / "home")
    for reason in ("no data", "no data", "no data", "no memory"):
        store.run("cpu", median_s=None, outcome="FAILED", exit_code=1, reason=reason)
    text = " ".join(Seen(page_of(store)).text.split())
    assert "run 1.1 FAILED(1): no data (and 2 more runs)" in text and "run 1.4 FAILED(1): no memory" in text


def test_runs_without_a_valid_number_still_say_why_they_do_not_count(tmp_path: Path) -> None:
    store = Store(tmp_path / "home")
    store.run("cpu", taints={"wrong_loss": ("invalid", "its loss is wrong")})
    store.run("cpu", median_s=None, outcome="FAILED", exit_code=1)
    text = " ".join(Seen(page_of(store)).text.split())
    assert "2 of 2 runs are left out" in text and "its loss is wrong" in text


def test_a_report_of_one_row_says_its_time_first(tmp_path: Path) -> None:
    store = Store(tmp_path / "home")
    for k in range(3):
        store.run("cpu", False, 0.1 + k / 1000)
    top = page_of(store).partition("believed")[0]
    assert "101.0 ± 1.0 ms/iter" in top and "passes no verdict" not in top


def test_a_page_of_unrelated_questions_begins_with_that_nothing_was_compared(tmp_path: Path) -> None:
    """A caveat of one of them stood in the box, as if it were the answer."""
    store = Store(tmp_path / "home")
    store.run("cpu", False, 0.1, summary={"drift_ratio": 1.3}, taints={"drift": ("caveat", "it drifted")})
    store.run("cpu", False, 0.1, workload="resnet50", config="full")
    page = Seen(page_of(store)).text
    assert 0 < page.index("nothing was compared") < page.index("drifted") and page.count("nothing was compared") == 1


def test_what_a_page_of_several_questions_lacks_stands_near_its_answer(tmp_path: Path) -> None:
    """A crash and a time limit hid an older answer; its note was in a fold, and both stood above the answer that was
    there."""
    store = Store(tmp_path / "home")
    for group, config in enumerate(("oldest", "older"), 1):
        for k in range(8):
            store.run(
                "cpu" if k % 2 else "mps",
                False,
                0.1 * (1 + k % 2 + k / 1000),
                config=config,
                group=group,
                ended_at=1e9 + group,
            )
    for group in (3, 4, 5):
        store.run("cpu", median_s=None, outcome="LOST", workload=f"crash{group}", group=group, ended_at=1e9 + group)
    text = " ".join(Seen(page_of(store)).text.split())
    top = text[: text.index("believed")]
    assert "Which is faster" in top and "mps eager is" in top and "mpsq report g1 shows it" in top
    assert "tiny" not in top and text.count("older submission not shown") == 1


def test_the_answers_of_two_comparisons_weigh_the_same(store: Store) -> None:
    """That of table A was large, and that of table B small."""
    assert page_of(store).count('<p class="first">') == 1
    for device, median_s in (("cpu", 0.4), ("mps", 0.1)):
        for k in range(4):
            store.run(device, False, median_s * (1 + k / 100), workload="resnet50", config="full")
    page = page_of(store)
    assert "A: " in page and "B: " in page and '<p class="first">' not in page


def test_secrets_of_command_lines_and_variables_are_hidden(tmp_path: Path) -> None:
    store = evening(Store(tmp_path / "home"), 2, 10)
    page = page_of(store)
    assert "hf_abcdefghijklmnop0123456789" not in page and "sk-0123456789abcdefghij" not in page
    assert page.count("[hidden]") == 2
    store.run(None, None, 0.1, workload=None, argv=["python", "train.py", "--api-key", "ghp_hunter2hunter2hunter2"])
    assert "ghp_hunter2hunter2hunter2" not in page_of(store)


@pytest.mark.parametrize("code", [None, "5" * 64])
def test_the_hash_of_nothing_is_not_shown_as_code(tmp_path: Path, code: str | None) -> None:
    """Rows of a folder without code were called code=e3b0c442."""
    store = Store(tmp_path / "home")
    for k in range(6):
        store.run("cpu", False, 0.1, software={"code": code if k % 2 else NO_CODE}, group=k)
    page = page_of(store)
    assert NO_CODE[:8] not in page
    assert ("code=55555555" in page) == (code is not None)


def test_too_few_runs_are_a_limit_and_no_good_sign(store: Store) -> None:
    assert 'class="box good"' in page_of(store)
    for device in ("cpu", "mps"):
        store.run(device, False, 0.1, config="other")
    text = page_of(store, where=["config=other"])
    assert 'class="box warn"' in text and "rerun g1 --rounds 2" in Seen(text).text
    box = Seen(text[text.index('class="box warn"') : text.index("Next:")]).text
    assert "undecided: about 2" in box and box.count("undecided") == 1


@pytest.mark.parametrize("is_named", [True, False])
def test_a_metric_that_is_decided_is_named_where_the_time_is_not(tmp_path: Path, is_named: bool) -> None:
    """The page of a sweep with a clear loss and equal times had no more in its box than that the time is undecided."""
    store = Store(tmp_path / "home")
    for k in range(5):
        for device in ("cpu", "mps"):
            median_s = 0.10137 + 0.0307 * ((k + (device == "mps")) % 2) + k / 1e5
            run = store.run(device, False, median_s, hello={"seed": k})
            store.metric(run, "score", 2 + k / 100 - (device == "mps"))
    page = page_of(store, same_within="score=0.01" if is_named else None)
    box = Seen(page[page.index('class="box warn"') : page.index("</div>", page.index('class="box warn"'))]).text
    assert (
        "time: undecided (over 200" in box and "; score: decided" in box and "score of mps eager is 1.000 lower" in box
    )
    text = Seen(page).text
    assert "difference in score from cpu eager; right of 0 is higher" in text and "score at the end of a run" in text, (
        "it had no chart"
    )
    assert "speedup over cpu eager" in text and page.count('<p class="status">') == 1
    assert "no verdict on the time yet" in text and text.count("is 1.000 lower") == 1


def test_the_first_tables_cells_are_those_of_a_terminal(store: Store) -> None:
    result = store.report()
    text = Seen(page_of(store)).text
    for section in result.sections:
        for row in section.rows:
            for column in section.columns:
                assert column.show(row) in text


def test_runs_that_are_included_on_request_are_not_called_valid(store: Store) -> None:
    text = page_of(store, include_invalid=True)
    assert "1 invalid run" in text and "are valid" not in text


def test_a_page_of_commands_speaks_of_runs_and_has_one_table_for_what_a_terminal_splits(store: Store) -> None:
    for k in range(4):
        for s, real_s in (("a value of some length, 1", 0.2), ("a value of some length, 2", 0.4)):
            command(store, real_s + k / 1e3, ("sleep", s), params={"s": s}, group=9)
    page = page_of(store, selectors=("g9",))
    seen = Seen(page).text
    assert "time of a run (" in seen and "per iteration" not in seen
    assert "first row submitted" in seen  # neither eager nor compiled
    assert "Table A" in seen and "Table B" not in seen
    assert page.index(">verdict") < page.index(">user")


@pytest.mark.parametrize("name", ["missing", "matmul"])
def test_a_page_has_no_runs_that_its_report_does_not_select(store: Store, name: str) -> None:
    """The report missing shows the newest group, and matmul its workload; the page had charts of any newest runs."""
    store.run("cpu", False, 0.3, config="newest", group=9)
    text = Seen(page_of(store, name)).text
    assert "1.1" not in text and "shakespeare" not in text
    assert ("4.1" in text or "g9" in text) == (name == "missing")


def test_a_page_does_not_depend_on_the_terminal(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = []
    for columns in ("60", "300"):
        monkeypatch.setenv("COLUMNS", columns)
        pages.append(page_of(store))
    assert pages[0] == pages[1]


def test_a_run_without_a_machine_is_a_machine_of_its_own(store: Store) -> None:
    assert "; one machine" in page_of(store)
    run_id = store.run("cpu", False, 0.2, config="log")
    store.db.execute("UPDATE runs SET machine_hash = NULL WHERE id = ?", [run_id])
    store.db.execute("UPDATE jobs SET kind = 'import' WHERE id = (SELECT job_id FROM runs WHERE id = ?)", [run_id])
    page = page_of(store)
    assert "2 machines" in page and "unknown" in page


def test_the_title_is_the_question_or_the_name_of_the_report(store: Store) -> None:
    assert "<h1>Which is faster" in page_of(store)
    assert "<h1>Train vs infer</h1>" in page_of(store, "train-vs-infer")


def test_the_baseline_of_a_page_comes_without_an_option_of_the_command(store: Store) -> None:
    assert "Baseline: cpu eager." in page_of(store) and "--vs" not in page_of(store)
    assert "chosen by --vs" in page_of(store, vs="device=mps")


def test_the_title_names_the_metric_before_results_arrive(tmp_path: Path) -> None:
    """It asked which row is faster until then."""
    store = Store(tmp_path / "home")
    for device in ("cpu", "mps"):
        store.run(device, median_s=None, outcome=None)
    assert "Which is faster" in page_of(store)
    store.db.execute("UPDATE groups SET aim = ?", [Aim("loss").to_json()])
    assert "<h1>Which has the lowest loss?</h1>" in page_of(store)


def test_a_page_of_more_rows_needs_no_more_queries(tmp_path: Path) -> None:
    def n_queries(n_rows: int) -> int:
        made = Store(tmp_path / str(n_rows))
        for n in range(n_rows):
            made.run("cpu", False, 0.1, params={"width": n})
        statements: list[str] = []
        with read.reading(made.layout.db) as connection:
            connection.set_trace_callback(statements.append)
            report_page.build("devices", made.layout, connection, read_options(), command="mpsq report")
        return len(statements)

    assert n_queries(4) == n_queries(12)


def test_the_letter_of_a_caveat_leads_to_its_text(store: Store) -> None:
    store.run("mps", False, 0.1, taints={"throttled": ("caveat", "the GPU reached 88 degrees")})
    page = page_of(store)
    assert 'href="#caveat-a"' in page and 'id="caveat-a">a = throttled: ' in page


def test_a_run_that_was_retried_is_not_left_out(store: Store) -> None:
    store.retry(1, "cpu", False, 0.402)
    assert "left out: contended (1);" in Seen(page_of(store)).text


@pytest.mark.parametrize("retry_works", [True, False])
def test_a_repeat_of_which_one_attempt_counts_is_not_left_out(tmp_path: Path, retry_works: bool) -> None:
    """The page left out "2 of 6 runs", and its chart "1", of which the retry had succeeded."""
    store = Store(tmp_path / "home")
    failed: dict[str, Any] = {"median_s": None, "outcome": "FAILED", "exit_code": 1}
    for device in ("cpu", "mps"):
        store.run(device)
        first = store.run(device, **(failed if retry_works else {}))
        store.retry(first, device, compile=False, **({} if retry_works else failed))
    text = " ".join(Seen(page_of(store)).text.split())
    assert "all 4 runs that ended are valid" in text and "100.0 ms, 2 runs" in text
    assert "are left out:" not in text and "2 runs, 1 left out" not in text


def test_runs_that_have_not_ended_are_counted_apart(store: Store) -> None:
    for _ in range(3):
        store.run("mps", False, None, outcome=None)
    text = " ".join(Seen(page_of(store)).text.split())
    assert "9 runs, ended 2001-09-" in text and ", 3 not ended yet" in text


def test_a_retry_that_failed_too_is_the_same_run(tmp_path: Path) -> None:
    """A page had "0/1" in its table beside "2 runs left out", and named the attempt that was retried."""
    store = Store(tmp_path / "home")
    failed = store.run("cpu", False, None, outcome="FAILED", exit_code=1)
    store.retry(failed, "cpu", compile=False, median_s=None, outcome="FAILED", exit_code=1)
    text = " ".join(Seen(page_of(store)).text.split())
    box = text[: text.index("How it was measured")]
    assert "run 1.2 FAILED(1)" in box and "run 1.1" not in box
    store.run("cpu", True)
    text = " ".join(Seen(page_of(store)).text.split())
    assert "0/1" in text and "1 of 2 runs is left out: failed (1)" in text and "1 run left out" in text


def test_a_time_whose_spread_would_reach_below_0_is_a_range(tmp_path: Path) -> None:
    """It was "100 ± 200 ms/iter"."""
    store = Store(tmp_path / "home")
    for median_s in (0.02, 0.1, 0.9):
        store.run("cpu", False, median_s)
    text = Seen(page_of(store)).text
    assert "cpu eager: 20.0 to 900 ms/iter, 3 runs" in text and text.count("20.0 to 900") == 2
    assert "122 \N{PLUS-MINUS SIGN}" not in text and "100 \N{PLUS-MINUS SIGN}" not in text


def test_the_names_of_a_page_are_those_that_a_user_knows(tmp_path: Path) -> None:
    """A setting was called "n layer", and a ratio of 0.5 "speedup", beside a sentence with "2 x slower"."""
    store = Store(tmp_path / "home")
    for k in range(4):
        for n_layer in (1, 2):
            store.run("cpu", False, 0.1 * n_layer * (1 + k / 100), params={"n_layer": n_layer})
    page = page_of(store)
    assert "varied: n_layer (1, 2)" in Seen(page).text and "n layer" not in page
    assert ">speedup (95 % CI)<" in page and "so 0.5 is 2 x slower" in page


@pytest.mark.parametrize("command", ["mpsq submit", "mpsq run", "mpsq bench"])
def test_the_commands_of_a_page_stand_in_their_order(store: Store, command: str) -> None:
    """A worker stood after each submission, though one works for all, and the page before the programs."""
    store.db.execute("UPDATE groups SET title = ?", [f"{command} nanogpt"])
    behind = re.sub("</?span[^>]*>", "", page_of(store).partition('<section id="behind"')[2])
    assert "mpsq worker" not in behind
    assert behind.index(f"{command} nanogpt") < behind.index("The programs that") < behind.index("The same report")
