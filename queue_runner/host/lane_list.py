"""The lanes of this machine: what the setting `lanes` names, with the processors of each.

A GPU gets processors that the kernel calls local to it (sysfs, local_cpulist of its PCI device), except those of
lanes of processors. GPUs that share local processors divide them by whole cores. Every lane gets the same number, since
that number is part of a run's question.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any

from queue_runner import lanes
from queue_runner.errors import MpsqError, UsageError
from queue_runner.host import nvidia
from queue_runner.lanes import Lane


def resolve(setting: str, root: Path = Path("/"), library: Any = None) -> tuple[list[Lane], list[str]]:
    """Return the lanes that the setting names, [] for serial, and what a user should know of them.

    Raises: UsageError for a value that names no lanes, MpsqError for a GPU or processor that is not here.
    """
    names = lanes.parse(setting)
    if not names:
        return [], []
    notes = []
    there = _here()
    for name in names:
        if missing := [core for core in lanes.cores(name) if lanes.kind(name) == "cpu" and core not in there]:
            raise MpsqError(
                f"the lane {name} names processor {missing[0]}, which this machine does not have",
                f"this process may use {lanes.listed(tuple(sorted(there)))}: mpsq config set lanes",
            )
    resolved = [Lane(name, lanes.cores(name)) for name in names if lanes.kind(name) == "cpu"]
    if requested := [name for name in names if lanes.kind(name) == "cuda" or name == lanes.AUTO]:
        places, why = _gpus(root, library)
        if requested == [lanes.AUTO]:
            requested = list(places)
            if not places:
                notes.append(f"lanes is auto, and there is no GPU to make a lane of ({why}): one run at a time")
        elif places and (gone := [name for name in requested if name not in places]):
            raise MpsqError(f"this machine has no {gone[0]}", f"it has {', '.join(places)}: mpsq config set lanes")
        others = {core for lane in resolved for core in lane.cores}
        divided = _divided({name: places.get(name, "") for name in requested}, root, others)
        if any(not cores for _, cores in divided):
            notes.append("too few processors are left to give each GPU its own: runs on GPUs may use all")
        resolved += [Lane(name, cores) for name, cores in divided]
    if not sys.platform.startswith("linux"):
        resolved = [Lane(lane.name) for lane in resolved]
        notes.append("this system binds no process to processors: the lanes share them all")
    return resolved, notes


def _here() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def gpus(library: Any = None) -> list[str]:
    """Return the UUIDs of the GPUs and MIG slices that this process may use, in the driver's order."""
    return [*_gpus(Path("/"), library)[0]]


def _gpus(root: Path, library: Any) -> tuple[dict[str, str], str]:
    """Return the PCI bus ids of the GPUs and MIG slices by UUID, and why there is none."""
    nvml = library or nvidia.library(root)
    if nvml is None:
        return {}, "nvidia-ml-py is not installed" if nvidia.is_missing(root) else "no NVIDIA driver"
    reader = nvidia.Nvml(nvml)
    places = reader.places()
    reader.close()
    return places, "NVML lists none"


def _divided(places: dict[str, str], root: Path, others: Collection[int]) -> list[tuple[str, tuple[int, ...]]]:
    """Return the processors of each GPU: an even share of those local to it that are not the `others`, as many for all.

    Whole cores are handed out, each once, to the GPU that has fewest so far: two threads of one core are one device.
    GPUs that have the same ones local get neighbouring cores: these are likelier to share a cache.
    """
    local = {name: [core for core in _local(place, root) if core not in others] for name, place in places.items()}
    shares: dict[str, list[tuple[int, ...]]] = {name: [] for name in local}
    for core in _whole_cores({one for cores in local.values() for one in cores}, root):
        if near := [name for name, cores in local.items() if {*core} & {*cores}]:
            fewest = min(near, key=lambda name: (sum(map(len, shares[name])), len(local[name])))
            shares[fewest].append(core)
    for name, cores in local.items():
        alike = [other for other, theirs in local.items() if theirs == cores]
        if name == alike[0]:
            pool = iter(sorted(core for other in alike for core in shares[other]))
            for other in alike:
                shares[other] = list(islice(pool, len(shares[other])))
    least = min((sum(map(len, cores)) for cores in shares.values()), default=0)
    return [(name, tuple(sorted([*chain(*cores)][:least]))) for name, cores in shares.items()]


def _whole_cores(processors: Collection[int], root: Path) -> list[tuple[int, ...]]:
    """Return the processors by core, as far as they are among these; each is one of its own if the kernel does not
    say."""
    cores: dict[int, tuple[int, ...]] = {}
    for processor in sorted(processors):
        threads: tuple[int, ...] = (processor,)
        with suppress(OSError, UsageError):
            path = root / f"sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list"
            threads = tuple(sorted({processor, *lanes.processors(path.read_text())} & {*processors}))
        cores.setdefault(threads[0], threads)
    return list(cores.values())


def _local(place: str, root: Path) -> tuple[int, ...]:
    """Return the processors local to a PCI device that this process may use; all of these if the kernel does not
    say."""
    domain, _, rest = place.lower().partition(":")
    there = _here()
    with suppress(OSError, UsageError):
        text = (root / "sys/bus/pci/devices" / f"{domain[-4:]}:{rest}" / "local_cpulist").read_text()
        return tuple(core for core in lanes.processors(text) if core in there) or tuple(sorted(there))
    return tuple(sorted(there))
