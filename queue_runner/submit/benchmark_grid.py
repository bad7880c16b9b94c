"""`mpsq bench`: the usual benchmark grid of a workload on this machine, and its expected duration."""

from __future__ import annotations

from typing import Any

from queue_runner.errors import UsageError
from queue_runner.host import compiler, torch_probe
from queue_runner.paths import Layout, jobs_dir
from queue_runner.submit.given_options import Fields
from queue_runner.workloads import catalog, venvs
from queue_runner.workloads.manifest import Workload

BENCHMARK = {"max_iters": 200, "eval_interval": 0}
"""Settings of a benchmark of a longer training."""
ITERS_ON_CUDA = 400
"""There the start of a run takes far longer than 200 iterations: nanoGPT on an H100 was decided after 15 rounds of 200
iterations, and after 6 of 600."""
ITERS_ON_CPU = 60
"""The most iterations where all rows run on the CPU: there an iteration is long, and more rounds tell more than more
iterations. nanogpt tiny on two busy cores: 150 with their evaluations take over half of a run."""


def complete(fields: Fields, layout: Layout) -> tuple[dict[str, Any], list[str]]:
    """Return the fields given, completed with those of a benchmark: every working device (the CPU only without
    CUDA), eager and compiled; and notes on all that is left out. torch is queried in a separate process.

    Raises: UsageError for an unknown workload, no workload, or a machine without a working device.
    """
    if not fields.get("workload") or fields.get("argv"):
        raise UsageError("bench takes a workload", "for a list, run mpsq workloads; for a command, use mpsq run -- ...")
    full = dict(fields)
    notes: list[str] = []
    frameworks = fields.get("framework", ())
    name = "torch" if "torch" in frameworks else next(iter(frameworks), None)  # torch's devices can be queried
    workload = catalog.find(jobs_dir(), fields["workload"], name, layout.workloads)
    framework = workload.framework
    if "device" not in fields:
        if fields.get("mps"):
            full["device"] = ("mps",)  # its switches have no effect on other devices
        elif framework == "torch":
            devices = torch_probe.computing_devices(_interpreter(fields, layout))
            if not devices:
                raise UsageError(
                    "no device works on this machine", "mpsq doctor shows why; --device chooses one anyway"
                )
            if "cuda" in devices and "cpu" in devices:
                devices.remove("cpu")
                cpu = "the CPU is left out: it takes minutes where CUDA takes seconds; --device cpu,cuda includes it"
                notes.append(cpu)
            full["device"] = tuple(devices)
        else:
            notes.append(
                f"mpsq cannot probe the devices of {framework} and uses --device auto; --device chooses others"
            )
    if "compile" not in fields:
        compiler_check = compiler.probe()
        works = compiler_check.verdict == "ok"
        full["compile"] = ("both" if works else "off",)
        if not works:
            notes.append(f"eager only: {compiler_check.finding}")
    chosen = {*full.get("device", ())}
    most = ITERS_ON_CPU if chosen == {"cpu"} else ITERS_ON_CUDA if chosen == {"cuda"} else BENCHMARK["max_iters"]
    if short := _shortened(workload, fields, most):
        full["sets"] = {**short, **fields.get("sets", {})}
        words = ", ".join(f"{key}={value}" for key, (value,) in short.items())
        notes.append(f"a benchmark does not need a full training: it uses {words}; --set changes that")
    return full, notes


def _shortened(workload: Workload, fields: Fields, most: int) -> dict[str, tuple[str]]:
    """Return the settings that make a benchmark of a training of more than `most` iterations; empty where it is
    shorter, or its length is given."""
    sets, params = fields.get("sets", {}), workload.params
    if "max_iters" not in params or {"max_iters", "mode"} & sets.keys():
        return {}
    configs = fields.get("config") or tuple(workload.configs)[:1]
    lengths = [workload.configs.get(config, {}).get("max_iters", params["max_iters"].default) for config in configs]
    if max((int(length or 0) for length in lengths), default=0) <= most:
        return {}
    short = {**BENCHMARK, "max_iters": most}
    return {key: (str(value),) for key, value in short.items() if key in params.keys() - sets.keys()}


def _interpreter(fields: Fields, layout: Layout) -> str | None:
    """Return the interpreter that is named, or that of the first environment; None for mpsq's own."""
    names = fields.get("env_name")
    return fields.get("python") or (str(venvs.find(layout, names[0]).python) if names else None)
