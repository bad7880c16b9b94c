"""Runs beside another lane's in reports: rows of their own, and the report on mpsq bench --neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from queue_runner.analysis.neighbours import KIND, SHARE
from queue_runner.reports._common import printing
from queue_runner.spec import ALONE
from tests.reports.report_fixture import Store

BUSY = {KIND: ("caveat", "for 100 % of its measured time another lane was busy: 9.1 on cpu:1")}
NOISE = (0.0, 0.001, -0.001, 0.0005, -0.0005, 0.0007, -0.0007, 0.0002)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "store", tmp_path)
    yield store
    store.db.close()


def shown(store: Store, name: str, **options: object) -> str:
    return " ".join(printing.as_text(name, store.report(name, **options), "table", explain=True).split())


def bench(store: Store, slower: float, shares: dict[int, float | None] | None = None) -> None:
    """Add 8 rounds, alone and beside: repeat n was beside its neighbour for `shares[n]`, by default throughout."""
    for n, noise in enumerate(NOISE, start=1):
        share = (shares or {}).get(n, 1.0)
        first, second = (1e9, 2e9) if n % 2 else (2e9, 1e9)
        alone = store.run("cpu", median_s=0.1 * (1 + noise), tags=("alone",), ended_at=first + 100 * n)
        beside = store.run(
            "cpu",
            median_s=0.1 * slower * (1 - noise),
            tags=("beside",),
            ended_at=second + 100 * n,
            taints=None if share is None else BUSY,
        )
        store.db.execute("UPDATE runs SET started_at = ended_at - 30 WHERE id IN (?, ?)", (alone, beside))
        if share is not None:
            values = (beside, 1 << 61, SHARE, share)
            store.db.execute("INSERT INTO metrics (run_id, offset, name, value) VALUES (?, ?, ?, ?)", values)
    neighbour = store.run("cpu", outcome="CANCELLED", params={"max_iters": 10**6}, tags=("neighbour",))
    jobs = "(SELECT job_id FROM job_tags WHERE tag = ?)"
    on_lane = "UPDATE jobs SET spec_json = json_set(spec_json, '$.lane', 'cpu:0', '$.pairing', ?) WHERE id = "
    store.db.execute(on_lane + jobs, (ALONE, "alone"))
    store.db.execute(on_lane + jobs, ("", "beside"))
    store.db.execute(
        f"INSERT INTO dependencies SELECT {jobs}, job_id, 'while' FROM runs WHERE id = ?", ("beside", neighbour)
    )


def test_a_report_shows_runs_beside_and_alone_as_rows_and_names_them(store: Store) -> None:
    """Also where --group-by asks for the device alone."""
    for _ in range(2):
        store.run("cpu", median_s=0.1)
        store.run("cpu", median_s=0.2, taints=BUSY)
        store.run("mps", median_s=0.05, taints=BUSY)
    for options in ({}, {"group_by": "device"}):
        rows = store.report("devices", **options).rows
        assert [row["n_valid"] for row in rows] == [2, 2, 2]
        assert sorted(row["label"].endswith("beside another lane") for row in rows) == [False, True, True]
        assert next(row for row in rows if row["is_baseline"])["label"].startswith("cpu")
        text = shown(store, "devices", **options)
        assert "beside another lane: measured while another lane was busy, the other rows alone" in text


def test_a_lane_is_isolated_within_the_margin(store: Store) -> None:
    bench(store, slower=1.002)
    text = shown(store, "neighbours")
    assert "nanogpt tiny fp32 cpu eager on cpu:0 takes 1.002 x (" in text
    assert "as long beside another run as alone: the same within ±1 %, so that the lane is isolated" in text
    (alone, beside) = store.report("neighbours").rows
    assert (alone["label"], alone["times"], beside["label"]) == ("alone", None, "beside another lane")
    assert beside["times_low"] < beside["times"] < beside["times_high"]
    assert "isolated to that margin" not in shown(store, "neighbours", same_within="0.1%")


def test_a_slower_run_is_not_isolated(store: Store) -> None:
    bench(store, slower=1.1)
    assert "as alone: slower, so that the lane is not isolated" in shown(store, "neighbours")


def test_a_run_without_its_neighbour_is_left_out_and_not_pooled_with_those_alone(store: Store) -> None:
    bench(store, slower=1.1, shares={2: 0.6, 5: None})
    text = shown(store, "neighbours")
    assert "left out: 2.2: its neighbour was active for 60.0 % of its measured time only; 2.5: no neighbour" in text
    (alone, beside) = store.report("neighbours").rows
    assert (alone["n_valid"], beside["n_valid"]) == (8, 6)
    assert "not isolated" in text


def test_neighbours_are_in_no_report(store: Store) -> None:
    bench(store, slower=1.0)
    assert "3.1" not in str(store.report("devices").rows) and "CANCELLED" not in shown(store, "devices")


def test_without_such_a_bench_the_report_says_so(store: Store) -> None:
    store.run("cpu")
    assert "bench --neighbours" in shown(store, "neighbours")
