"""Replaced runs in reports: left out, counted by arm; and a busy machine gets a plain reason in place of a verdict."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from queue_runner.analysis.validity import MACHINE, disturbance
from queue_runner.reports._common import printing
from tests.reports.report_fixture import Store

BUSY = {"contended": ("invalid", "other programs used 60 % of the cores")}
HOT = {"throttled": ("caveat", "thermal pressure reached level 2")}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "store", tmp_path)
    yield store
    store.db.close()


def shown(store: Store, **options: object) -> str:
    return " ".join(printing.as_text("devices", store.report("devices", **options), "table", explain=True).split())


def replace(store: Store, new: int, old_repeat: int) -> None:
    store.db.execute("UPDATE runs SET replaces = ? WHERE id = ?", (old_repeat, new))


def test_replaced_runs_are_counted_by_arm_and_left_out_whatever_their_severity(store: Store) -> None:
    for at in range(4):
        store.run("cpu", median_s=0.1 + at / 1000, taints=HOT if at == 1 else None)
        store.run("mps", median_s=0.05 + at / 1000, taints=BUSY if at == 1 else None)
    for device, old in (("cpu", 2), ("mps", 2)):
        replace(store, store.run(device, median_s=0.1 if device == "cpu" else 0.05), old)
    text = shown(store)
    assert (
        "2 of 8 runs repeated, because the machine disturbed them: cpu eager 1.2 (throttled); mps eager 2.2 (contended)"
        in text
    )
    assert "excluded" not in text and "thermal" not in text
    rows = store.report("devices").rows
    assert [row["runs"] for row in rows] == [["1.1", "1.3", "1.4", "1.5"], ["2.1", "2.3", "2.4", "2.5"]]
    everything = shown(store, include_invalid=True)
    assert "included by --all: 2.2 contended" in everything and "runs replaced" not in everything
    assert "2.2" in str(store.report("devices", selectors=["2.2"]).rows)


def test_the_undisturbed_arms_of_a_replaced_round_keep_theirs(store: Store) -> None:
    for at in range(2):
        store.run("cpu", taints=BUSY if at == 0 else None)
        store.run("mps", median_s=0.05)
    replace(store, store.run("cpu"), 1)
    replace(store, store.run("mps", median_s=0.05), 0)
    assert "1 of 4 runs repeated, because the machine disturbed them: cpu eager 1.1 (contended)" in shown(store)
    assert [row["runs"] for row in store.report("devices").rows] == [["1.2", "1.3"], ["2.1", "2.2", "2.3"]]


def test_a_machine_that_stays_busy_gets_a_plain_reason(store: Store) -> None:
    for _ in range(4):
        store.run("cpu", taints=BUSY)
        store.run("cpu", compile=True, median_s=0.05, taints=BUSY)
    for old in range(1, 9):  # each round, and its replacement
        replace(store, store.run("cpu", taints=BUSY), old)
        replace(store, store.run("cpu", compile=True, median_s=0.05, taints=BUSY), old)
    text = shown(store)
    assert "8 of 8 runs repeated, and 8 of the repetitions" in text, text
    assert "1.9, 1.10, 1.11, 1.12, 2.9 and 3 more contended (other programs used 60 % of the cores)" in text, text
    assert "no verdict on cpu eager, cpu compiled: the machine disturbed every run, and the runs that" in text, text
    assert "a row without valid runs shows its invalid ones and is not compared" in text, text


def test_the_machines_taints_are_not_of_the_numbers() -> None:
    assert not MACHINE & {
        "drift",
        "levels",
        "stragglers",
        "diverged",
        "wrong_loss",
        "wrong_result",
        "unobserved",
        "unsynced",
    }
    assert disturbance("SUCCEEDED", None, "slept,drift") == ["slept"]
    assert disturbance("FAILED", None, "slept") == []
    assert disturbance("LOST", "reboot: the machine went down", None) == ["reboot"]
    assert disturbance("LOST", "warden_died: unknown", None) == []
