"""Transcripts are what the commands print: of each block, in order, by a real shell and a real queue."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests import transcript
from tests.cli_support import Cli
from tests.recipes_support import check

pytestmark = pytest.mark.process

PAGE = """# A page

Prose.

```console
$ mpsq submit --name hello --no-gate -- sh -c 'echo "$HOME"'
something old
$ mpsq worker --until-idle 2>&1 | tail -1
```

```text
$ mpsq not run
```

```console
$ mpsq logs 1.1
$ printf '\\033[1mbold\\033[0m  \\n'
```
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    if shutil.which("git") is None:
        pytest.skip("needs git")
    (tmp_path / "shell").mkdir()
    return tmp_path / "shell"


def test_a_page_gets_what_its_commands_print(folder: Path) -> None:
    page = transcript.renewed(PAGE, transcript.Shell(folder).run)
    assert "something old" not in page and "g1: 1 job, 1 run queued (1.1)" in page
    assert "```text\n$ mpsq not run\n```" in page and page.startswith("# A page\n\nProse.\n")
    assert page.endswith("```console\n$ mpsq logs 1.1\n~\n\n$ printf '\\033[1mbold\\033[0m  \\n'\nbold\n```\n")
    assert str(folder) not in page
    assert transcript.commands(page) == transcript.commands(PAGE)


def test_progress_can_be_left_out(folder: Path) -> None:
    page = "```console\n$ echo one; echo two >&2\n```\n"
    shell = transcript.Shell(folder, progress=False)
    assert transcript.renewed(page, shell.run) == page.replace(">&2\n", ">&2\none\n")


def test_a_command_that_fails_ends_it(folder: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        transcript.renewed("```console\n$ mpsq logs 99\n```\n", transcript.Shell(folder).run)


@pytest.mark.parametrize("page", transcript.PAGES, ids=lambda page: str(page.name))
def test_the_commands_of_the_pages_exist(page: Path, mpsq: Cli, home: Path) -> None:
    lines = transcript.commands(page.read_text("utf-8"))
    for line in lines:
        if line.startswith("mpsq ") and " -- " in line:
            check(mpsq, line.partition(" 2>&1")[0])
    assert any(line.startswith("mpsq run ") for line in lines)
