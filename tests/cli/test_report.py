"""report and import as commands; what reports compute is tested with them."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path

import pytest

from tests.cli_support import Cli, full_queue

LOG = "iter {}: loss 4.{}, time {}.00ms, mfu 1.00%\n"


@pytest.fixture
def mpsq(home: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    full_queue(home)
    return Cli(capsys)


def test_default_report_and_its_formats(mpsq: Cli) -> None:
    table = mpsq.ok("report", "1").out
    assert "20.0" in table
    assert mpsq.ok("report", "devices", "1").out == table == mpsq.ok("report", "--group", "1", "--where", "name=ok").out
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
        (["--group", "9"], "there is no group g9"),
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
    assert again.code == 1 and "has already been imported" in again.err
    assert "its log is the imported file" in mpsq("logs", "7").err
    (tmp_path / "other.log").write_text("nothing of interest\n")
    assert mpsq("import", tmp_path / "other.log").code == 2
    assert mpsq("import", tmp_path / "eager.log", "--set", "device=tpu").code == 2


def test_what_never_ends_is_not_imported(mpsq: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    for name in ("fifo", "link"):
        ran = mpsq("import", tmp_path / name)
        assert ran.code == 2 and f"{name} cannot be read: not a regular file" in ran.err
    (tmp_path / "long.log").write_text(LOG.format(0, 9, 20))
    monkeypatch.setattr("queue_runner.control.import_log.MAX_LOG_BYTES", 10)
    assert "long.log is larger than 10 B" in mpsq("import", tmp_path / "long.log").err


def test_the_list_of_reports_fits_a_terminal(mpsq: Cli) -> None:
    shown = mpsq.ok("report", "--list").out
    assert max(map(len, shown.splitlines())) <= 80 and all(name in shown for name in ("breakdown", "devices", "time"))
