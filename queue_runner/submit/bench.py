"""`mpsq bench`: the usual benchmark grid of a workload on this machine, and its expected duration."""

from __future__ import annotations

from typing import Any

from queue_runner.errors import UsageError
from queue_runner.host import compiler, torch_probe
from queue_runner.paths import jobs_dir, layout
from queue_runner.submit.options import Said
from queue_runner.workloads import catalog, venvs

REPEATS = 4
"""Fewest repeats with which a comparison can reach a verdict."""


def preset(said: Said) -> tuple[dict[str, Any], list[str]]:
    """Return the options given, completed with those of a benchmark: every working device, eager and compiled, REPEATS
    times; and notes on what was left out. torch is queried in a separate process.

    Raises: UsageError for an unknown workload, no workload, or a machine without a working device.
    """
    if not said.get("workload") or said.get("command"):
        raise UsageError(
            "bench takes a workload", "mpsq workloads lists them; a command: mpsq submit --repeats 4 -- ..."
        )
    full: dict[str, Any] = {**({} if "find_max" in said else {"repeats": REPEATS}), "until_valid": True, **said}
    notes: list[str] = []
    framework = catalog.find(
        jobs_dir(), said["workload"], _one(said.get("framework")), own=layout().workloads
    ).framework
    if "device" not in said:
        if said.get("mps"):
            full["device"] = "mps"  # its switches have no effect on other devices
        elif framework == "torch":
            devices = torch_probe.computing_devices(said.get("python") or _first(said.get("env_name")))
            if not devices:
                raise UsageError(
                    "no device works on this machine", "mpsq doctor shows why; --device chooses one anyway"
                )
            full["device"] = ",".join(devices)
        else:
            notes.append(f"the devices of {framework} are not probed: device is auto; --device chooses others")
    if "compile" not in said:
        checked = compiler.probe()
        full["compile"] = "both" if checked.works else "off"
        if not checked.works:
            notes.append(f"eager only: {checked.finding}")
    return full, notes


def _first(names: str | None) -> str | None:
    """Return the interpreter of the first environment named, which represents all when devices are detected."""
    given = [name for name in (names or "").split(",") if name.strip()]
    return str(venvs.find(layout(), given[0].strip()).python) if given else None


def _one(frameworks: str | None) -> str | None:
    """Return the framework to look the workload up by; torch if listed, because its devices can be queried."""
    names = [name.strip() for name in (frameworks or "").split(",") if name.strip()]
    return "torch" if "torch" in names else names[0] if names else None
