"""`python -m tests.gpu_energy`: on a machine with an NVIDIA GPU, compare its energy counter with sampled power.

A child computes products of matrices for `--seconds` (66 at least: 3 s at both ends are left out); both are read once a
second through mpsq's own reader. It prints a table in Markdown: counter, integral, their difference, and what reading
every five seconds adds at the borders of a phase. Needs torch with CUDA and nvidia-ml-py, and no queue. Exit code 1 if
they differ by more than 5 %.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from itertools import pairwise

from queue_runner.analysis.gpu_use import counted
from queue_runner.analysis.phases import Span
from queue_runner.host import nvidia

LOAD = """
import sys, time, torch
n, seconds = 8192, float(sys.argv[1])
a = torch.randn(n, n, device="cuda", dtype=torch.bfloat16)
b = torch.randn(n, n, device="cuda", dtype=torch.bfloat16)
for _ in range(3):
    a @ b
torch.cuda.synchronize()
print("loading", flush=True)
end = time.monotonic() + seconds
while time.monotonic() < end:
    for _ in range(20):
        a @ b
    torch.cuda.synchronize()
"""
LIMIT = 0.05
EDGE_S = 3.0
"""Time left at both ends of the load: the counter and the power sensor have averages of their own."""


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=75.0)
    parser.add_argument("--python", default=sys.executable, help="an interpreter whose torch has CUDA")
    options = parser.parse_args()
    library = nvidia.library()
    if library is None:
        print("no NVIDIA driver, or no nvidia-ml-py: pip install nvidia-ml-py", file=sys.stderr)
        return 2
    gpus = nvidia.Nvml(library)
    load = subprocess.Popen([options.python, "-c", LOAD, str(options.seconds)], stdout=subprocess.PIPE, text=True)
    try:
        assert load.stdout is not None
        if load.stdout.readline().strip() != "loading":
            print(
                "the load did not start: is there a torch with CUDA? --python names another interpreter",
                file=sys.stderr,
            )
            return 2
        gpus.use_pids([load.pid])
        readings, costs_s = _watch(gpus, load)
    finally:
        load.kill()
        load.wait()
        gpus.close()
    return _print(readings, costs_s)


Reading = tuple[float, dict[str, object]]


def _watch(gpus: nvidia.Nvml, load: subprocess.Popen[str]) -> tuple[list[Reading], list[float]]:
    """Read once a second until the load ends."""
    readings: list[Reading] = []
    costs_s = []
    zero = time.monotonic()
    while load.poll() is None:
        began = time.monotonic()
        gpu_readings = gpus.read()
        costs_s.append(time.monotonic() - began)
        readings.append((began + costs_s[-1] / 2 - zero, gpu_readings))
        time.sleep(max(0.0, 1.0 - costs_s[-1]))
    return readings, costs_s


def _print(readings: list[Reading], costs_s: list[float]) -> int:
    numbers = {key for _, said in readings for key in said.get("energy_j", {})}  # type: ignore[attr-defined]
    used = {f"gpu{n}" for _, said in readings for n in said.get("gpus_used", ())}  # type: ignore[attr-defined]
    hidden = any(said.get("gpu_pids_hidden") for _, said in readings)
    if not numbers:
        print("this GPU has no energy counter")
        return 2
    print("| GPU | seconds | counter, J | integral of power, J | difference | mean W |")
    print("|---|--:|--:|--:|--:|--:|")
    worst, every_five = 0.0, []
    for meter in sorted(used & numbers or numbers):
        counter = [(t, said["energy_j"][meter]) for t, said in readings if meter in said.get("energy_j", {})]  # type: ignore[index,operator]
        power = [(t, said["power_w"][meter]) for t, said in readings if meter in said.get("power_w", {})]  # type: ignore[index,operator]
        span = [Span("measure", EDGE_S, min(counter[-1][0], power[-1][0] if power else 0.0) - EDGE_S)]
        energy = counted(counter, span)
        inside = [point for point in power if span[0].from_s <= point[0] <= span[0].to_s]
        if energy is None or len(inside) < 2:
            print(f"| {meter} | - | - | - | - | - |")
            worst = float("inf")
            continue
        seconds = span[0].to_s - span[0].from_s
        mean_w = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(inside)) / (inside[-1][0] - inside[0][0])
        share = mean_w * seconds / energy.joules - 1
        worst = max(worst, abs(share)) if seconds >= 60 else float("inf")
        watts = energy.joules / seconds
        print(
            f"| {meter} | {seconds:.1f} | {energy.joules:.0f} | {mean_w * seconds:.0f} | {share:+.2%} | {watts:.0f} |"
        )
        if (coarse := counted([*counter[::5], counter[-1]], span)) is not None:
            off, bound = coarse.joules / energy.joules - 1, coarse.error_j / energy.joules
            every_five.append(f"{meter} read every 5 s: {off:+.2%} off, stated as at most {bound:.2%}")
    print()
    for text in every_five:
        print(text)
    middle, highest = statistics.median(costs_s) * 1e3, max(costs_s) * 1e3
    print(f"one reading of all GPUs: {middle:.1f} ms median, {highest:.1f} ms at most, {len(costs_s)} readings")
    seen_on = ", ".join(sorted(used)) or "none"
    print(f"the load's processes are {'hidden' if hidden else 'visible'}; GPUs it was seen on: {seen_on}")
    last = {key: value for key, value in readings[-2][1].items() if key not in ("energy_j", "power_w")}
    print(f"the last reading under load: {last}")
    verdict = "agree" if worst <= LIMIT else "do NOT agree, or not over 60 s"
    print(f"counter and integral {verdict} within {LIMIT:.0%}")
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
