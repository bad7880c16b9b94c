"""Secrets that were given with a submission are in no report, no list and no page: what would be shown is refused."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from queue_runner.paths import Layout
from tests.cli_support import Cli
from tests.queue_support import Queue
from tests.web.site_support import Browser

pytestmark = pytest.mark.process

PLANTED = "hunter2hunter2hunter2"
SHOWN_EVERYWHERE = {
    "--set": f"key=hf_{PLANTED}",
    "--name": f"ghp_{PLANTED}",
    "--tag": f"hf_{PLANTED}",
    "--note": f"mysql://root:{PLANTED}@host",
}


@pytest.mark.parametrize("option", SHOWN_EVERYWHERE)
def test_what_lists_and_pages_show_cannot_hold_a_secret(home: Path, mpsq: Cli, option: str) -> None:
    ran = mpsq("submit", option, SHOWN_EVERYWHERE[option], "--", "true")
    assert ran.code == 2 and f"{option}{' key' * (option == '--set')} contains a token" in ran.err
    assert not (home / "mpsq.db").exists()


def test_captions_rows_and_pages_have_no_planted_secret(queue: Queue, mpsq: Cli, tmp_path: Path) -> None:
    mpsq.ok(
        *("submit", "--allow-plain", "--set", "s=0.01,0.02", "--cwd", tmp_path, "--name", "planted"),
        *("--env", f"API_KEY={PLANTED}", "--env", f"MIRROR=https://me:{PLANTED}@host/", "--env", "OMP_NUM_THREADS=2"),
        *("--env", f"PYTORCH_MIRROR=https://me:{PLANTED}@host/"),  # a variable that is a part of the fingerprint
        *("--", "sh", "-c", "sleep {s}", "sh", f"--api-key=ghp_{PLANTED}"),
    )
    queue.worker("", "--until-idle")
    queue.done(2)
    said = [
        mpsq.ok(*words).out
        for words in (["report", "--explain", "--all"], ["report", "--json"], ["list"], ["show", "g1"])
    ]
    plot = ["report", "--plot", tmp_path / "plot.svg", "--all"]
    said += [mpsq.ok("show", "1.1").out, mpsq.ok(*plot).out, mpsq.ok("status").out]
    mpsq.ok("report", "--all", "--html", tmp_path / "page.html")
    said.append((tmp_path / "page.html").read_text())
    browser = Browser(Layout(queue.layout.home))
    said += [browser.get(path) for path in ("/", "/history", "/job/1", "/compare?id=g1")]
    assert "planted" in said[0] and "s=0.01" in said[0]
    assert not [text for text in said if PLANTED in text]
    with sqlite3.connect(queue.layout.db) as connection:
        connection.execute("UPDATE jobs SET spec_json = json_remove(spec_json, '$.argv')")  # --allow-plain stores it
        assert PLANTED not in "\n".join(connection.iterdump())
