"""TAB in real shells, in a terminal of their own: what is typed, what the shell makes of it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from queue_runner.cli import completion
from queue_runner.cli.main import main
from queue_runner.paths import Layout
from queue_runner.submit import plan
from tests.patience import patience
from tests.submit_support import requested
from tests.system_packages import require

pytestmark = pytest.mark.process

PATIENCE_S = 20.0
ROOT = Path(__file__).resolve().parents[2]
COMMANDS = {"bash": ["bash", "--norc", "-i"], "zsh": ["zsh", "-i"], "fish": ["fish", "-i"]}
PLACES = {
    "bash": ".local/share/bash-completion/completions/mpsq",
    "zsh": ".local/share/zsh/site-functions/_mpsq",
    "fish": ".config/fish/completions/mpsq.fish",
}
"""Where `mpsq completion --help` says that a shell looks; zsh in any folder of fpath."""
RC = {
    "bash": ("rc", "PS1='ready> '; source '{script}'\n"),
    "zsh": (".zshrc", "PS1='ready> '; fpath=('{folder}' $fpath); autoload -Uz compinit; compinit -u\n"),
    "fish": (".config/fish/config.fish", "function fish_prompt; echo -n 'ready> '; end; set -g fish_greeting\n"),
}


class Terminal:
    """A shell that believes in a person before it."""

    def __init__(self, shell: str, home: Path, environment: dict[str, str]) -> None:
        self._near, far = pty.openpty()
        self._process = subprocess.Popen(
            COMMANDS[shell],
            stdin=far,
            stdout=far,
            stderr=far,
            env={**environment, "HOME": str(home), "TERM": "xterm", "LC_ALL": "C.UTF-8"},
            cwd=home,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # fish wants a terminal that is its own
        )
        os.close(far)
        self.shown = ""

    def type(self, text: str) -> None:
        """Press these keys."""
        self.shown = ""
        os.write(self._near, text.encode())

    def until(self, pattern: str) -> str:
        """Wait until the screen shows it; returns all that came since the last keys."""
        start = time.monotonic()
        while not re.search(pattern, _without_escapes(self.shown)):
            left = start + patience(PATIENCE_S) - time.monotonic()
            assert left > 0, f"{pattern!r} did not come: {self.shown!r}"
            if select.select([self._near], [], [], left)[0]:
                data = os.read(self._near, 65536).decode("utf-8", "replace")
                self.shown += data
                if "\x1b[c" in data or "\x1b[0c" in data:
                    os.write(self._near, b"\x1b[?62;c")  # fish asks what terminal this is
        return _without_escapes(self.shown)

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._near)


def _without_escapes(text: str) -> str:
    return re.sub(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[()][A-Z0-9]|[=>78])", "", text)


@pytest.fixture
def environment(layout: Layout, tmp_path: Path) -> dict[str, str]:
    """A queue with a schedule and jobs in it, and `mpsq` on the PATH."""
    request = requested(argv=("/usr/bin/true",), cwd=str(tmp_path), tags=("night", "a$(touch${IFS}pwned)"))
    plan.store(layout, plan.plan(request))
    added = ["schedule", "add", "0 2 * * *", "--name", "nightly", "--timezone", "UTC", "--", "--", "/usr/bin/true"]
    assert main(added) == 0
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "mpsq"
    program.write_text(f"#!/bin/sh\nPYTHONPATH='{ROOT}' exec '{sys.executable}' -m queue_runner.cli.__main__ \"$@\"\n")
    program.chmod(0o755)
    return {"PATH": f"{program.parent}:{os.environ['PATH']}", "MPSQ_HOME": str(layout.home)}


@pytest.fixture(params=["bash", "zsh", "fish"])
def terminal(request: pytest.FixtureRequest, environment: dict[str, str], tmp_path: Path) -> Iterator[Terminal]:
    shell = request.param
    if shell != "bash":
        require(shell)
    home = tmp_path / "user"
    script = home / PLACES[shell]
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(completion.script(shell))
    name, text = RC[shell]
    (home / name).parent.mkdir(parents=True, exist_ok=True)
    (home / name).write_text(text.format(script=script, folder=script.parent))
    terminal = Terminal(shell, home, environment)
    if shell == "bash":
        terminal.type("source rc\r")
    terminal.until(r"ready> \s*$")
    yield terminal
    terminal.close()


def test_tab(terminal: Terminal) -> None:
    for typed, wanted in (
        ("mpsq sched\t", r"mpsq schedule "),
        ("mpsq schedule rem\t", r"schedule remove "),
        ("mpsq schedule remove nig\t", r"remove nightly "),
        ("mpsq submit nanogpt --conf\t", r"--config "),
        ("mpsq submit nanogpt --config ti\t", r"--config tiny"),
        ("mpsq submit nanogpt --device=aut\t", r"--device=auto"),
        ("mpsq submit nanogpt --device cpu,aut\t", r"cpu,auto"),
        ("mpsq submit nanogpt --set max_it\t", r"max_iters="),
        ("mpsq schedule add x -- nanogpt --conf\t", r"--config "),
        ("mpsq show @la\t", r"@last"),
        ("mpsq list --tag ni\t", r"--tag night"),
        ("mpsq submit --cwd /usr/shar\t", r"/usr/share/"),
        ("mpsq submit -- /usr/shar\t", r"/usr/share/"),
        ("mpsq config set keep_aw\t", r"keep_awake "),
    ):
        terminal.type(typed)
        terminal.until(re.escape(wanted) if "=" in wanted else wanted)
        terminal.type("\x15\r")  # Ctrl-U: away with the line
        terminal.until(r"ready> \s*$")


def test_what_a_job_says_is_never_run(terminal: Terminal, tmp_path: Path) -> None:
    terminal.type("mpsq list --tag a\t\tx\r")
    terminal.until(r"no matching jobs|there is no|error")
    assert not (tmp_path / "user" / "pwned").exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_that_the_shell_can_read(shell: str) -> None:
    if shell != "bash":
        require(shell)
    said = subprocess.run([shell, "-n"], input=completion.script(shell), text=True, capture_output=True)
    assert (said.returncode, said.stderr) == (0, "")
