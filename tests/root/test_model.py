"""Ids, states and what an exit.json means."""

from __future__ import annotations

import pytest
from msgspec import convert

from queue_runner.errors import UsageError
from queue_runner.host.warden_records import RunEnd
from queue_runner.ingest.outcome import of_exit, of_silence
from queue_runner.model import TRANSITIONS, Outcome, State, Verb, parse_selector

STOP = {"v": 1, "cause": "cancel", "at": 1.0, "detail": "cancelled by user"}


@pytest.mark.parametrize(
    ("said", "notes", "shown"),
    [
        ({"exit_code": 0}, {}, "SUCCEEDED"),
        ({"exit_code": 3}, {}, "FAILED(3)"),
        ({"signal": 15}, {}, "KILLED(15)"),
        ({"signal": 9, "oom_killed": True}, {}, "OUT_OF_MEMORY"),
        ({"signal": 9}, {}, "KILLED(9)"),
        ({"spawn_error": {"errno": 2, "text": "no such file"}}, {}, "SPAWN_FAILED"),
        ({"exit_code": 69}, {"device_unavailable": "no mps"}, "DEVICE_UNAVAILABLE"),
        ({"exit_code": 69}, {}, "FAILED(69)"),
        ({"exit_code": 71}, {"oom": "mps is full"}, "OUT_OF_MEMORY"),
        ({"signal": 2, "stop": STOP, "stopped": True}, {}, "CANCELLED"),
        ({"exit_code": 130, "stop": {**STOP, "cause": "timeout"}, "stopped": True}, {}, "TIMED_OUT"),
        ({"signal": 9, "stop": {**STOP, "cause": "stall"}, "stopped": True}, {}, "STALLED"),
        ({"signal": 9, "stop": {**STOP, "cause": "disk"}, "stopped": True}, {}, "DISK_FULL"),
        ({"exit_code": 0, "stop": STOP, "stopped": False}, {}, "SUCCEEDED"),  # it had ended by itself before the signal
        ({"stop": STOP}, {}, "CANCELLED"),  # cancelled before the trainer was started
    ],
)
def test_outcome(said: dict[str, object], notes: dict[str, str], shown: str) -> None:
    assert str(of_exit(convert(said, RunEnd), notes)) == shown


def test_silence_is_lost_and_says_why() -> None:
    assert str(of_silence(rebooted=True)) == "LOST(reboot)"
    assert str(of_silence(rebooted=False)) == "LOST(warden_died)"


def test_done_is_final_and_every_state_is_reachable() -> None:
    assert not any(State.DONE in transition.sources for transition in TRANSITIONS.values())
    assert {transition.target for transition in TRANSITIONS.values()} == set(State)
    assert set(TRANSITIONS) == set(Verb)


@pytest.mark.parametrize("text", ["12", "12.3", "g4", "@last"])
def test_selectors(text: str) -> None:
    assert parse_selector(text).text == text


@pytest.mark.parametrize("text", ["x", "train.py", "1.2.3", "g", "-1", "1.", "٣", "9" * 40])
def test_any_other_word_is_a_name(text: str) -> None:
    assert parse_selector(text).name == text


@pytest.mark.parametrize("text", ["", "@first"])
def test_bad_selectors_are_usage_errors(text: str) -> None:
    with pytest.raises(UsageError):
        parse_selector(text)


def test_every_outcome_is_documented() -> None:
    from pathlib import Path

    page = (Path(__file__).resolve().parents[2] / "docs" / "architecture.md").read_text()
    assert all(outcome in page for outcome in Outcome)
