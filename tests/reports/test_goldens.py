"""Each report of one store, as a user reads it at 80 columns, against tests/golden/reports/NAME.txt.

`MPSQ_WRITE_GOLDENS=1 python -m pytest tests/reports/test_goldens.py` writes these files; read what changed in them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from queue_runner import reports
from queue_runner.reports._common import printing
from tests.reports.report_fixture import Models, around
from tests.reports.test_answers import Answers
from tests.reports.test_microbenchmarks import Benches
from tests.reports.test_ops import Checks

GOLDENS = Path(__file__).resolve().parents[1] / "golden" / "reports"
H200 = {"device_name": "NVIDIA H200"}
BUSY = {"contended": ("invalid", "other programs used 60% of the machine's cores")}
FEWER: dict[str, dict[str, object]] = {
    "missing": {"selectors": ["g1"]},
    "gallery": {"where": ["config=tiny"]},
    "breakdown": {"where": ["config=tiny"]},
    "time": {"where": ["config=tiny", "device=mps"]},
}
"""Options of reports whose output of all runs would be long."""
EXPLAINED = ("devices", "frameworks")
"""Reports that have a golden of --explain, too."""
BATTERY = {"battery": ("caveat", "the machine ran on battery")}


class Everything(Answers, Benches, Checks, Models):
    """A store with runs for every report, those of the default report last."""

    def fill(self) -> None:
        self._micro_benchmarks()
        self._models()
        self._sweep()
        self._grid()

    def _of_a_mac(self, compile: bool) -> Iterator[dict[str, object]]:
        for t in range(31):
            low = 0.8 if compile and t % 6 == 0 else 0.99
            busy = {"gpu_busy_share": low if t > 5 else 0.02, "gpu_clock_hz": 1.296e9}
            watts = {"gpu": 24.0, "cpu": 3.0, "ane": 0.0}
            yield {**busy, "power_w": watts, "energy_j": {part: power * t for part, power in watts.items()}}

    def _micro_benchmarks(self) -> None:
        verdicts = {"add fp32 forward": "native", "svd fp32 forward": "fallback", "cumsum fp32 forward": "wrong"}
        notes = {"svd fp32 forward": "aten::linalg_svd", "cumsum fp32 forward": "off by 0.5"}
        times_s = {"svd fp32 forward": 2e-3}
        self.opcheck({**verdicts, "cumsum fp32 forward": "native"}, notes, times_s, device="mps", version="2.9.1")
        self.opcheck(verdicts, notes, times_s, device="mps")
        for device, times in (("cpu", (0.9e-2, 1e-2, 1.1e-2)), ("cuda", (0.9e-4, 1e-4, 1.1e-4))):
            for _ in range(2):
                self.matmul(device=device, times=times, hello=H200 if device == "cuda" else {})
        naive = self.matmul(n=4000, times=(2e-3, 2e-3), device="cuda", hello=H200, taints=BATTERY)
        for name, value in (("time_unsynced", 1e-5), ("calls", 100.0), ("block_unsynced", 4e-3), ("block", 0.21)):
            self.put(naive, f"n4000.{name}", value)
        kernels = self.run("cuda", workload="kernels", config="gpt2", hello=H200)
        self.cell(kernels, "linear.forward", (1e-3, 1.1e-3), flop=4e11, bytes=1e8)
        self.cell(kernels, "softmax.forward", (1e-3, 1.1e-3), flop=1e9, bytes=2e9)
        self.put(kernels, "roof.flops", 6e14)
        self.put(kernels, "roof.bytes", 4e12)
        transfer = self.run("cuda", workload="transfer", config="full", hello=H200)
        for memory in ("pageable", "pinned"):
            self.cell(transfer, f"to_device.{memory}.4", (1e-5, 1.1e-5), bytes=4.0)
            self.cell(transfer, f"to_device.{memory}.1048576", (1e-4, 1.1e-4), bytes=2.0**20)

    def _models(self) -> None:
        for device, scale in (("cpu", 1.0), ("cuda", 0.01)):
            order = -1 if device == "cuda" else 1
            self.train(device, *around(10.0 * scale)[::order])
            self.evaluate(device, *around(2.5 * scale)[::order], taints=BATTERY)
        for device, rate in (("cpu", 100.0), ("mps", 300.0)):
            for k in range(4):
                self.written(device, rate * 10 + k, rate + k, config="small", group=2)
                median_s = 16384 / rate / 4 * (1 + (k if device == "cpu" else 3 - k) / 1000)
                self.run(device, median_s=median_s, config="small", hello={"params": 1000}, group=2)

    def _sweep(self) -> None:
        for batch, median_s in ((8, 0.1), (16, 0.12), (32, 0.2), (64, 0.39)):
            self.size(batch, median_s, workload="bert", config="base")
        self.size(128, None, "OUT_OF_MEMORY", workload="bert", config="base", reason="tried to allocate 2 GiB")

    def _grid(self) -> None:
        for k in range(5):
            for device, median_s in (("cpu", 2.0), ("mps", 0.22)):
                for compile in (False, True):
                    cache = {"compile_cache": ("cold" if k == 0 else "warm") if compile else None}
                    summary = {"first_iter_excess_s": 0.5 + compile * (20.0 if k == 0 else 3.0)}
                    noise = 1 + (1 + compile + 2 * (device == "mps")) * k % 5 / 400
                    times = median_s * (0.8 if compile else 1) * noise
                    run_id = self.run(device, compile, times, hello=cache, summary=summary)
                    self.losses(run_id, [4 / (i + 1) * (1 + (device == "mps") * i * 1e-4) for i in range(20)])
                    if device == "mps":
                        self.watched(run_id, [*self._of_a_mac(compile)])
            self.run("mps", framework="mlx", version="0.31.0", median_s=0.2 * (1 + (k + 2) % 5 / 400))
        leak = self.run("mps", median_s=0.5, taints=BUSY)
        self.memory(leak, [2**30 + i * 2**20 for i in range(30)], [2**29 + i * 2**20 for i in range(30)])
        self.run("cpu", outcome="FAILED", exit_code=1, reason="no data", median_s=None)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Everything]:
    made = Everything(tmp_path_factory.mktemp("home"))
    made.fill()
    yield made
    made.db.close()


@pytest.mark.parametrize(
    ("name", "explain"), [*((name, False) for name in reports.names()), *((name, True) for name in EXPLAINED)]
)
def test_a_report_reads_as_its_golden(store: Everything, name: str, explain: bool) -> None:
    result = store.report(name, **FEWER.get(name, {}))
    text = printing.as_text(name, result, "table", explain=explain) + "\n"
    golden = GOLDENS / f"{name}{'.explained' * explain}.txt"
    if os.environ.get("MPSQ_WRITE_GOLDENS"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert golden.exists(), f"{name} has no golden: write it as this file's first lines say"
    assert text == golden.read_text()
    assert max(map(len, text.splitlines())) <= 80


def test_every_golden_is_of_a_report() -> None:
    explained = {f"{name}.explained" for name in EXPLAINED}
    assert {path.stem for path in GOLDENS.iterdir()} == {*reports.names(), *explained}
