"""Progress of a submission: how many runs ended, and how long the rest takes."""

from __future__ import annotations

import pytest

from queue_runner.model import parse_selector
from queue_runner.monitor import progress
from queue_runner.paths import Layout
from tests.cli_support import full_queue


@pytest.fixture
def queue(home: object) -> Layout:
    return full_queue(home)  # type: ignore[arg-type]


def test_runs_that_ended_are_counted_and_the_rest_is_estimated(queue: Layout) -> None:
    assert progress.of_submission(queue, parse_selector("1")) == "2 of 2 runs ended"
    sentence = progress.of_submission(queue, parse_selector("g1"))
    assert " runs ended" in sentence and " of " in sentence
