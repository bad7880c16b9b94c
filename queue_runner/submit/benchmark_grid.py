"""`mpsq bench`: the usual benchmark grid of a workload on this machine, and its expected duration."""

from __future__ import annotations

from typing import Any

from queue_runner.errors import UsageError
from queue_runner.host import compiler, torch_probe
from queue_runner.paths import Layout, jobs_dir
from queue_runner.submit.given_options import Fields
from queue_runner.workloads import catalog, venvs


def complete(fields: Fields, layout: Layout) -> tuple[dict[str, Any], list[str]]:
    """Return the fields given, completed with those of a benchmark: every working device, eager and compiled;
    and notes on all that is left out. torch is queried in a separate process.

    Raises: UsageError for an unknown workload, no workload, or a machine without a working device.
    """
    if not fields.get("workload") or fields.get("argv"):
        raise UsageError("bench takes a workload", "mpsq workloads lists them; for a command, use mpsq run -- ...")
    full = dict(fields)
    notes: list[str] = []
    frameworks = fields.get("framework", ())
    name = "torch" if "torch" in frameworks else next(iter(frameworks), None)  # torch's devices can be queried
    framework = catalog.find(jobs_dir(), fields["workload"], name, layout.workloads).framework
    if "device" not in fields:
        if fields.get("mps"):
            full["device"] = ("mps",)  # its switches have no effect on other devices
        elif framework == "torch":
            devices = torch_probe.computing_devices(_interpreter(fields, layout))
            if not devices:
                raise UsageError(
                    "no device works on this machine", "mpsq doctor shows why; --device chooses one anyway"
                )
            full["device"] = tuple(devices)
        else:
            notes.append(
                f"mpsq cannot probe the devices of {framework} and uses --device auto; --device chooses others"
            )
    if "compile" not in fields:
        compiler_check = compiler.probe()
        full["compile"] = ("both" if compiler_check.works else "off",)
        if not compiler_check.works:
            notes.append(f"eager only: {compiler_check.finding}")
    return full, notes


def _interpreter(fields: Fields, layout: Layout) -> str | None:
    """Return the interpreter that is named, or that of the first environment; None for mpsq's own."""
    names = fields.get("env_name")
    return fields.get("python") or (str(venvs.find(layout, names[0]).python) if names else None)
