"""Progress of a submission: how many runs ended, how long the rest takes, on a terminal and in a pipe."""

from __future__ import annotations

import io

import pytest

from queue_runner.errors import MpsqError
from queue_runner.model import parse_selector
from queue_runner.monitor import overall
from queue_runner.paths import Layout
from tests.cli_support import full_queue


@pytest.fixture
def queue(home: object) -> Layout:
    return full_queue(home)  # type: ignore[arg-type]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_runs_that_ended_are_counted_and_the_rest_is_estimated(queue: Layout) -> None:
    assert overall.sentence(queue, parse_selector("1")) == "2 of 2 runs ended"
    told = overall.sentence(queue, parse_selector("g1"))
    assert " runs ended" in told and " of " in told


def test_a_terminal_has_one_line_and_a_pipe_one_after_the_other() -> None:
    words = iter(["0 of 2 runs ended", "1 of 2 runs ended", "2 of 2 runs ended"])
    terminal = Terminal()
    teller = overall.Teller(lambda: next(words), terminal)
    for now in (0.0, 0.5, 1.5):
        teller.step(now)
    teller.close()
    assert terminal.getvalue().replace("\x1b[K", "") == "\r0 of 2 runs ended\r1 of 2 runs ended\r"
    words = iter(["0 of 2", "0 of 2", "1 of 2"])
    pipe = io.StringIO()
    teller = overall.Teller(lambda: next(words), pipe)
    for now in (0.0, 29.0, 31.0, 62.0):
        teller.step(now)
    teller.close()
    assert pipe.getvalue() == "0 of 2\n1 of 2\n"


def test_a_queue_that_is_not_there_yet_is_no_error() -> None:
    def none_yet() -> str:
        raise MpsqError("there is no queue here yet")

    stream = io.StringIO()
    overall.Teller(none_yet, stream).step(0.0)
    assert stream.getvalue() == ""
