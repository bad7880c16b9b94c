"""What reports once said wrongly: numbers that were mixed, left out in silence, or told of the wrong thing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fast.test_answer_reports import BUSY, Answers, shown

CUDA = {"versions": {"torch": "2.13.0", "cuda": "13.0"}}
NO_CUDA = {"versions": {"torch": "2.13.0"}}


@pytest.fixture
def store(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answers]:
    made = Answers(tmp_path / "home", tmp_path_factory.mktemp("template"))
    yield made
    made.db.close()


def _both(store: Answers, **of_cuda: object) -> None:
    for device, software, params in (("cpu", NO_CUDA, {"max_iters": 5}), ("cuda", CUDA, of_cuda)):
        hello, few = {"params": 1000}, {"n_measure": 3 if device == "cpu" else 100}
        store.run(device, median_s=0.3, software=software, params=params, hello=hello, summary=few)
        told = {**hello, "workload": "nanogpt-eval"}
        store.run(device, software=software, params={**params, "mode": "eval"}, hello=told)


def test_a_gpu_is_compared_with_a_cpu_that_has_no_cuda_and_was_given_fewer_iterations(store: Answers) -> None:
    _both(store)
    rows = {(row["device"], row["kind"]): row for row in store.report("train-vs-infer").rows}
    assert rows["cuda", "train"]["speedup"] == pytest.approx(1) and rows["cuda", "eval"]["speedup"] == pytest.approx(1)
    assert "fewer than 10 measured iterations: 1.1 (3)" in shown(store, "train-vs-infer")


def test_a_setting_that_was_asked_on_one_side_alone_is_no_twin(store: Answers) -> None:
    _both(store, n_layer=1)
    assert all(row["speedup"] is None for row in store.report("train-vs-infer").rows)


def test_a_contended_run_beside_runs_that_count_is_named(store: Answers) -> None:
    _both(store)
    store.run("cuda", median_s=0.9, software=CUDA, hello={"params": 1000}, taints=BUSY)
    text = shown(store, "train-vs-infer")
    assert "! do not count: 3.2 contended" in text


@pytest.mark.parametrize("value", ["nan", "inf", "1e999"])
def test_a_setting_that_is_no_finite_number_ends_no_report(store: Answers, value: str) -> None:
    store.run(params={"lr": value, "batch_size": 8})
    store.run(params={"lr": "0.1", "batch_size": 8})
    assert store.report("scaling").rows == []
