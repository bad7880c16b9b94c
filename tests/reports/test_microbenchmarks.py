"""Reports of micro-benchmarks: matmul, kernels, transfer, and the peak that matmul measures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from queue_runner.errors import UsageError
from queue_runner.reports._common import printing
from tests.reports.report_fixture import Store, words


class Benches(Store):
    """A store with runs as jobs/harness/microbench/run.py reports them."""

    offset = 0

    def put(self, run_id: int, name: str, value: float, i: int | None = None) -> None:
        self.offset += 1
        self._insert("metrics", run_id=run_id, offset=self.offset, name=name, value=value, unit="", i=i)

    def cell(self, run_id: int, name: str, times: Sequence[float], **facts: float) -> None:
        for i, time_s in enumerate(times):
            self.put(run_id, f"{name}.time", time_s, i)
        for fact, value in facts.items():
            self.put(run_id, f"{name}.{fact}", value)

    def matmul(
        self, n: int = 1000, times: Sequence[float] = (0.9e-3, 1e-3, 1.1e-3), peak: float | None = None, **run: Any
    ) -> int:
        told = {"workload": "matmul", "config": "peak" if peak else "guide", "params": {"n": n}, **run}
        run_id = self.run(**told)
        self.cell(run_id, f"n{n}", times, flop=2.0 * n**3, bytes=12.0 * n**2)
        if peak is not None:
            self.put(run_id, "peak", peak)
        return run_id


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Benches]:
    made = Benches(tmp_path / "home")
    yield made
    made.db.close()


def shown(store: Store, name: str, **options: Any) -> str:
    text = printing.as_text(name, store.report(name, **options), "table", explain=True)
    assert max(map(len, text.splitlines())) <= 80, text
    return text


H200 = {"device_name": "NVIDIA H200"}
BUSY = {"contended": ("invalid", "other programs used 60 % of the cores")}


@pytest.mark.parametrize("name", ["matmul", "kernels", "transfer"])
def test_an_empty_store_says_so(store: Benches, name: str) -> None:
    store.run()
    assert f"no run of {name}" in shown(store, name)


def test_matmul_is_two_n_cubed_over_the_time(store: Benches) -> None:
    store.matmul()
    (row,) = store.report("matmul").rows
    assert (row["n"], row["median_s"], row["n_samples"], row["n_runs"]) == (1000, 1e-3, 3, 1)
    assert row["flops_per_s"] == pytest.approx(2e12)
    assert row["spread_s"] == pytest.approx(1e-4) and row["spread_over"] == "samples"
    assert row["q1_s"] == pytest.approx(0.95e-3) and row["q3_s"] == pytest.approx(1.05e-3)
    assert row["share_of_peak"] is None and row["peak_source"] is None
    text = shown(store, "matmul")
    assert "2.00" in text and "TFLOP/s" in text and "(10 %)" in text and "2 n^3 / t" in text


def test_several_runs_have_the_spread_of_their_medians(store: Benches) -> None:
    for time_s in (1e-3, 1.2e-3, 2e-3):
        store.matmul(times=[time_s, time_s, 9.0])
    (row,) = store.report("matmul").rows
    assert (row["n_runs"], row["n_samples"], row["spread_over"]) == (3, 9, "runs")
    assert (row["median_s"], row["spread_s"]) == pytest.approx((1.3389e-3, 0.4811e-3), rel=1e-3)


def test_rows_are_told_apart(store: Benches) -> None:
    for told in ({}, {"n": 256}, {"framework": "mlx"}, {"dtype": "bf16"}, {"device": "mps"}, {"compile": True},
                 {"params": {"n": 1000, "threads": 1}}, {"version": "2.14"}):  # fmt: skip
        store.matmul(**told)
    store.matmul(params={"n": 1000, "calls": 4, "max_iters": 9, "timing": "both", "mode": "speed"})
    rows = store.report("matmul").rows
    assert len(rows) == 8 and sorted(row["n_runs"] for row in rows) == [1] * 7 + [2]
    assert "threads=1" in shown(store, "matmul")


def test_the_share_of_a_sourced_peak(store: Benches) -> None:
    store.matmul(device="cuda", dtype="bf16", hello=H200)
    (row,) = store.report("matmul").rows
    assert row["share_of_peak"] == pytest.approx(2e12 / 989.4e12) and "datasheet" in row["peak_source"]
    assert "0.202 %" in shown(store, "matmul")


def test_without_a_sourced_peak_the_measured_one_is_taken_and_said(store: Benches) -> None:
    store.matmul(n=2048, peak=4e12)
    store.matmul()
    rows = {row["n"]: row for row in store.report("matmul").rows}
    assert rows[1000]["share_of_peak"] == pytest.approx(0.5)
    assert all(x in rows[1000]["peak_source"] for x in ("measured by run 1.1", "torch 2.13.0"))
    assert "measured by run 1.1" in words(store.report("matmul"))


def test_what_the_unsynchronised_clock_says_stands_beside_the_truth(store: Benches) -> None:
    store.put(store.matmul(), "n1000.time_unsynced", 1e-5)
    (row,) = store.report("matmul").rows
    assert row["naive_times"] == pytest.approx(100) and row["naive_flops_per_s"] == pytest.approx(200e12)
    text = shown(store, "matmul")
    assert "100 x" in text and "naive TFLOP/s" in text


def test_the_guides_block_stands_beside_both(store: Benches) -> None:
    run = store.matmul()
    for name, value in {"time_unsynced": 1e-5, "calls": 100.0, "block_unsynced": 0.004, "block": 0.12}.items():
        store.put(run, f"n1000.{name}", value)
    (row,) = store.report("matmul").rows
    assert (row["block_calls"], row["guide_block_s"], row["naive_block_s"]) == (100, 0.004, pytest.approx(1e-3))
    assert row["block_s"] == pytest.approx(0.1)
    text = " ".join(shown(store, "matmul").split())
    assert "guide's loop" in text and "100 4.000 ms 1.000 ms 100.0 ms" in text
    assert "guide: a process's first block" in text


def test_runs_that_do_not_count_are_shown_only_where_no_other_does(store: Benches) -> None:
    store.matmul(times=[5e-3], taints=BUSY)
    (row,) = store.report("matmul").rows
    assert not row["valid"] and row["median_s"] == 5e-3
    text = shown(store, "matmul")
    assert "!" in text and "contended (other programs" in text and "fastest" not in text
    store.matmul(times=[1e-3])
    (row,) = store.report("matmul").rows
    assert (
        row["valid"] and row["runs"] == ["1.2"] and "1.1 contended" in " ".join(words(store.report("matmul")).split())
    )
    (row,) = store.report("matmul", include_invalid=True).rows
    assert row["n_runs"] == 2 and "--all" in words(store.report("matmul", include_invalid=True))


def test_failed_runs_and_caveats_are_told(store: Benches) -> None:
    store.matmul(taints={"battery": ("caveat", "the machine ran on battery")})
    store.run(workload="matmul", median_s=None, outcome="FAILED", exit_code=1, reason="it fell over")
    text = " ".join(shown(store, "matmul").split())
    assert "a = battery" in text and "battery (run 1.1)" in text and "it fell over" in text


# -- the measured peak, in the default report -----------------------------------------------------------------------


def mfu(store: Store, peak: str = "measured", **options: Any) -> Mapping[str, Any]:
    (row,) = store.report("devices", peak=peak, where=["workload=nanogpt"], **options).rows
    return row


def test_mfu_over_the_measured_peak(store: Benches) -> None:
    store.run("cpu", median_s=1.0)
    assert mfu(store)["mfu"] is None and mfu(store)["peak_source"] is None
    store.matmul(peak=2.3252e12)
    row = mfu(store)
    assert row["mfu"] == pytest.approx(0.5) and row["peak_source"].startswith("measured by run 2.1")
    assert mfu(store, "sourced")["mfu"] is None, "a cpu has no sourced peak"
    assert "measured by run 2.1" in words(store.report("devices", peak="measured"))


def test_the_measured_peak_is_used_instead_of_any_other_and_of_no_other_place(store: Benches) -> None:
    store.run("cuda", median_s=1.0, dtype="bf16", hello=H200)
    assert mfu(store, "sourced")["peak_flops"] == 989.4e12
    for told in ({"device": "cpu"}, {"dtype": "fp32"}, {"machine": {"name": "there"}}, {"taints": BUSY}):
        store.matmul(**{"device": "cuda", "dtype": "bf16", "peak": 1e12, **told})
    assert mfu(store)["mfu"] is None
    store.matmul(device="cuda", dtype="bf16", peak=8e14)
    assert mfu(store)["peak_flops"] == 8e14 and mfu(store, peak_tflops={"cuda": 1.0})["peak_flops"] == 8e14


def test_the_newest_peak_of_a_framework_counts_and_the_highest_of_several(store: Benches) -> None:
    store.run("cpu", median_s=1.0)
    store.matmul(peak=9e12, ended_at=1e9)
    store.matmul(peak=5e12, ended_at=2e9)
    assert mfu(store)["peak_flops"] == 5e12, "the newer one replaces it"
    store.matmul(peak=1e12, framework="tinygrad", ended_at=3e9)
    assert mfu(store)["peak_flops"] == 5e12, "a slower framework lowers nothing"
    store.matmul(peak=6e12, framework="jax", ended_at=3e9)
    assert mfu(store)["peak_flops"] == 6e12


def test_another_peak_than_these_two_is_refused(store: Benches) -> None:
    with pytest.raises(UsageError, match="--peak cannot be"):
        store.report("devices", peak="a100")


# -- kernels and transfer -------------------------------------------------------------------------------------------


def kernels(store: Benches, config: str = "small", **run: Any) -> int:
    run_id = store.run(workload="kernels", config=config, **run)
    store.cell(run_id, "linear.forward", [1e-3, 1e-3], flop=1e9, bytes=1e6)
    store.cell(run_id, "softmax.backward", [1e-3, 1e-3], flop=1e6, bytes=1e6)
    store.put(run_id, "roof.flops", 2e12)
    store.put(run_id, "roof.bytes", 1e11)
    return run_id


def test_kernels_say_what_bounds_them(store: Benches) -> None:
    kernels(store)
    rows = {row["op"]: row for row in store.report("kernels").rows}
    assert (rows["linear"]["direction"], rows["linear"]["bound"]) == ("forward", "compute")
    assert rows["linear"]["share_of_roof"] == pytest.approx(0.5) and rows["linear"]["intensity"] == 1000
    assert (rows["softmax"]["direction"], rows["softmax"]["bound"]) == ("backward", "memory")
    assert rows["softmax"]["share_of_roof"] == pytest.approx(0.01) and rows["softmax"]["bytes_per_s"] == 1e9
    text = shown(store, "kernels")
    assert "softmax backward" in text and "Waterman" in text


def test_sizes_of_kernels_are_never_pooled(store: Benches) -> None:
    for told in ({}, {"config": "large"}, {"params": {"width": 99}}, {"params": {"op": "linear"}}):
        kernels(store, **told)
    assert sorted(row["n_runs"] for row in store.report("kernels").rows) == [1, 1, 1, 1, 2, 2]
    assert "width=99" in shown(store, "kernels")


def test_kernels_without_a_roof_have_no_bound(store: Benches) -> None:
    store.cell(store.run(workload="kernels"), "linear.forward", [1e-3], flop=1e9, bytes=1e6)
    (row,) = store.report("kernels").rows
    assert row["bound"] is None and row["share_of_roof"] is None and row["flops_per_s"] == 1e12


def test_transfer_by_size_direction_and_memory(store: Benches) -> None:
    run_id = store.run("cuda", workload="transfer", hello=H200)
    for cell, size, time_s in (
        ("to_host.pageable.1048576", 1048576, 1e-3), ("to_device.pinned.4", 4, 1e-5),
        ("to_device.pinned.1048576", 1048576, 1e-4), ("to_device.pageable.4", 4, 2e-5),
    ):  # fmt: skip
        store.cell(run_id, cell, [time_s] * 3, flop=0.0, bytes=float(size))
    rows = store.report("transfer").rows
    assert [(row["direction"], row["memory"], row["n_bytes"]) for row in rows] == [
        ("to device", "pageable", 4), ("to device", "pinned", 4), ("to device", "pinned", 1048576),
        ("to host", "pageable", 1048576),
    ]  # fmt: skip
    assert rows[2]["bytes_per_s"] == pytest.approx(1.048576e10)
    text = shown(store, "transfer")
    assert all(x in text for x in ("to device (pinned): 10.0 µs", ", 10.5 GB/s at 1.00 MiB")) and "memcpy" not in text


def test_on_the_cpu_it_is_a_memcpy(store: Benches) -> None:
    store.cell(store.run(workload="transfer"), "to_host.pageable.4", [1e-6], bytes=4.0)
    assert "memcpy" in shown(store, "transfer")


def test_a_run_without_numbers_is_left_out_with_all_too(store: Benches) -> None:
    store.matmul(taints=BUSY)
    store.run(workload="matmul", config="guide", params={"n": 1000}, median_s=None, outcome="FAILED", exit_code=1)
    text = shown(store, "matmul", include_invalid=True)
    assert all(x in text for x in ("1 run left", "out (FAILED)", "1 run included", "--all (contended)"))
