"""report and import as commands; what reports compute is tested with them."""

from __future__ import annotations

import csv
import io
import os
import re
from pathlib import Path

import pytest

from tests.cli_support import Cli, full_queue

pytestmark = pytest.mark.process

LOG = "iter {}: loss 4.{}, time {}.00ms, mfu 1.00%\n"


@pytest.fixture
def mpsq(home: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    full_queue(home)
    return Cli(capsys)


def test_default_report_and_its_formats(mpsq: Cli) -> None:
    table, _, step = mpsq.ok("report", "1").out.rpartition("next: ")
    assert "20.0" in table and step.startswith("mpsq report 1 --explain ")
    for same in (["devices", "1"], ["g1", "--where", "name=ok"]):
        lines, _, step = mpsq.ok("report", *same).out.rpartition("next: ")
        assert lines == table and step.startswith(f"mpsq report {' '.join(same)} --explain ")
    rows = list(csv.DictReader(io.StringIO(mpsq.ok("report", "1", "--format", "csv").out)))
    assert len(rows) == 1 and rows[0]["device"] == "cpu"
    assert "|" in mpsq.ok("report", "1", "--format", "md").out
    assert mpsq.ok("report", "1", "--json").out == mpsq.ok("report", "1", "--format", "json").out


def test_reports_are_listed(mpsq: Cli) -> None:
    assert "devices" in mpsq.ok("report", "--list").out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--vs", "device"], "is not KEY=VALUE"),
        (["--where", "devise=cpu"], 'did you mean "device"?'),
        (["--since", "yesterday"], "or a date (2026-11-20)"),
        (["--iters", "50"], "is not FIRST:LAST"),
        (["g9"], "there is no group g9"),
        (["--group", "9"], "hint: name it without an option, g4 or @last; see"),
        (["--group-by", "devise"], "devise"),
    ],
)
def test_bad_options(mpsq: Cli, arguments: list[str], said: str) -> None:
    ran = mpsq("report", *arguments)
    assert ran.code == 2 and said in ran.err and ran.err.startswith("error: ") and "hint: " in ran.err


def test_a_report_never_comes_out_empty_without_a_word(mpsq: Cli) -> None:
    assert mpsq.ok("report", "5").out.strip()
    ran = mpsq.ok("report", "--where", "device=cuda")
    assert (ran.out + ran.err).strip()


def test_import(mpsq: Cli, tmp_path: Path) -> None:
    for name, time in (("eager.log", 20), ("compiled.log", 40)):
        (tmp_path / name).write_text("".join(LOG.format(i, 9 - i, time) for i in range(5)))
    ran = mpsq.ok("import", tmp_path / "eager.log", "--parser", "nanogpt", "--set", "device=mps", "--name", "post")
    assert "5 iterations" in ran.out and "run 7.1" in ran.out
    mpsq.ok("import", tmp_path / "compiled.log", "--set", "device=mps", "--set", "compile=on", "--tag", "metal")
    job = mpsq.ok("list", "--tag", "metal", "--json").json()["jobs"][0]
    assert (job["kind"], job["device"], job["compile"], job["ok"]) == ("import", "mps", True, True)
    assert "mps" in mpsq.ok("report", "7", "8").out
    again = mpsq("import", tmp_path / "eager.log")
    assert again.code == 1 and "already been imported" in again.err
    assert "the imported file" in mpsq("logs", "7").err
    (tmp_path / "other.log").write_text("nothing of interest\n")
    assert mpsq("import", tmp_path / "other.log").code == 2
    assert mpsq("import", tmp_path / "eager.log", "--set", "device=tpu").code == 2


def test_a_log_that_ends_in_a_traceback_has_not_succeeded(mpsq: Cli, tmp_path: Path) -> None:
    log = "".join(LOG.format(i, 9 - i, 20) for i in range(5))
    (tmp_path / "failed.log").write_text(
        f"{log}Traceback (most recent call last):\n  File 'x'\nValueError: so it said\n"
    )
    ran = mpsq.ok("import", tmp_path / "failed.log", "--set", "device=cuda", "--json")
    (run,) = ran.json()["runs"]
    assert run["outcome"] == "LOST" and "traceback" in run["reason"] and "so it said" in run["reason"]
    assert "so it said" in mpsq.ok("show", run["run"]).out
    (row,) = mpsq.ok("report", run["run"], "--json").json()["rows"]
    assert (row["n_valid"], row["compared"]) == (0, False)
    (row,) = mpsq.ok("report", run["run"], "--all", "--json").json()["rows"]
    assert row["compared"]
    assert "ended is unknown" in mpsq.ok("why", run["run"]).out


def test_what_never_ends_is_not_imported(mpsq: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    for name in ("fifo", "link"):
        ran = mpsq("import", tmp_path / name)
        assert ran.code == 2 and f"{name} cannot" in ran.err and "regular file" in ran.err
    (tmp_path / "long.log").write_text(LOG.format(0, 9, 20))
    monkeypatch.setattr("queue_runner.control.import_log.MAX_LOG_BYTES", 10)
    assert "larger than 10 B" in mpsq("import", tmp_path / "long.log").err


def test_the_list_of_reports_fits_a_terminal(mpsq: Cli) -> None:
    shown = mpsq.ok("report", "--list").out
    assert max(map(len, shown.splitlines())) <= 80 and all(name in shown for name in ("breakdown", "devices", "time"))


def test_html_is_one_file_that_says_how_it_was_made(mpsq: Cli, tmp_path: Path) -> None:
    page = tmp_path / "out.html"
    done = mpsq.ok("report", "1", "--html", str(page))
    assert done.out == "" and f"wrote {page} (" in done.err
    text = page.read_text("utf-8")
    assert text.startswith("<!doctype html>") and f"mpsq report 1 --html {page}" in re.sub("</?span[^>]*>", "", text)
    assert page.stat().st_mode & 0o777 == 0o644


def test_html_cannot_be_combined_with_another_output(mpsq: Cli, tmp_path: Path) -> None:
    for other in (["--json"], ["--format", "csv"]):
        ran = mpsq("report", "--html", tmp_path / "out.html", *other)
        assert ran.code == 2 and "--html cannot" in ran.err
    assert not (tmp_path / "out.html").exists()


def test_html_into_no_folder_is_a_sentence(mpsq: Cli, tmp_path: Path) -> None:
    missing = mpsq("report", "--html", tmp_path / "missing" / "out.html")
    assert missing.code == 1 and "No such file" in missing.err
    folder = mpsq("report", "--html", tmp_path)
    assert folder.code == 1 and "cannot be written" in folder.err


def test_a_log_and_its_copy_are_refused_in_one_command(mpsq: Cli, tmp_path: Path) -> None:
    log, copy = tmp_path / "a.log", tmp_path / "b.log"
    for path in (log, copy):
        path.write_text(LOG.format(0, 9, 20))
    before = len(mpsq.ok("list", "--json").json()["jobs"])
    for first, second in ((log, copy), (log, log)):
        ran = mpsq("import", first, second)
        assert ran.code == 2 and f"{first} and {second} are the same" in ran.err
    assert len(mpsq.ok("list", "--json").json()["jobs"]) == before
