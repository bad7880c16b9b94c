"""The code blocks of docs/recipes, and commands of mpsq tried without running anything."""

from __future__ import annotations

import re
import shlex
from itertools import takewhile
from pathlib import Path
from typing import Any

from tests.cli_support import ROOT, Cli

RECIPES = sorted((ROOT / "docs" / "recipes").glob("*.md"))


def blocks(page: Path, *languages: str) -> list[str]:
    """The code blocks of a page, of these languages where any are named."""
    blocks_of_code = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [text for language, text in blocks_of_code if not languages or language in languages]


def in_tables(page: Path) -> list[str]:
    """The commands of mpsq in the tables of a page."""
    rows = re.findall(r"^\|.*\|$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [line for row in rows for line in re.findall(r"`(mpsq [^`]+)`", row)]


def items(page: Path) -> list[list[str]]:
    """The rows of the table that says item by item what was seen, without its head."""
    _, _, text = page.read_text(encoding="utf-8").partition("\n## Item by item\n")
    table = text.partition("\n## ")[0]
    rows = [[cell.strip() for cell in row[1:-1].split("|")] for row in re.findall(r"^\|.*\|$", table, re.MULTILINE)]
    return rows[2:]


def commands(text: str) -> list[str]:
    """The command lines of a block, each on one line."""
    lines = text.replace("\\\n", " ").splitlines()
    return [" ".join(line.split()) for line in lines if line.strip()]


def check(mpsq: Cli, line: str) -> None:
    """That the command exists with these options and, for what is queued and reported, that it can be planned."""
    program, *words = shlex.split(line, comments=True)
    assert program == "mpsq", line
    parse(words)
    if words[0] in ("run", "submit"):
        at = words.index("--") if "--" in words else len(words)
        ran = mpsq("submit", *words[1:at], "--dry-run", *words[at:])
        assert ran.code == 0 or "gloo" in ran.err, (line, ran.err)
    elif words[0] == "report":
        assert mpsq.ok(*words)


def in_code(page: Path) -> list[list[str]]:
    """The commands of mpsq in the blocks of code of a page, as words, without what follows a pipe, `;` or `...`."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ").replace(" 2>&1", "")
    lines = [line for block in blocks(page) for line in commands(block.replace(" 2>&1", ""))]
    lines += re.findall(r"^ {4}(?:\$ )?(mpsq .+)$", text, re.MULTILINE)
    split = []
    for line in lines:
        if (command := line.removeprefix("$ ")).startswith("mpsq "):
            words = shlex.shlex(command, posix=True, punctuation_chars="|;&<>")
            words.whitespace_split = True
            split.append([*takewhile(lambda word: not re.fullmatch(r"[|;&<>]+|\.\.\.", word), words)])
    return split


def parse(words: list[str]) -> None:
    """Raise an error of click if no command of mpsq takes these words."""
    from typer.main import get_command

    from queue_runner.cli.main import app

    root: Any = get_command(app)
    context = root.make_context("mpsq", [], resilient_parsing=True)
    command, rest = root.get_command(context, words[0]), words[1:]
    assert command is not None, words
    while hasattr(command, "commands"):
        command, rest = command.commands[rest[0]], rest[1:]
    command.make_context(words[0], rest, parent=context)
