"""Nothing that a job prints reaches the terminal as more than text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_runner.text import last_line, plain


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
