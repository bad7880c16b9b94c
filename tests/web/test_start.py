"""What a user can get wrong with mpsq web, before there is a server."""

from __future__ import annotations

import importlib.util
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from queue_runner.paths import Layout
from queue_runner.web import web_command
from tests.cli_support import Cli
from tests.patience import until
from tests.process_support import needs_linux


def test_without_the_extra_there_is_a_sentence_and_its_remedy(
    layout: Layout, mpsq: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else found(name))
    ran = mpsq("web")
    assert ran.code == 2 and "needs Starlette" in ran.err and "install starlette uvicorn" in ran.err


def test_a_taken_port_is_a_sentence(layout: Layout, mpsq: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ran = mpsq("web", "--port", taken.getsockname()[1])
    assert ran.code == 1 and "already in use" in ran.err and "--port 0" in ran.err


@pytest.mark.parametrize("port", ["-1", "65536", "x"])
def test_a_port_that_is_none_is_a_sentence(layout: Layout, mpsq: Cli, port: str) -> None:
    assert mpsq("web", "--port", port).code == 2


def test_nobody_elsewhere_can_reach_it() -> None:
    with web_command.listen(0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


def test_the_command_becomes_a_program_with_the_socket_and_without_a_secret(
    layout: Layout, mpsq: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    became: list[list[str]] = []

    def execve(_program: str, arguments: list[str], _environment: dict[str, str]) -> None:
        became.append(arguments)
        fd = int(arguments[4])
        with socket.socket(fileno=socket.dup(fd)) as listener:
            assert listener.getsockname()[0] == "127.0.0.1"
        raise SystemExit(0)

    monkeypatch.setattr("os.execve", execve)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        assert mpsq("web", "--port", "0", "--write").code == 0
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)  # else Ctrl-C of no later test would arrive
    assert became[0][1:4] == ["-P", "-m", "queue_runner.web"] and became[0][-1] == "--write"


@pytest.mark.process
def test_a_library_that_needs_a_module_left_out_gets_it() -> None:
    code = (
        "import os, runpy, sys\n"
        "sys.modules['queue_runner.web.serve'] = None\n"
        "os.execve = lambda program, words, variables: sys.exit(variables['MPSQ_WEB_WHOLE'] + words[0])\n"
        "runpy.run_module('queue_runner.web', run_name='__main__')\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (1, f"1{sys.executable}\n")


@pytest.mark.process
@needs_linux
def test_ctrl_c_while_the_server_loads_prints_nothing(layout: Layout) -> None:
    command = [sys.executable, "-m", "queue_runner.cli", "web", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        line = Path(f"/proc/{process.pid}/cmdline")
        until(lambda: "queue_runner.web" in line.read_text(), "the program that it becomes")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
