"""A queue that was archived on a read-only disk: it can be read, and what would change it is refused."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from queue_runner.host.warden_records import RunEnd
from queue_runner.paths import Layout
from tests.cli_support import Cli, full_queue
from tests.process_support import needs_linux
from tests.web.site_support import Browser

pytestmark = pytest.mark.process

READ = (
    ("status",),
    ("list", "--all"),
    ("show", "1"),
    ("why", "2"),
    ("logs", "1"),
    ("report", "--all"),
    ("wait", "1"),
    ("db", "sql", "SELECT count(*) FROM runs"),
    ("db", "check"),
)


@pytest.fixture(params=["checkpointed", "with a log"])
def archived(request: pytest.FixtureRequest, home: Path) -> Iterator[Layout]:
    """A queue in a folder that cannot be written; as root that takes a mount of its own."""
    queue = full_queue(home)
    (queue.run_dir("4.1") / "warden/exit.json").write_text(RunEnd(exit_code=3, real_s=6.5, ended_at=2e9).to_json())
    if request.param == "with a log":
        writer = sqlite3.connect(queue.db, isolation_level=None)
        writer.execute("PRAGMA journal_mode=WAL")
        writer.execute("UPDATE jobs SET note = 'in the log only' WHERE id = 1")
        log = Path(f"{queue.db}-wal").read_bytes()
        writer.close()
        Path(f"{queue.db}-wal").write_bytes(log)
    Path(f"{queue.db}-shm").unlink(missing_ok=True)
    if os.geteuid() != 0:
        home.chmod(0o500)
        yield queue
        home.chmod(0o700)
        return
    if subprocess.run(["mount", "--bind", home, home], capture_output=True).returncode:
        pytest.skip("root can write everywhere here, and may not mount")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", home], check=True)
        yield queue
    finally:
        subprocess.run(["umount", home], check=True)


@needs_linux
def test_an_archived_queue_can_be_read(archived: Layout, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    mpsq = Cli(capsys)
    before = sorted(archived.home.iterdir())
    for words in READ:
        assert mpsq.ok(*words).out, words
    if Path(f"{archived.db}-wal").exists():
        assert "in the log only" in mpsq.ok("show", "1").out
    assert "FAILED(3) (unsaved)" in mpsq.ok("list", "4").out
    mpsq.ok("export", str(tmp_path / "out"), "--to", "csv")
    mpsq.ok("report", "--all", "--html", str(tmp_path / "report.html"))
    browser = Browser(archived)
    browser.enter()
    for path in ("/", "/history", "/job/1"):
        browser.get(path)
    assert sorted(archived.home.iterdir()) == before


@needs_linux
@pytest.mark.parametrize("words", [("submit", "--", "true"), ("cancel", "5"), ("gc",), ("db", "backup")])
def test_what_would_change_it_is_refused_in_a_sentence(
    archived: Layout, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    ran = Cli(capsys)(*words)
    assert ran.code == 1 and ran.err.startswith("error: ") and "hint: " in ran.err
