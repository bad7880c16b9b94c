"""Nothing that a job prints reaches the terminal as more than text."""

from __future__ import annotations

import io
import re
import shlex
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_runner.text import for_stream, last_line, plain, width, wrap, wrap_command


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;a title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("bell\x07 and \x08back", "bell and back"),
        ("\x9b31mC1", "31mC1"),
        ("right \u202eto left", "right to left"),
        ("tab\tand\nline", "tab\tand\nline"),
    ],
)
def test_escapes_are_taken_out(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_a_byte_that_is_not_utf8_becomes_a_question_mark() -> None:
    assert plain("l\udcff.py").encode("ascii", "backslashreplace") == b"l?.py"


@given(st.text())
def test_nothing_that_steers_a_terminal_is_left(text: str) -> None:
    assert not any((ord(c) < 32 and c not in "\t\n") or 127 <= ord(c) < 160 for c in plain(text))


def test_last_line_is_the_last_that_says_something() -> None:
    assert last_line(b"Traceback\nValueError: no such device\n\n  \n") == "ValueError: no such device"
    assert last_line(b"  5%\r 10%\r100%") == "100%"
    assert last_line(b"\xff\xfe broken") == "\ufffd\ufffd broken"
    assert last_line(b"") == ""
    assert last_line(b"error: no text\nhint: fetch it\n") == "error: no text"
    assert last_line(b"hint: rest") == "hint: rest"
    assert len(last_line(b"x" * 9999)) == 300


def test_a_command_is_wrapped_so_that_a_shell_reads_the_same() -> None:
    command = shlex.join(["mpsq", "run", "--metric", "loss=loss ([0-9.]+)", "--", "python", "it's.py", "--lr", "{lr}"])
    lines = wrap_command(command, 30)
    assert len(lines) > 2 and max(map(width, lines)) <= 30 and all(line.endswith(" \\") for line in lines[:-1])
    assert shlex.split("\n".join(lines).replace("\\\n", "")) == shlex.split(command)
    assert wrap_command("sleep 1", 30) == ["sleep 1"] and wrap_command("echo 'cut…" + "x" * 40, 30)[0][:5] == "echo "


def test_a_message_is_wrapped_on_a_terminal_and_whole_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"--- round 3: {'s=2: speedup 0.50 x (0.49 to 0.51), slower; ' * 6}\n    next"
    monkeypatch.setenv("COLUMNS", "60")
    stream = io.StringIO()
    assert for_stream(text, stream) == text
    monkeypatch.setattr(stream, "isatty", lambda: True)
    lines = for_stream(text, stream).split("\n")
    assert max(map(width, lines)) <= 60 and lines[-1] == "    next" and lines[1].startswith("  ")


@pytest.mark.parametrize("word", ["word", "größe", "数据", "🚀"])
def test_lines_are_as_wide_as_their_letters(word: str) -> None:
    lines = wrap(" ".join([word] * 40), 30)
    assert max(map(width, lines)) <= 30 and " ".join(lines).split() == [word] * 40
    assert all(width(line) > 20 for line in lines[:-1])


@pytest.mark.parametrize("letter", ["", "é"])
def test_a_number_stays_beside_its_unit(letter: str) -> None:
    text = f"a{letter} 95 % CI of 1.20 x, 3.5 ms/iter vs 4 min 00 s of 16 GiB, 7 simulations, 8 h/day"
    for columns in range(14, 60):
        lines = wrap(text, columns)
        ends = [(line.split()[-1], below.split()[0]) for line, below in pairwise(lines)]
        assert not any(re.fullmatch(r"[\d.]+", last) and first in "% x ms/iter min s GiB" for last, first in ends)
        assert " ".join(line.strip() for line in lines) == text and max(map(width, lines)) <= columns


def test_mpsq_stays_beside_its_verb() -> None:
    """`mpsq` at the end of a line, and `report` below it, read as English."""
    text = "after a fix, mpsq rerun g3 --missing queues it again; mpsq report g3 shows it"
    for columns in range(14, 60):
        lines = wrap(text, columns)
        assert not any(line.endswith("mpsq") for line in lines) and max(map(width, lines)) <= columns
        assert " ".join(line.strip() for line in lines) == text
