"""What a box that hangs costs: ssh is a stand-in that answers late, or not at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from queue_runner import __version__
from queue_runner.paths import Layout
from queue_runner.remote import box, box_setup, ssh
from queue_runner.remote.link import Link
from queue_runner.remote.profile import Profile
from queue_runner.remote.target import Unreachable
from tests.queue_support import until

pytestmark = pytest.mark.process

TOKEN = "a" * 32
LONG_S = 600.0


def ssh_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "ssh").write_text(f"#!/bin/sh\n{script}\nexec sleep {LONG_S}\n")
    (programs / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")


def test_a_box_that_does_not_answer_holds_nobody_up_for_as_long_as_it_may_send_files(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh_says(tmp_path, monkeypatch, "")
    monkeypatch.setattr(ssh, "ANSWER_S", 0.1)
    box = ssh.Ssh("box", Profile(name="box", host="box", poll_s=LONG_S), layout)
    box.folder(TOKEN).path.mkdir(parents=True)
    for _ in range(2):
        with pytest.raises(Unreachable, match="no answer within"):
            box.look(TOKEN)


def test_files_that_stop_coming_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh_says(tmp_path, monkeypatch, "printf 'mpsq-answer-1\\n{}\\nab'")
    with (
        pytest.raises(Unreachable, match="in the middle"),
        Link("box", "python3", "~/.mpsq").call("sync", TOKEN, None, LONG_S, 0.1) as answered,
    ):
        answered.read(3)


def test_a_worker_that_stops_ends_its_call_and_makes_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh_says(tmp_path, monkeypatch, f"touch {tmp_path}/called")
    link = Link("box", "python3", "~/.mpsq")
    ended: list[str] = []

    def ask() -> None:
        with pytest.raises(Unreachable), link.call("sync", TOKEN, None, LONG_S):
            pass
        ended.append("asked")

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    until((tmp_path / "called").exists, "the call")
    began = time.monotonic()
    link.abort()
    asking.join(30.0)
    ask()
    assert ended == ["asked"] * 2 and time.monotonic() - began < 30


def test_the_home_of_nobody_is_an_answer() -> None:
    """The folder of a profile is expanded on the box, where only an answer is read."""
    nobody = "~no-such-user/blocks"
    words = {box: ["hello", __version__, nobody, TOKEN], box_setup: [nobody, __version__]}
    for module, arguments in words.items():
        command = [sys.executable, "-m", module.__name__, *arguments]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True)
        *_, mark, answer = done.stdout.splitlines(keepends=True)
        assert mark == box.MARK and json.loads(answer)["error"].startswith(nobody)
