"""`make transcript`: run the commands of README.md and of docs/first-ten-minutes.md, and write what they print.

A block ```console is a transcript: a line that begins with `$ ` is a command, what follows is its output. Each page
has an empty queue. README.md shows standard output alone, without progress. No output is written by hand: run this
again when a command prints something else."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = (README, ROOT / "docs" / "first-ten-minutes.md")
LIMIT_S = 900

_BLOCK = re.compile(r"(^```console\n)(.*?)(^```$)", re.MULTILINE | re.DOTALL)
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def commands(text: str) -> list[str]:
    """The commands of a page's transcripts, in order."""
    return [line[2:] for block in _BLOCK.findall(text) for line in block[1].splitlines() if line.startswith("$ ")]


def renewed(text: str, run: Callable[[str], str]) -> str:
    """The page with the output that `run` returns for each of its commands, in place of the one it has."""

    def block(match: re.Match[str]) -> str:
        shown = [f"$ {command}\n{run(command)}" for command in commands(match[0])]
        return match[1] + "\n".join(shown) + match[3]

    return _BLOCK.sub(block, text)


class Shell:
    """A shell in an empty repository, with `mpsq` and `python` of this interpreter, an empty queue, 80 columns.
    Without `progress` standard output is shown alone."""

    def __init__(self, folder: Path, *, progress: bool = True) -> None:
        self.folder, self.stderr = folder / "me", subprocess.STDOUT if progress else None
        home, programs = folder / "home", folder / "bin"
        for each in (self.folder, home, programs):
            each.mkdir(mode=0o700)
        for name, words in {"mpsq": "-m queue_runner.cli.main ", "python": ""}.items():
            (programs / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words}"$@"\n')
            (programs / name).chmod(0o755)
        subprocess.run(["git", "init", "--quiet", str(self.folder)], check=True)
        self.hidden = {str(home): "~/.local/share/mpsq", str(self.folder): "~"}
        self.env = {
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'jobs'}",
            "PYTHONWARNINGS": "ignore",
            "MPSQ_HOME": str(home),
            "MPSQ_LOCKS": str(folder / "locks"),
            "COLUMNS": "80",
            "TERM": "dumb",
        }

    def run(self, command: str) -> str:
        """What a command prints, errors included, without escape sequences and without folders of this machine.

        Raises subprocess.CalledProcessError if it fails: a transcript has no failure that is not meant (`|| true`)."""
        print(f"$ {command}", flush=True)
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        print(done.stdout, flush=True)
        done.check_returncode()
        text = _ESCAPE.sub("", done.stdout)
        for path, shown in self.hidden.items():
            text = text.replace(path, shown)
        return "".join(f"{line.rstrip()}\n" for line in text.strip("\n").splitlines())


def renew(page: Path) -> None:
    """Run a page's commands in an empty queue and write it with what they printed."""
    with tempfile.TemporaryDirectory(prefix="mpsq-transcript-") as folder:
        shell = Shell(Path(folder), progress=page != README)
        page.write_text(renewed(page.read_text("utf-8"), shell.run), "utf-8")


def main() -> None:
    for page in PAGES:
        renew(page)


if __name__ == "__main__":
    main()
