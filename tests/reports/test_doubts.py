"""What reports once said wrongly: numbers that were mixed, left out in silence, or told of the wrong thing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from queue_runner import reports
from queue_runner.analysis import stats
from queue_runner.errors import UsageError
from tests.reports.test_answers import BUSY, MIB, Answers, shown
from tests.reports.test_microbenchmarks import Benches

CUDA = {"versions": {"torch": "2.13.0", "cuda": "13.0"}}
NO_CUDA = {"versions": {"torch": "2.13.0"}}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Answers]:
    made = Answers(tmp_path / "home")
    yield made
    made.db.close()


@pytest.fixture
def benches(tmp_path: Path) -> Iterator[Benches]:
    made = Benches(tmp_path / "home")
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
    assert "per run: 1.1 (3)" in shown(store, "train-vs-infer")


def test_a_setting_that_was_asked_on_one_side_alone_is_no_twin(store: Answers) -> None:
    _both(store, n_layer=1)
    assert all(row["speedup"] is None for row in store.report("train-vs-infer").rows)


def test_a_contended_run_beside_runs_that_count_is_named(store: Answers) -> None:
    _both(store)
    store.run("cuda", median_s=0.9, software=CUDA, hello={"params": 1000}, taints=BUSY)
    text = shown(store, "train-vs-infer")
    assert "out (contended): 3.2" in text


@pytest.mark.parametrize("value", ["nan", "inf", "1e999"])
def test_a_setting_that_is_no_finite_number_ends_no_report(store: Answers, value: str) -> None:
    store.run(params={"lr": value, "batch_size": 8})
    store.run(params={"lr": "0.1", "batch_size": 8})
    assert store.report("scaling").rows == []


# -- micro-benchmarks -----------------------------------------------------------------------------------------------


def test_benchmarks_under_another_driver_are_not_pooled(benches: Benches) -> None:
    for driver in ("580", "590"):
        benches.matmul(software={"versions": {"torch": "2.13.0"}, "system": {"gpu_driver": driver}})
    rows = benches.report("matmul").rows
    assert sorted(row["settings"] for row in rows) == ["gpu_driver=580", "gpu_driver=590"]
    assert [row["n_runs"] for row in rows] == [1, 1]


def test_versions_are_named_where_there_are_several(benches: Benches) -> None:
    benches.matmul()
    assert "2.13.0" not in shown(benches, "matmul")
    benches.matmul(version="2.14.0")
    text = shown(benches, "matmul")
    assert "torch 2.13.0" in text and "torch 2.14.0" in text


def test_copies_on_two_machines_are_two_tables_and_only_counting_ones_are_summed_up(benches: Benches) -> None:
    for name, time_s, taints in (("a", 1e-3, {}), ("b", 2e-3, {}), ("c", 1e-6, BUSY)):
        run = benches.run(workload="transfer", device="cuda", machine={"name": name}, taints=taints)
        benches.cell(run, "to_device.pinned.1000000", [time_s], bytes=1e6)
    result = benches.report("transfer")
    assert [len(section.rows) for section in result.sections] == [1, 1, 1]
    rates = {line.split(", ")[-1] for line in result.lines}
    assert rates == {"1.00 GB/s at 977 KiB", "0.500 GB/s at 977 KiB"}


OPTIONS = {"by": "loss", "vs": "device=cpu", "group_by": "device", "iters": "1:3"}
UNREAD = {
    "matmul": OPTIONS, "kernels": OPTIONS, "transfer": OPTIONS, "time": OPTIONS, "missing": OPTIONS, "gallery": OPTIONS,
    "train-vs-infer": OPTIONS, "trend": ("vs", "group_by", "iters"), "iterations": ("by", "vs", "group_by"),
    "breakdown": ("by", "vs", "iters"), "utilization": ("by", "vs", "iters"), "numerics": ("by", "group_by"),
    "scaling": ("by", "vs"), "memory": ("by", "vs"), "ops": ("by", "group_by", "iters"), "frameworks": ("by",),
    "devices": (),
}  # fmt: skip


def test_what_a_report_would_ignore_it_refuses(benches: Benches) -> None:
    benches.matmul()
    assert UNREAD.keys() == {*reports.names()}
    for name, options in UNREAD.items():
        for option in options:
            with pytest.raises(UsageError, match=f"--{option.replace('_', '-')} does not apply to the report {name}"):
                benches.report(name, **{option: OPTIONS[option]})


# -- memory ---------------------------------------------------------------------------------------------------------


def test_memory_that_xla_takes_beforehand_is_not_called_fragmented(store: Answers) -> None:
    for workload, framework in (("nanogpt", "jax"), ("nanogpt", "torch"), ("bert", "torch")):
        run_id = store.run("cuda", workload=workload, framework=framework)
        store.memory(run_id, [900 * MIB] * 3, [100 * MIB] * 3)
    text = shown(store, "memory")
    assert "jax, 1 run (1.1), reserves" in text and "up to 9.00 x" in text and "PREALLOCATE=false" in text
    assert "torch, 1 run (2.1), reserves" in text and "bert cuda eager, 1" in text and "(3.1), reserves" in text


def test_sens_interval_ends_at_the_slopes_that_scipy_names() -> None:
    """The numbers are those of scipy.stats.theilslopes."""
    y = [1.0, 3.0, 2.0, 5.0, 4.0, 8.0, 6.0, 9.0]
    found = stats.slope(range(8), y)
    assert found is not None
    # var S = 8 * 7 * 21 / 18, z sqrt(var) = 15.84; (28 - 15.84) / 2 = 6.08: the 6th smallest and the 6th largest
    assert (found.middle, found.low, found.high) == (1, 0.5, pytest.approx(5 / 3))


# -- what fits, what is covered -------------------------------------------------------------------------------------


def test_a_run_that_failed_for_another_reason_says_nothing_of_room(store: Answers) -> None:
    store.size(8)
    store.size(16, None, "FAILED", exit_code=1)
    for outcome in ("OUT_OF_MEMORY", "CANCELLED"):
        store.size(32, None, outcome)
    rows = {row["value"]: row for row in store.report("scaling").rows}
    assert [rows[size]["fits"] for size in (8, 16, 32)] == [True, None, False]
    assert rows[32]["outcome"] == "OUT_OF_MEMORY", "the run that was cancelled has no say"


def test_settings_that_are_no_object_end_no_report(store: Answers) -> None:
    for k, said in enumerate(('"fast"', "3", "[1]", "null")):
        store.run(params={"batch_size": 8 + k}, hello={"hello_json": f'{{"settings": {said}}}'})
    assert len(store.report("scaling").rows) == 4


def test_operators_of_another_system_or_without_fallbacks_are_a_table_of_their_own(benches: Benches) -> None:
    for system, params in (("15.1", {}), ("26.0", {}), ("26.0", {"fallbacks": "off"})):
        software = {"versions": {"torch": "2.13.0"}, "system": {"os_version": system}}
        run = benches.run("mps", workload="opcheck", params=params, software=software)
        benches.put(run, "op/add/fp32/forward/native", 1e-6)
    result = benches.report("ops")
    assert len([section for section in result.sections if section.title.startswith("opcheck")]) == 3
    assert len(result.rows) == 3 and "os_version=15.1" in shown(benches, "ops")


# -- frameworks -----------------------------------------------------------------------------------------------------


def test_losses_on_other_data_are_not_compared(store: Answers) -> None:
    for framework, data in (("torch", "a" * 64), ("jax", "b" * 64), ("mlx", "a" * 64)):
        store.losses(store.run(framework=framework, hello={"data_sha256": data}), [2.0] * 12)
    assert "torch: eager mlx 0" in shown(store, "frameworks")
