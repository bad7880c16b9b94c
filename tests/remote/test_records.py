"""Which records of other machines are taken, and which are none."""

from __future__ import annotations

from typing import Any

import pytest

from queue_runner.remote import records
from tests.remote.block_support import RECORD

BAD: dict[str, dict[str, Any]] = {
    "a reason that is no text": {"reason": ["a"]},
    "a claim at no time": {"claimed_at": float("nan")},
    "a time that no calendar has": {"started_at": 1e300},
    "an exit code that is none": {"exit_code": "abc"},
    "an outcome that is none": {"outcome": ["LOST"]},
    "an exit that no warden writes": {"exit": {"exit_code": 0, "real_s": "x"}},
    "a number that no database takes": {"machine": {"bytes": 1 << 80}},
    "notes that are none": {"notes": [["kind"]]},
    "conditions that are none": {"conditions": [["x", {}]]},
}


@pytest.mark.parametrize("change", BAD.values(), ids=BAD)
def test_a_record_that_no_worker_writes_is_none(change: dict[str, Any]) -> None:
    assert records.checked({**RECORD, **change}) is None
    assert records.checked(RECORD) is not None


def test_texts_of_a_record_have_no_control_characters() -> None:
    told = {"reason": "\x1b[31mred\x1b]0;t\x07\nsecond", "notes": [["k\x1b[2J", "a\nb"]], "machine": {"id": "\x1b[1mn"}}
    found = records.checked({**RECORD, "outcome": "FAILED", **told})
    assert found is not None
    assert (found.reason, found.notes, found.machine) == ("red second", [("k", "a b")], {"id": "n"})
