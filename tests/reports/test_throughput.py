"""The report throughput: training and evaluation side by side, over the cpu, and what speaks against a number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from queue_runner.reports._common import printing
from tests.reports.report_fixture import Store, words

H200 = {"device_name": "NVIDIA H200"}


class Models(Store):
    """Runs of resnet50 as jobs/resnet50_torch.py reports them; a run for each time."""

    def train(self, device: str, *times: float, evaluates: bool = False, **run: Any) -> None:
        params = {"mode": "eval"} if evaluates else {}
        said = {
            "workload": "resnet50-eval" if evaluates else "resnet50", "tokens_per_iter": None, "samples_per_iter": 128,
            "flops_per_iter": (1.0 if evaluates else 3.0) * 128 * 8.2e9,
            "optimizer": None if evaluates else "SGD(fused)", **(H200 if device == "cuda" else {}),
        }  # fmt: skip
        for time_s in times:
            told = {"workload": "resnet50", "config": "full", "hello": said, **run}
            self.run(device, median_s=time_s, **{**told, "params": {**params, **run.get("params", {})}})

    def evaluate(self, device: str, *times: float, **run: Any) -> None:
        self.train(device, *times, evaluates=True, **run)


@pytest.fixture
def store(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    made = Models(tmp_path / "home", tmp_path_factory.mktemp("template"))
    yield made
    made.db.close()


def around(time_s: float, n: int = 4) -> Sequence[float]:
    return [time_s * (1 + k * 1e-3) for k in range(n)]


def shown(store: Store, *, explain: bool = False, **options: Any) -> str:
    text = printing.as_text("throughput", store.report("throughput", **options), "table", explain=explain)
    assert max(map(len, text.splitlines())) <= 80, text
    return text


def test_an_empty_store_and_one_without_models_say_so(store: Models) -> None:
    assert "no run of a model" in words(store.report("throughput"))
    store.run("cpu", workload="nanogpt")
    assert "no run of a model" in words(store.report("throughput"))


def test_training_and_evaluation_are_one_table_with_ratios_and_verdicts_over_the_cpu(store: Models) -> None:
    store.train("cpu", *around(10.0))
    store.evaluate("cpu", *around(2.5))
    store.train("cuda", *around(0.1))
    store.evaluate("cuda", *around(0.02))
    rows = {(row["mode"], row["label"]): row for row in store.report("throughput").rows}
    assert len(rows) == 4 and {row["model"] for row in rows.values()} == {"resnet50"}
    trained, evaluated = rows["training", "cuda eager"], rows["evaluation", "cuda eager"]
    assert trained["speedup"] == pytest.approx(100) and evaluated["speedup"] == pytest.approx(125)
    assert trained["samples_per_s"] == pytest.approx(1280, rel=0.01) and trained["verdict"] == "faster"
    assert trained["speedup_low"] < 100 < trained["speedup_high"]
    assert rows["training", "cpu eager"]["is_baseline"] and rows["evaluation", "cpu eager"]["is_baseline"]
    text = shown(store)
    in_training, in_evaluation = (one for one in text.splitlines() if one.startswith("cuda eager"))
    assert "1,27" in in_training and "100 (" in in_training and in_training.endswith("faster")
    assert "6,39" in in_evaluation and "125.0 (" in in_evaluation and in_evaluation.endswith("faster")
    assert sum(line.startswith("---") for line in text.splitlines()) == 1
    assert "\ntraining: cuda eager is 100 x as fast as cpu eager" in text
    assert "implausible" not in text and "ms/iter" not in text


def test_a_ratio_without_a_verdict_was_measured_and_doubts_name_their_table(store: Models) -> None:
    for config in ("full", "half"):
        few = {"config": config, "summary": {"n_measure": 3}}
        store.train("cpu", 10.0, **few)
        store.train("cuda", 0.1, **few)
    text = words(store.report("throughput"))
    assert "cuda eager measured 100 x as fast as cpu eager: undecided (about 2 more rounds)" in text
    assert "A: fewer than 10 measured iterations" in text and "B: training: cuda eager measured" in text
    assert "ratio of the geometric means" not in text


def test_the_kind_of_mean_stands_with_the_speed_ups(store: Models) -> None:
    store.train("cpu", *around(10.0))
    store.train("cuda", *around(0.1))
    said = "(eager on the cpu; --vs selects another); ratio of the geometric means of the run medians"
    assert said in " ".join(shown(store, explain=True).split())


def test_a_cpu_with_fewer_iterations_is_still_compared(store: Models) -> None:
    store.train("cpu", 10.0, params={"max_iters": 12})
    store.train("cuda", 0.1, params={"max_iters": 100, "mode": "train"})
    rows = store.report("throughput").rows
    assert [row["speedup"] for row in rows] == [1.0, pytest.approx(100)] and rows[1]["verdict"] == "undecided"


def test_another_batch_size_is_another_table(store: Models) -> None:
    store.train("cpu", 10.0)
    store.train("cuda", 0.1, params={"batch_size": 64})
    result = store.report("throughput")
    assert [row["speedup"] for row in result.rows] == [None, None]
    assert "only one row" in words(result) and "no eager run on the CPU" in words(result)


def test_without_the_cpu_there_is_no_ratio_unless_asked_for(store: Models) -> None:
    store.train("cuda", *around(0.1), dtype="fp32")
    store.train("cuda", *around(0.05), dtype="bf16")
    result = store.report("throughput")
    assert {row["speedup"] for row in result.rows} == {None}
    assert "no eager run on the CPU" in words(result)
    asked = store.report("throughput", vs="dtype=fp32")
    assert [row["speedup"] for row in asked.rows] == [1.0, pytest.approx(2)]


def test_rows_of_both_modes_have_one_name(store: Models) -> None:
    """Where only training was in two dtypes, evaluation's row is still found beside its own."""
    for dtype in ("fp32", "bf16"):
        store.train("cpu", 1.0, dtype=dtype)
    store.evaluate("cpu", 0.3, dtype="fp32")
    labels = [(row["mode"], row["label"]) for row in store.report("throughput").rows]
    assert labels == [("training", "cpu eager fp32"), ("training", "cpu eager bf16"), ("evaluation", "cpu eager fp32")]


def test_what_cannot_be_is_said(store: Models) -> None:
    store.train("cuda", 1e-6)
    store.evaluate("cuda", 2e-6, summary={"n_measure": 3})
    text = words(store.report("throughput"))
    assert "implausible: cuda eager: evaluation takes 0.002000 ms" in text
    assert "of the peak: the FLOP or the peak is wrong" in text
    assert "fewer than 10 measured iterations per run: cuda eager evaluation (3)" in text


def test_invalid_and_failed_runs_are_left_out_and_named(store: Models) -> None:
    store.train("cpu", 10.0)
    store.train("cuda", 0.1, taints={"wrong_loss": ("invalid", "the loss is 9, 7 on the CPU")})
    store.train("cuda", 0.1, dtype="bf16", outcome="FAILED", exit_code=1, reason="it broke")
    result = store.report("throughput")
    assert [row["speedup"] for row in result.rows if row["device"] == "cuda"] == [None, None]
    assert "wrong_loss" in words(result) and "it broke" in words(result)
    assert "no valid run" not in words(result)
    shown(store)


def test_what_counts_tokens_is_there_once_it_can_evaluate(store: Models) -> None:
    store.run("cpu", workload="nanogpt")
    store.run("cpu", workload="nanogpt", median_s=0.03, params={"mode": "eval"}, hello={"workload": "nanogpt-eval"})
    assert [row["mode"] for row in store.report("throughput").rows] == ["training", "evaluation"]
    assert "tokens/s" in shown(store)


def test_probes_of_a_search_are_left_to_the_report_scaling(store: Models) -> None:
    store.train("cuda", 0.1)
    store.db.execute("UPDATE jobs SET spec_json = json_set(spec_json, '$.find_max', 'batch_size')")
    store.train("cpu", 10.0)
    assert [row["device"] for row in store.report("throughput").rows] == ["cpu"]


def test_a_device_that_only_trains_has_no_mark_of_evaluation(store: Models) -> None:
    store.train("cpu", 1.0)
    store.train("cuda", 0.1)
    store.evaluate("cpu", 0.25, taints={"battery": ("caveat", "the machine ran on battery")})
    assert "None" not in shown(store)
