"""Reports that answer one question each: frameworks, train-vs-infer, scaling, numerics, memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from queue_runner import units
from queue_runner.analysis import curves, stats
from queue_runner.errors import UsageError
from queue_runner.ingest.outcome import SILENT, with_last_words
from queue_runner.model import PHASES, Ending, Outcome
from queue_runner.reports._common import losses, printing
from tests.reports.report_fixture import Store, rows, words

BUSY = {"contended": ("invalid", "other programs used 60 % of the cores")}
MIB = 2**20


class Answers(Store):
    """A store whose runs have losses, memory and settings of their own."""

    offset = 0

    def losses(self, run_id: int, losses: Sequence[float], first: int = 0) -> None:
        for i, loss in enumerate(losses, start=first):
            self._insert(
                "iterations",
                run_id=run_id,
                offset=i,
                i=i,
                dur_s=0.1,
                loss=loss,
                phase=PHASES.index("measure"),
                synced=1,
            )

        if any(math.isnan(loss) for loss in losses):  # as the ingest notes it: SQLite has no NaN
            self._insert("notes", run_id=run_id, offset=0, kind="nan_loss", text="the loss is not a number")

    def memory(
        self, run_id: int, reserved: Sequence[int | None], allocated: Sequence[int | None] | None = None
    ) -> None:
        for i, n_bytes in enumerate(reserved):
            self._insert(
                "iterations", run_id=run_id, offset=i, i=i, dur_s=0.1, phase=PHASES.index("measure"), synced=1,
                reserved_bytes=n_bytes, allocated_bytes=allocated[i] if allocated else None,
            )  # fmt: skip

    def size(self, batch: int, median_s: float | None = 0.1, outcome: str = "SUCCEEDED", **told: Any) -> int:
        exit_ = {"max_rss_bytes": (100 + 10 * batch) * MIB}
        hello = {"tokens_per_iter": 10.0 * batch}
        params = {"batch_size": batch, **told.pop("params", {})}
        return self.run(params=params, median_s=median_s, outcome=outcome, exit=exit_, hello=hello, **told)

    def written(self, device: str, prefill: float, decode: float, **told: Any) -> int:
        """A run of mode=sample."""
        hello = {"workload": "nanogpt-sample", "params": 1000, **told.pop("hello", {})}
        run_id = self.run(device, params={"mode": "sample"}, hello=hello, **told)
        for name, value in (("prefill_tokens_per_s", prefill), ("decode_tokens_per_s", decode)):
            for i in range(3):
                self.offset += 1
                self._insert("metrics", run_id=run_id, offset=self.offset, i=i, name=name, value=value, unit="tokens/s")
        return run_id


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Answers]:
    made = Answers(tmp_path / "home")
    yield made
    made.db.close()


def test_the_fastest_without_a_verdict_is_so_as_measured(store: Answers) -> None:
    for framework, time_s in (("torch", 0.2), ("jax", 0.1)):
        store.run("mps", framework=framework, median_s=time_s)
    text = shown(store, "frameworks")
    assert all(x in text for x in ("measured as", "(jax 2.13.0), undecided", "jax was 2.00 x"))
    assert " is 2.00 x" not in text


def shown(store: Store, name: str, **options: Any) -> str:
    text = printing.as_text(name, store.report(name, **options), "table", explain=True)
    assert max(map(len, text.splitlines())) <= 80, text
    return " ".join(text.split())


def test_no_token_of_a_variable_is_shown(store: Answers) -> None:
    for place in "ab":
        variables = {"CUDA_MIRROR": f"https://me:hunter2@{place}"}
        store.run(software={"versions": {"torch": "2.13.0"}, "env": variables})
    result = store.report()
    assert [row["factors"]["CUDA_MIRROR"] for row in result.rows] == [f"https://me:[hidden]@{x}" for x in "ab"]
    assert "hunter2" not in printing.as_text("devices", result, "table", explain=True)


def test_a_row_that_hides_the_baseline_is_compared_as_with_vs(store: Answers) -> None:
    for k in range(4):
        for n in range(4):
            store.run(params={"n": n}, median_s=0.1 * (1 + n) * (1 + k * n / 500))

    def low(**options: Any) -> float:
        return float(rows(store.report(**options))["n=2"]["speedup_low"])

    assert low(where=["n=1,2"]) == pytest.approx(low(where=["n=1,2"], vs="n=1"))
    assert low(where=["n=0,2"]) == low(where=["n=0,2"], vs="n=0") == low(vs="n=0") == low(), "it is the default"


def test_the_hint_on_a_baseline_that_is_in_no_row_is_accepted(store: Answers) -> None:
    """It named the column job_id, which --group-by does not know."""
    store.run()
    store.run("mps")
    with pytest.raises(UsageError) as refused:
        store.report(vs="job=1")
    assert store.report(vs="job=1", group_by=refused.value.hint.split()[-1]).rows


def test_settings_with_a_dash_select_rows_and_baselines(store: Answers) -> None:
    for value in (0.1, 0.01):
        store.run(params={"weight-decay": value})
    assert {*rows(store.report(where=["weight-decay=0.1"]))} == {"cpu eager"}
    for name in ("weight-decay", "weight_decay"):
        assert rows(store.report(vs=f"{name}=1e-2"))["weight-decay=0.01"]["is_baseline"]
    assert len(store.report(group_by="weight-decay").rows) == 2
    assert "of weight_decay: 0.01, 0.1" in words(store.report(where=["weight-decay=7"]))


@pytest.mark.parametrize(
    ("value", "other", "text"), [(0.001, 0.1, "1e-3"), (True, False, "true"), ("1e-3", "1", "0.001")]
)
def test_a_baseline_may_be_spelled_otherwise(store: Answers, value: Any, other: Any, text: str) -> None:
    for setting in (other, value):
        store.run(params={"x": setting})
    assert [row["label"] for row in store.report(vs=f"x={text}").rows if row["is_baseline"]] == [f"x={value}"]


def test_commands_with_other_arguments_or_code_may_have_another_loss(store: Answers) -> None:
    known = {"workload": None, "framework": None, "config": None, "dtype": None}
    for argv, code in (("--lr=1", "a"), ("--lr=2", "a"), ("--lr=2", "b")):
        software = {"versions": {}, "code": code * 64}
        run = store.run(argv=("python", "train.py", argv), software=software, **known)  # type: ignore[arg-type]
        store.losses(run, [float(argv[-1]) + (code == "b")] * 20)
    text = shown(store, "devices")
    assert "wrong loss" not in text and "arguments" in str(store.report().rows[0]["factors"])


def test_a_value_of_zero_is_not_unset(store: Answers) -> None:
    for a, b in ((1, 0), (2, 5)):
        store.run(params={"a": a, "b": b})
    assert "b (a=1: 0; a=2: 5)" in shown(store, "devices")


# -- frameworks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("others", [["jax"], ["jax", "mlx"]])
@pytest.mark.parametrize("jax_s", [0.05, 0.2])
def test_the_ratio_of_the_two_fastest_is_stated_once(store: Answers, jax_s: float, others: list[str]) -> None:
    for k in range(5):
        for framework in ("torch", *others):
            median_s = {"torch": 0.1, "jax": jax_s, "mlx": 0.4}[framework]
            store.run("mps", framework=framework, median_s=median_s * (1 + k / 500))
    lines = [str(line) for line in store.report("frameworks").lines]
    ratios = [line for line in lines if "torch" in line and "jax" in line and " x " in line]
    assert len(ratios) == 1 and ratios[0].startswith("fastest (")
    assert any("x faster than eager mlx" in line for line in lines) == ("mlx" in others)


def test_a_pair_of_frameworks_has_the_same_answer_whatever_else_is_shown(store: Answers) -> None:
    """The baseline of all four is torch: who hides it counts each with each, with the noise of all."""
    for difference in (0.04, 0.041, 0.039):
        for framework, logarithm in (("torch", 0.0), ("jax", difference), ("mlx", 0.0), ("tinygrad", -2.0)):
            store.run("mps", framework=framework, median_s=0.1 * math.exp(-logarithm) * 1.00012345)
    assert "fastest (jax 2.13.0):" in shown(store, "frameworks", where=["framework=torch,jax"])
    part, whole = (
        {row["framework"]: row for row in store.report("frameworks", **options).rows}["mlx"]
        for options in ({"where": ["framework=mlx,jax"]}, {"vs": "framework=jax"})
    )
    keys = ("speedup", "speedup_low", "speedup_high", "verdict", "n_rounds")
    assert [part[key] for key in keys] == [whole[key] for key in keys] and part["verdict"] == "slower"


def test_frameworks_are_compared_on_one_device_with_verdicts_and_losses(store: Answers) -> None:
    for k in range(5):
        for framework, version, median_s in (("torch", "2.13.0+cpu", 0.10), ("jax", "0.10.2", 0.05)):
            run_id = store.run("mps", framework=framework, version=version, median_s=median_s * (1 + k / 500))
            if k == 0:
                store.losses(run_id, [3.0 - i / 100 + (framework == "jax") * 1e-4 for i in range(20)])
    store.run("cpu", framework="mlx", median_s=0.01)
    rows = {row["framework"]: row for row in store.report("frameworks").rows}
    assert set(rows) == {"torch", "jax"}, "another device is another comparison, and a lonely framework none"
    assert rows["torch"]["is_baseline"] and rows["jax"]["verdict"] == "faster"
    assert rows["jax"]["speedup_low"] < rows["jax"]["speedup"] < rows["jax"]["speedup_high"]
    text = shown(store, "frameworks")
    assert "fastest (jax 0.10.2):" in text and "jax is 2.000 x faster" in text
    assert "wrong loss" not in text and "2.13.0" in text and "torch: eager jax 3.5e-05" in text
    turned = {row["framework"]: row for row in store.report("frameworks", vs="framework=jax").rows}
    assert turned["torch"]["speedup"] == pytest.approx(0.5, rel=0.01)


def test_frameworks_that_train_otherwise_are_named(store: Answers) -> None:
    for framework, loss in (("torch", 2.0), ("jax", 3.0), ("mlx", math.nan)):
        store.losses(store.run(framework=framework), [loss] * 12)
    store.run(framework="jax", median_s=0.01, taints=BUSY)
    text = shown(store, "frameworks")
    assert "wrong loss" in text and all(x in text for x in ("jax ends at 3.0000", "torch: 2.0000", "mlx ends at"))
    assert "undecided" in text and "1/2" in text and "contended" in text
    with pytest.raises(UsageError):
        store.report("frameworks", vs="framework=paddle")


@pytest.mark.parametrize("kind", ["wrong_clock", "unsynced"])
def test_frameworks_are_not_compared_by_a_clock_that_cannot_be_trusted(store: Answers, kind: str) -> None:
    """jax reports a tenth of the time that its measured phase took: not 20 x faster, but 2 x."""
    for k in range(4):
        for framework, reported_s, phase_s in (("torch", 0.2, 20.0 + k / 10), ("jax", 0.01, 10.0 + k % 3 / 10)):
            taints = {kind: ("caveat", "the detail")} if framework == "jax" and k == 3 else {}
            summary = {"measure_s": phase_s, "n_measure": 100}
            store.run("mps", framework=framework, median_s=reported_s, summary=summary, taints=taints)
    text = shown(store, "frameworks")
    assert "eager jax is 2.0" in text and "vs 201." in text and "the measured phase" in text
    store.db.execute("UPDATE summaries SET measure_s = NULL")
    text = shown(store, "frameworks")
    assert "eager jax" in text and "30.00 vs 30.00 s" in text and "of the run," in text


def test_the_fastest_framework_is_compared_with_the_baseline_as_in_the_table(store: Answers) -> None:
    """The sentence had another interval than its row."""
    for k in range(4):
        for framework, time_s in (("torch", 0.2), ("mlx", 0.3), ("jax", 0.1)):
            store.run("mps", framework=framework, median_s=time_s * (1 + (k * len(framework) % 3) / 200))
    text = " ".join(printing.as_text("frameworks", store.report("frameworks"), "table").split())
    (row,) = [row for row in store.report("frameworks").rows if row["framework"] == "jax"]
    interval = units.ratio_interval(row["speedup_low"], row["speedup_high"])
    assert f"({interval.removesuffix(' x')})" in text and f"95 % CI {interval}," in text


# -- train-vs-infer -------------------------------------------------------------------------------------------------


def test_training_and_inference_side_by_side(store: Answers) -> None:
    for k in range(4):
        noise = 1 + k / 1000
        for device, speed in (("cpu", 1.0), ("mps", 3.0)):
            store.run(device, median_s=0.3 * noise / speed, hello={"params": 1000})
            store.written(device, 50_000 * speed**2 * noise, 100 * speed * noise)
            store.run(device, median_s=0.1, params={"mode": "eval"}, hello={"params": 1000, "workload": "nanogpt-eval"})
    store.run("mps", median_s=1e-3, hello={"params": 7}, params={"n_layer": 1})
    rows = {(row["device"], row["kind"]): row for row in store.report("train-vs-infer").rows}
    assert len(rows) == 8
    assert rows["mps", "train"]["speedup"] == pytest.approx(3) and rows["mps", "prefill"]["speedup"] == pytest.approx(9)
    assert rows["mps", "decode"]["times_training"] == pytest.approx(300 / (16384 / 0.1), rel=0.01)
    assert rows["mps", "eval"]["speedup"] == pytest.approx(1) and rows["cpu", "train"]["speedup"] is None
    text = shown(store, "train-vs-infer")
    assert "training 3.00" in text and "3.00 x higher" in text and "higher than training;" in text
    assert "decode 3.00" in text and "may equal" in text
    assert "1 row of training" in text, "a model of another size is another model"


def test_inference_that_does_not_count_is_not_compared(store: Answers) -> None:
    store.run("cpu", hello={"params": 1000})
    store.written("cpu", 10, 1)
    store.written("mps", 30, 3, taints=BUSY)
    rows = store.report("train-vs-infer").rows
    assert all(row["speedup"] is None for row in rows) and not next(r for r in rows if r["device"] == "mps")["counts"]
    text = shown(store, "train-vs-infer")
    assert "left out" in text and "no speedup" in text
    with pytest.raises(UsageError):
        store.report("train-vs-infer", vs="device=cpu")


def test_training_and_inference_are_not_compared_by_a_clock_that_cannot_be_trusted(store: Answers) -> None:
    """mps reports a tenth of the time that its measured phase took: not 20 x faster, but 2 x."""
    wrong = {"wrong_clock": ("caveat", "the detail")}
    for k in range(4):
        for device, reported_s, phase_s in (("cpu", 0.2, 20.0 + k / 10), ("mps", 0.01, 10.0 + k % 3 / 10)):
            taints, summary = (wrong if device == "mps" and k == 3 else {}), {"measure_s": phase_s, "n_measure": 100}
            store.run(device, median_s=reported_s, hello={"params": 1000}, summary=summary, taints=taints)
            evaluated = {"params": 1000, "workload": "nanogpt-eval"}
            store.run(device, params={"mode": "eval"}, hello=evaluated)
            store.written(device, 1e5, 1e2, taints=taints)
    rows = {(row["device"], row["kind"]): row for row in store.report("train-vs-infer").rows}
    assert rows["mps", "train"]["speedup"] == pytest.approx(2, rel=0.02)
    assert rows.keys() == {(device, kind) for device in ("cpu", "mps") for kind in ("train", "eval")}
    text = shown(store, "train-vs-infer")
    assert all(x in text for x in ("the measured phase,", "doubtful: mps", "8 runs whose clock"))
    store.db.execute("UPDATE summaries SET measure_s = NULL")
    rows = {(row["device"], row["kind"]): row for row in store.report("train-vs-infer").rows}
    assert rows.keys() == {("cpu", "eval"), ("mps", "eval")}


def test_failed_runs_are_in_no_number_with_all_either(store: Answers) -> None:
    for device in ("cpu", "mps"):
        store.run(device, hello={"params": 1000})
        store.run(device, hello={"params": 1000, "workload": "nanogpt-eval"}, params={"mode": "eval"}, taints=BUSY)
    store.run("mps", median_s=None, outcome="FAILED", exit_code=1)
    text = shown(store, "train-vs-infer", include_invalid=True)
    assert all(x in text for x in ("1 run left", "out (FAILED)", "2 runs included", "--all (contended)"))


# -- scaling --------------------------------------------------------------------------------------------------------


def test_a_sweep_has_a_knee_an_end_and_a_failure(store: Answers) -> None:
    for batch, rate in ((8, 400), (16, 700), (32, 960), (64, 1000), (128, 980)):
        store.size(batch, 10 * batch / rate, params={"max_iters": 20})
    store.size(256, None, "OUT_OF_MEMORY", reason="no room", params={"max_iters": 20})
    store.size(512, None, "OUT_OF_MEMORY", reason="no room", params={"max_iters": 20})
    rows = {row["value"]: row for row in store.report("scaling").rows}
    assert [value for value, row in rows.items() if row["is_knee"]] == [32]
    assert [value for value, row in rows.items() if row["is_largest"]] == [128]
    assert rows[256]["fits"] is False and rows[256]["outcome"] == "OUT_OF_MEMORY"
    assert rows[32]["tokens_per_s"] == pytest.approx(960) and rows[32]["memory_is"] == "RSS"
    text = shown(store, "scaling")
    assert all(x in text for x in ("batch_size 32, 96.0 %", "(1,000 tokens/s at 64)", "16 reaches 70.0 %"))
    assert all(x in text for x in ("fits: 128", "1.35 GiB (RSS)", "not fit: 256"))


def test_sweeps_are_never_mixed_and_busy_runs_prove_only_that_they_fit(store: Answers) -> None:
    for batch in (8, 16, 32):
        store.size(batch, 0.1)
        store.size(batch, 0.2, params={"n_layer": 2}, taints=BUSY if batch == 32 else None)
    rows = [row for row in store.report("scaling").rows if row["factors"].get("n_layer") == 2]
    assert [row["value"] for row in rows] == [8, 16, 32] and [row["valid"] for row in rows] == [True, True, False]
    assert rows[2]["fits"] and rows[2]["is_largest"] and rows[2]["share_of_best"] is None
    text = shown(store, "scaling")
    assert "no knee up" in text and "batch_size 32: throughput" in text and "3 values of" in text
    assert "! 1 run" in text and "out (contended)" in text and "times to run" not in text
    with pytest.raises(UsageError, match="one numeric setting"):
        store.report("scaling", group_by="dtype")


def test_a_curve_has_no_time_of_a_clock_that_cannot_be_trusted(store: Answers) -> None:
    for batch in (8, 16, 32):
        taints = {"wrong_clock": ("caveat", "the detail")} if batch == 32 else {}
        store.size(batch, 0.1 if batch < 32 else 0.001, summary={"measure_s": 10.0, "n_measure": 100}, taints=taints)
    assert [row["median_s"] for row in store.report("scaling").rows] == [pytest.approx(0.1)] * 3
    assert "doubtful: batch_size 32" in shown(store, "scaling")


def test_where_the_knee_is() -> None:
    def at(*rates: float, noise: float | None = None) -> curves.Knee:
        found = curves.find_knee([curves.RatePoint(2.0**k, rate, noise) for k, rate in enumerate(rates)])
        assert found is not None
        return found

    flat = at(100, 99, 101)
    assert flat.at is not None and (flat.at.size, flat.below) == (1, None)
    rising = at(100, 200, 400)
    assert rising.at is None
    noisy_rise = at(100, 190, 186, 200)
    assert noisy_rise.at is not None and noisy_rise.at.size == 2 and noisy_rise.below is not None
    fallen = at(100, 200, 50)
    assert fallen.at is fallen.best and not fallen.noisy
    assert at(100, 200, 201, noise=0.2).noisy
    assert curves.find_knee([curves.RatePoint(1, 1), curves.RatePoint(2, 2)]) is None


# -- numerics -------------------------------------------------------------------------------------------------------


def test_losses_before_the_first_step_are_those_of_one_seed(store: Answers) -> None:
    """The first run of a row may have failed: the others would be compared with another seed."""
    for device in ("cpu", "mps"):
        for seed in (1, 2, 3):
            ended = {"outcome": "FAILED", "exit_code": 1} if (device, seed) == ("mps", 1) else {}
            run = store.run(device, median_s=0.1, hello={"seed": seed}, **ended)
            store.metric(run, "reference_loss_device", 4.0 + seed / 10)
    assert "agree within 0.1 %: 4.2000" in shown(store, "devices")


def test_where_losses_part(store: Answers) -> None:
    base = [4.0] * 30
    store.losses(store.run("cpu"), base)
    store.losses(store.run("cpu", taints=BUSY), base)
    store.losses(store.run("mps", median_s=0.05), [4.0 * (1 + 1e-4 * i**1.5) for i in range(30)])
    bad = store.run("mps", dtype="fp16", median_s=0.04, outcome="FAILED", exit_code=1)
    store.losses(bad, [4.0] * 5 + [math.nan, math.inf])
    store.losses(store.run("mps", median_s=0.05, hello={"seed": 7}), [9.0] * 30)
    rows = [row for row in store.report("numerics").rows if row["run"] == "3.1"]
    assert len(rows) == 7 and rows[5]["relative"] == math.inf
    text = shown(store, "numerics")
    assert "bitwise reproducible (2 runs)" in text
    assert all(x in text for x in ("eager fp32 diverges", "0.1 % at iteration 5,", " 1 % at iteration 22"))
    assert "fp16 has a NaN" in text and "from iteration 5 on" in text
    assert "3.1 FAILED" in text and "(contended)" in text
    assert not [row for row in store.report("numerics").rows if row["seed"] == 7]
    few = store.report("numerics", iters="0:4")
    assert max(row["i"] for row in few.rows) == 4


def test_a_caveat_makes_no_time_invalid_and_each_run_of_each_seed_is_counted(store: Answers) -> None:
    for seed in (1, 2):
        for _ in range(2):
            busy = {"contended": ("caveat", "other programs used 60 % of the cores")}
            store.losses(store.run("cpu", hello={"seed": seed}, taints=busy), [4.0] * 30)
    text = shown(store, "numerics")
    assert "bitwise reproducible (4 runs)" in text and "invalid" not in text


def test_a_loss_that_was_not_reported_is_not_nan(store: Answers) -> None:
    """Every other iteration reports its loss, which is NaN from 20 on."""
    sparse: list[float | None] = [4.0 if i % 2 == 0 and i < 20 else None for i in range(30)]
    store.iterations(store.run("cpu"), [0.1] * 30, losses=[4.0] * 30)
    lost = store.run("mps")
    store.iterations(lost, [0.1] * 30, losses=sparse)
    store._insert("notes", run_id=lost, offset=2000, kind="nan_loss", text="not a number from iteration 20 on")
    assert all(x in shown(store, "numerics") for x in ("has a NaN", "from iteration 20 on"))
    losses = [row["loss"] for row in store.report("iterations").rows]
    assert losses[:2] == [4.0, None] and math.isnan(losses[20])


def test_relative_differences() -> None:
    nan, inf = math.nan, math.inf
    assert losses.relative(1.1, 1.0) == pytest.approx(0.1) and losses.relative(1, 0) == inf
    assert (losses.relative(nan, 1), losses.relative(1, nan), losses.relative(nan, nan)) == (inf, inf, None)
    assert losses.relative(inf, inf) is None and losses.relative(inf, -inf) == inf


# -- memory ---------------------------------------------------------------------------------------------------------


def test_rows_of_memory_are_told_apart_by_what_they_are_not_by_how_long_they_ran(store: Answers) -> None:
    for dtype in ("fp32", "bf16"):
        for iters in (5, 30):
            told = {"params": {"channels_last": True, "max_iters": iters, "mode": "train"}, "framework": "torch"}
            store.memory(store.run("cuda", dtype=dtype, **told), [2 * MIB] * 9, [MIB] * 9)
    lines = printing.as_text("memory", store.report("memory"), "table", explain=True).splitlines()
    assert [line.split()[:4] for line in lines[3:7]] == [
        ["cuda", "eager", dtype, run]
        for dtype, run in (("fp32", "1.1"), ("fp32", "2.1"), ("bf16", "3.1"), ("bf16", "4.1"))
    ]
    sizes = shown(store, "memory", group_by="device,compile,dtype,max_iters")
    assert "max_iters=5" in sizes and "max_iters=30" in sizes
    store.memory(store.run("cuda", framework="jax", params={"n": 8192}), [2 * MIB] * 9, [MIB] * 9)
    store.memory(store.run("cuda", framework="torch", params={"n": 8192}), [2 * MIB] * 9, [MIB] * 9)
    assert "…" not in shown(store, "memory", where=["n=8192"])


def test_memory_that_leaks_settles_or_runs_out(store: Answers) -> None:
    def run(
        label: int, device: str, reserved: Sequence[int], allocated: Sequence[int] | None = None, **told: Any
    ) -> str:
        store.memory(store.run(device, params={"k": label}, **told), reserved, allocated)
        return f"{len(store.jobs)}.1"

    settled = [100 * MIB + min(i, 30) * MIB for i in range(100)]
    leak = run(1, "cpu", [100 * MIB + i * MIB // 4 for i in range(100)])
    settles = run(2, "cpu", settled)
    steady = run(3, "mps", [400 * MIB] * 100, [200 * MIB] * 100)
    few = run(4, "cpu", [MIB] * 10)
    out = {"outcome": "OUT_OF_MEMORY", "reason": "no room"}
    ended = run(5, "mps", [10 * MIB * k for k in range(1, 31)], [9 * MIB * k for k in range(1, 31)], **out)
    store.run("mps", params={"k": 6}, median_s=None, **out)
    store.run("mps", params={"k": 7}, **out)  # reported iterations, without their memory
    rows: Mapping[str, Mapping[str, Any]] = {row["run"]: row for row in store.report("memory").rows}
    assert {name: rows[name]["leak"] for name in rows} == {
        leak: True, settles: False, steady: False, few: None, ended: True,
    }  # fmt: skip
    assert rows[leak]["growth_bytes_per_1000"] == pytest.approx(250 * MIB, rel=0.01) and rows[leak]["grows"] == "RSS"
    assert rows[leak]["growth_low"] <= rows[leak]["growth_bytes_per_1000"] <= rows[leak]["growth_high"]
    assert rows[steady]["reserved_over_allocated"] == 2 and rows[leak]["reserved_over_allocated"] is None
    text = shown(store, "memory")
    assert f"{leak} (cpu eager k=1) leaks" in text and "grows by 250 MiB" in text
    assert "reserves up to 2.00 x" in text and f"({few}): fewer than 20" in text
    assert all(x in text for x in ("iteration, 29:", "270 MiB allocated", "300 MiB reserved"))
    assert "reported iteration: 6.1" in text and "7.1" not in text


def test_the_interval_of_a_slope_knows_ties() -> None:
    assert stats.slope(range(4), [1.0, 2.0, 3.0, 4.0]) is None
    flat = stats.slope(range(50), [7.0] * 50)
    assert flat is not None and (flat.low, flat.middle, flat.high) == (0, 0, 0)
    noisy = stats.slope(range(50), [float(k * 37 % 11) for k in range(50)])
    assert noisy is not None and noisy.low < 0 < noisy.high
    rising = stats.slope(range(1000), [2.0 * k + k * 37 % 11 for k in range(1000)])
    assert rising is not None and rising.low > 1.9 and rising.high < 2.1


# -- the end of a program that knows nothing of mpsq ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", Outcome.OUT_OF_MEMORY),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory.", Outcome.OUT_OF_MEMORY),
        ("RuntimeError: MPS backend out of memory (MPS allocated: 8 GB)", Outcome.OUT_OF_MEMORY),
        ("RuntimeError: Invalid buffer size: 19.45 GB", Outcome.OUT_OF_MEMORY),
        ("ValueError: Invalid buffer size of the reader", Outcome.FAILED),
        ("jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.", Outcome.OUT_OF_MEMORY),
        ("MemoryError", Outcome.OUT_OF_MEMORY),
        ("ValueError: the CUDA out of memory test was skipped by hand", Outcome.OUT_OF_MEMORY),
        ("warning: CUDA out of memory was caught, going on with less", Outcome.FAILED),
        ("KeyError: 'MemoryError'", Outcome.FAILED),
        ("", Outcome.FAILED),
        ("OSError: [Errno 28] No space left on device", Outcome.DISK_FULL),
        ("OSError: [Errno 28] No space left on device: 'out/ckpt.pt'", Outcome.DISK_FULL),
        ("cp: error writing 'x': No space left on device", Outcome.DISK_FULL),
        ("write out/x: no space left on device", Outcome.DISK_FULL),
        ("Error: No space left on device (os error 28)", Outcome.DISK_FULL),
        ("OSError: [Errno 122] Disk quota exceeded", Outcome.DISK_FULL),
        ("sqlite3.OperationalError: database or disk is full", Outcome.DISK_FULL),
        ("KeyError: 'No space left on device'", Outcome.FAILED),
    ],
)
def test_the_last_words_of_a_program_without_memory_or_space(said: str, outcome: Outcome) -> None:
    ending = with_last_words(Ending(Outcome.FAILED, 1), said)
    assert ending.outcome is outcome and ending.reason == (said or SILENT)
    assert with_last_words(Ending(Outcome.SUCCEEDED, 0), said) == Ending(Outcome.SUCCEEDED, 0)
