"""Reports of awkward stores: nothing that counts, nothing at all, no numbers. What they say must be true."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from queue_runner.model import PHASES
from queue_runner.reports._common import printing
from tests.reports.report_fixture import Store

HELLO = {"samples_per_iter": 4, "tokens_per_iter": None, "params": 1000}
GRID = [(framework, device) for framework in ("torch", "jax") for device in ("cpu", "cuda")]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "home")
    yield made
    made.db.close()


def add(store: Store, device: str | None, losses: Sequence[float], **run: Any) -> int:
    run_id = store.run(device, **{"workload": "resnet50", "hello": HELLO, **run})
    for i, loss in enumerate(losses):
        store._insert(
            "iterations", run_id=run_id, offset=i, i=i, dur_s=0.1, loss=loss, phase=PHASES.index("measure"), synced=1,
            reserved_bytes=2**30,
        )  # fmt: skip
    if any(map(math.isnan, losses)):
        store._insert("notes", run_id=run_id, offset=0, kind="nan_loss", text="not a number from iteration 1 on")
    return run_id


def nothing(store: Store) -> None:
    pass


def one(store: Store) -> None:
    add(store, "cuda", [4.0, 3.0])


def failed(store: Store) -> None:
    for outcome in ("FAILED", "OUT_OF_MEMORY"):
        add(store, "cuda", [], outcome=outcome, exit_code=1 if outcome == "FAILED" else None, median_s=None)


def one_iteration(store: Store) -> None:
    for framework, device in GRID:
        told = {"n_measure": 1, "n_iters": 1, "mad_s": 0.0, "loss_last": 4.2}
        add(store, device, [4.2], framework=framework, summary=told)


def contended(store: Store) -> None:
    for framework, device in GRID:
        add(store, device, [4.0, 3.0], framework=framework, taints={"contended": ("invalid", "others used 60 %")})


def lost(store: Store) -> None:
    for framework, device in GRID:
        taints = {"diverged": ("invalid", "not a number from iteration 1 on")}
        add(store, device, [4.0, math.nan], framework=framework, taints=taints, summary={"loss_last": None})
    add(store, "cuda", [4.0, 3.0], compile=True)


def versions(store: Store) -> None:
    for framework, device in GRID:
        for version in ("2.9.0", "2.13.0"):
            for k in range(5):
                add(store, device, [], framework=framework, version=version, median_s=0.1 + k / 1000)


def commands(store: Store) -> None:
    for x in "12":
        said = {"workload": None, "framework": None, "config": None, "dtype": None}
        add(store, None, [4.0], compile=None, argv=("python", "train.py", x), **said)


def said(store: Store, name: str, explain: bool = False, **options: Any) -> str:
    return " ".join(printing.as_text(name, store.report(name, **options), "table", explain=explain).split())


def test_nothing_to_report_is_told_by_what_became_of_the_runs(store: Store) -> None:
    assert all(x in said(store, "train-vs-infer") for x in ("--set mode=eval", "yet: mpsq submit"))
    failed(store)
    text = said(store, "memory")
    assert all(x in text for x in ("2 of 2", "1.2 OUT_OF_MEMORY", "mpsq why 1.2", "reported iteration: 1.2"))
    assert "mpsq worker" not in said(store, "train-vs-infer")
    add(store, "cpu", [], outcome=None, median_s=None)
    assert all(x in said(store, "train-vs-infer") for x in ("1 has not ended", "mpsq status"))
    assert "stored values" not in said(store, "train-vs-infer", where=["device=cuda"])


def test_rows_that_pool_frameworks_are_of_none(store: Store) -> None:
    versions(store)
    result = store.report("devices", group_by="device")
    assert {row["framework"] for row in result.rows} == {None} == {row["framework_version"] for row in result.rows}
    assert "torch" not in result.sections[0].title and "fp32" in result.sections[0].title


def test_few_iterations_are_told_and_none_are_too(store: Store) -> None:
    one_iteration(store)
    few = "per run: cpu eager jax (1), cpu eager torch (1), cuda eager jax (1)"
    text = said(store, "devices", explain=True)
    assert few in text and "per run: cuda" not in text
    few = {"n_measure": 3, "n_iters": 5}
    store.run("cpu", workload="vgg16", hello=HELLO, summary=few)
    assert "resnet50 tiny cpu" in said(store, "devices", explain=True)
    assert "--set max_iters=N" in said(store, "devices", explain=True)
    windowed = said(store, "devices", explain=True, iters="1000:2000")
    assert "(0)" in windowed and "max_iters" not in windowed and "wider --iters" in windowed
    windowed = said(store, "iterations", where=["device=cpu,cuda"], iters="7:9")
    assert "no iterations 7 to 9" in windowed and "in 5 runs" in windowed


def test_a_command_that_is_named_can_be_typed(store: Store) -> None:
    name = "python a.py --lr 1"
    store.run(name=name, outcome="FAILED", exit_code=1)
    assert f"mpsq rerun '{name}' --missing queues" in said(store, "missing", selectors=[name])


def test_a_comparison_without_a_run_that_counts_says_so(store: Store) -> None:
    contended(store)
    text = said(store, "frameworks")
    assert "no row has" in text and "mean loss" not in text


def test_two_runs_have_one_rate_in_every_report(store: Store) -> None:
    for evaluates in (False, True):
        for median_s in (0.1, 0.4):
            params = {"batch_size": 8, **({"mode": "eval"} if evaluates else {})}
            hello = {**HELLO, "workload": "resnet50-eval"} if evaluates else HELLO
            store.run("cpu", workload="resnet50", median_s=median_s, params=params, hello=hello)
    store.run("cpu", workload="resnet50", params={"batch_size": 16}, hello=HELLO)
    found = {}
    for name in ("devices", "train-vs-infer", "scaling"):
        rows = [row for row in store.report(name).rows if len(row["runs"]) == 2]
        found[name] = {round(row.get("rate") or row["samples_per_s"], 6) for row in rows}
    assert set(map(frozenset, found.values())) == {frozenset({20.0})}, found  # 4 samples in 0.2 s, the geometric mean


def test_whose_loss_is_no_number_is_not_confused(store: Store) -> None:
    add(store, "cpu", [4.0, math.nan])
    add(store, "cuda", [4.0, 3.0])
    add(store, "mps", [4.0, math.nan])
    text = said(store, "numerics")
    assert all(x in text for x in ("cuda eager has a", " a finite loss", "from iteration 1 on"))
    assert all(x in text for x in ("mps eager equals", "over 1 iteration;", "infinite from 1 on"))
    assert " NaN NaN " in text
