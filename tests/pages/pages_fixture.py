"""A store as an evening of benchmarks leaves it: two devices and modes, interleaved rounds, samples, taints."""

from __future__ import annotations

import math
import random
from pathlib import Path

from queue_runner.pages import report_page
from queue_runner.reports._common.report_options import read_options
from queue_runner.store import read
from tests.reports.report_fixture import Store

BEGUN_AT = 1_790_000_000.0
RUN_S = 30.0
_PHASES = (
    ("setup", 0.0, 4.0),
    ("compile", 4.0, 6.0),
    ("warmup", 6.0, 8.0),
    ("measure", 8.0, 26.0),
    ("eval", 26.0, 28.0),
)
_MACHINE = {"system": "Linux", "cpu": "AMD EPYC 9554", "memory_gib": 128, "gpus": ["NVIDIA H200"], "cores_logical": 16}
_SOFTWARE = {
    "versions": {"python": "3.13.1", "torch": "2.13.0"},
    "env": {"OMP_NUM_THREADS": "8", "HF_TOKEN": "hf_abcdefghijklmnop0123456789"},
    "packages": {"numpy": "2.4.6", "torch": "2.13.0"},
}
_TIMES_S = {("cpu", False): 0.412, ("cpu", True): 0.371, ("cuda", False): 0.0318, ("cuda", True): 0.0242}


def evening(store: Store, rounds: int = 5, iterations: int = 200, *, seed: int = 1) -> Store:
    """Fill a store with `rounds` of four arms; in the second round a run is contended, in the last one has failed."""
    draw = random.Random(seed)
    title = "mpsq submit nanogpt --device cpu,cuda --compile on,off --repeats 5 --env API_KEY=sk-0123456789abcdefghij"
    store.db.execute("BEGIN")
    store.db.execute("UPDATE groups SET title = ?, created_at = ?", [title, BEGUN_AT - 60])
    started = BEGUN_AT
    for k in range(rounds):
        for (device, mode), usual_s in _TIMES_S.items():
            _run(store, draw, started, device, mode, usual_s, iterations, k, last=k == rounds - 1)
            started += RUN_S + 2
    store.db.execute("COMMIT")
    return store


def _run(
    store: Store,
    draw: random.Random,
    started: float,
    device: str,
    mode: bool,
    usual_s: float,
    iterations: int,
    k: int,
    *,
    last: bool,
) -> None:
    contended = k == 1 and device == "cpu" and not mode
    failed = last and device == "cuda" and mode
    median_s = usual_s * math.exp(draw.gauss(0, 0.01)) * (1.3 if contended else 1.0)
    taints = {"contended": ("invalid", "other programs used 40 % of the machine's cores")} if contended else {}
    if device == "cuda" and k == 2:
        taints["throttled"] = ("caveat", "the GPU reached 88 degrees Celsius")
    run_id = store.run(
        device,
        mode,
        None if failed else median_s,
        config="shakespeare_char",
        dtype="bf16",
        outcome="FAILED" if failed else "SUCCEEDED",
        exit_code=1 if failed else None,
        reason="RuntimeError: CUDA error" if failed else None,
        taints=taints,
        machine=_MACHINE,
        software=_SOFTWARE,
        hello={"device_name": "NVIDIA H200" if device == "cuda" else "AMD EPYC 9554", "compile_cache": "cold"},
        ended_at=started + RUN_S,
    )
    store.db.execute("UPDATE runs SET started_at = ? WHERE id = ?", [started, run_id])
    if failed:
        return
    store.courses(run_id, started, _PHASES, (_sample(draw, device, t_s, contended) for t_s in range(0, int(RUN_S), 2)))
    times = [
        median_s * math.exp(draw.gauss(0, 0.02)) * (1.5 if draw.random() < 0.005 else 1) for _ in range(iterations)
    ]
    losses = [1.5 + 2.7 * math.exp(-i / iterations * 3) + draw.gauss(0, 0.03) for i in range(iterations)]
    store.iterations(run_id, [median_s + (4.0 if mode else 0.6)], 0, "compile", losses=[4.2])
    store.iterations(run_id, times, 1, losses=losses)


def _sample(draw: random.Random, device: str, t_s: int, contended: bool) -> dict[str, float]:
    working = 8 <= t_s <= 26
    busy = 0.97 if device == "cuda" and working else 0.0
    return {
        "gpu_busy_share": min(1.0, busy + draw.random() * 0.03),
        "gpu_temperature_c": 41 + (35 * busy) + draw.random() * 4,
        "others_cpu_share": (0.4 if contended else 0.02) + draw.random() * 0.02,
        "job_cpu_share": (0.9 if device == "cpu" and working else 0.08) + draw.random() * 0.05,
        "load1": 4.0,
    }


def page_of(store: Store, name: str = "devices", **options: object) -> str:
    """Return the page of a report, as `mpsq report --html` writes it."""
    with read.reading(store.layout.db) as connection:
        wanted = read_options(**options)  # type: ignore[arg-type]
        command = "mpsq report --html out.html"
        return report_page.build(name, store.layout, connection, wanted, command=command, now=BEGUN_AT + 9000)


def written(store: Store, path: Path, name: str = "devices", **options: object) -> Path:
    """Write the page of a report to a file."""
    report_page.write(path, page_of(store, name, **options))
    return path
