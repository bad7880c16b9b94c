"""Outcomes, verdicts and warnings are coloured on a terminal, and nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli_support import full_queue

pytestmark = pytest.mark.process

COMMANDS = (
    "status",
    "list",
    "list --runs",
    "show 1.1",
    "show 2",
    "show g1",
    "report",
    "report time",
    "report iterations 2",
)
FEW = ("status", "show 2", "report time")
_RUN = """
import sys
from queue_runner.cli.main import main
for words in sys.argv[1:]:
    print("===", words, flush=True)
    main(words.split())
    sys.stdout.flush()
"""
RED, GREEN, YELLOW = "\x1b[31m", "\x1b[32m", "\x1b[33m"


def on_a_terminal(*commands: str, **environment: str) -> dict[str, str]:
    """What each of these commands writes to a terminal."""
    master, slave = os.openpty()
    env = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    env |= {"TERM": "xterm", "COLUMNS": "100", **environment}
    process = subprocess.Popen([sys.executable, "-c", _RUN, *commands], stdout=slave, stderr=slave, env=env)
    os.close(slave)
    found = b""
    try:
        while data := os.read(master, 1 << 16):
            found += data
    except OSError:  # the terminal of a process that has ended
        pass
    os.close(master)
    assert process.wait() == 0
    parts = found.decode().split("=== ")[1:]
    return {words: part for words, part in zip(commands, parts, strict=True)}


@pytest.fixture(autouse=True)
def _queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full_queue(tmp_path / "home")
    monkeypatch.setenv("MPSQ_HOME", str(tmp_path / "home"))


def test_a_terminal_shows_colours() -> None:
    shown = on_a_terminal(*COMMANDS)
    assert f"{GREEN}SUCCEEDED" in shown["status"] and f"{RED}FAILED(3)" in shown["status"]
    assert f"{YELLOW}none" in shown["status"]  # no worker
    assert f"{GREEN}SUCCEEDED" in shown["list"] and f"{RED}KILLED(9)" in shown["list --runs"]
    assert f"{GREEN}SUCCEEDED" in shown["show 1.1"]
    assert f"{RED}FAILED(3)" in shown["show 2"] and f"{RED}contended" in shown["show 2"]
    assert f"{RED}FAILED(3)" in shown["show g1"]
    assert f"{YELLOW}caveats: " in shown["report"]
    assert f"{RED}FAILED" in shown["report time"] and f"{YELLOW}!" in shown["report time"]
    assert f"{YELLOW}!" in shown["report iterations 2"]


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_there_are_no_colours_if_nobody_wants_them(environment: dict[str, str]) -> None:
    assert not [words for words, text in on_a_terminal(*FEW, **environment).items() if "\x1b" in text]


def test_a_pipe_gets_plain_text() -> None:
    command = [sys.executable, "-c", _RUN, *FEW]
    piped = subprocess.run(command, env={**os.environ, "TERM": "xterm"}, capture_output=True, text=True, check=True)
    assert "\x1b" not in piped.stdout + piped.stderr
