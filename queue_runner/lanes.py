"""Lanes: what runs beside what. A lane is a GPU (or MIG slice) by its UUID, or a set of processors, `cpu:0-3+8`.

A run of the lane "machine" runs alone. Several lanes that one run takes together are one name, joined by commas.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from queue_runner.errors import UsageError
from queue_runner.model import DEFAULT_LANE
from queue_runner.spec import JobSpec

SERIAL, AUTO = "serial", "auto"
REMOTE_GLOB = "*-g[0-9]*-??????"
"""How SQLite finds the lanes of other machines, NAME-gGROUP-HASH: no lane of this one has -g in its name."""
ELSEWHERE = f"state <> 'DONE' AND lane GLOB '{REMOTE_GLOB}'"
"""The condition of the index runs_elsewhere. SQLite uses the index only for a statement with the same text."""
_GPU = re.compile(r"(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_CPU = re.compile(r"cpu:\d{1,5}(-\d{1,5})?(\+\d{1,5}(-\d{1,5})?)*")
_REMOTE = re.compile(r"-g\d+-[0-9a-f]{6}$")
_HINT = (
    "mpsq config set lanes serial, auto (a lane for each GPU), UUIDs of nvidia-smi -L joined by commas,"
    " or processors: cpu:0-3,cpu:4-7"
)
_MOST_PROCESSORS = 4096


class Lane(Struct, frozen=True):
    """A lane of this machine, and its processors; () if these are not known."""

    name: str
    cores: tuple[int, ...] = ()

    @property
    def words(self) -> str:
        """Its processors, for a person."""
        return f"processors {listed(self.cores)}" if self.cores else "all processors"

    @property
    def units(self) -> list[str]:
        """Its GPUs and processors, each as `units` names it."""
        return units(self.name, self.cores)

    @property
    def kind(self) -> str:
        """The device that it has: "cpu" or "cuda"."""
        return kind(self.name)


def kind(name: str) -> str:
    """Return the device that a lane has: "cpu" or "cuda"; "" for the whole machine, or no lane."""
    return "" if name in ("", DEFAULT_LANE) else "cpu" if name.startswith("cpu:") else "cuda"


def is_remote(name: str) -> bool:
    """Return whether a lane belongs to another machine."""
    return _REMOTE.search(name) is not None


def target_of(name: str) -> str:
    """Return the target of --on whose lane this is."""
    return _REMOTE.sub("", name)


def parts(name: str) -> list[str]:
    """Return the lanes that one name joins."""
    return name.split(",")


def units(name: str, processors_of_it: Iterable[int] = ()) -> list[str]:
    """Return what a lane has, one by one: its GPUs, and each of its processors, `cpu:3`. Two lanes that have one of
    these in common exclude each other, whatever they are called. The whole machine is "machine".

    A GPU's name does not say its processors. Raises: UsageError.
    """
    named = {f"cpu:{core}" for part in parts(name) for core in cores(part)}
    devices = {part for part in parts(name) if kind(part) != "cpu"}
    return sorted(devices | named | {f"cpu:{core}" for core in processors_of_it})


def short(name: str) -> str:
    """Return a name for tables: GPU-5c1a7b9e for GPU-5c1a7b9e-....; others in full."""
    return ",".join(part[:12] if kind(part) == "cuda" else part for part in parts(name))


def parse(text: str) -> tuple[str, ...]:
    """Return the lanes that the setting names, () for "serial", ("auto",) for "auto".

    Raises: UsageError for anything else, a lane named twice, and processors in two lanes or of unequal number.
    """
    text = text.strip()
    if text in (SERIAL, "1", ""):
        return ()
    if text == AUTO:
        return (AUTO,)
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if not _GPU.fullmatch(name) and not _CPU.fullmatch(name):
            raise UsageError(f'invalid lane "{name}"', _HINT)
        if names.count(name) > 1:
            raise UsageError(f"the setting lanes lists {name} twice", _HINT)
    sets = [cores(name) for name in names if kind(name) == "cpu"]
    if len({core for found in sets for core in found}) < sum(map(len, sets)):
        raise UsageError("two lanes have a processor in common", "give each lane its own: cpu:0-3,cpu:4-7")
    if len(set(map(len, sets))) > 1:
        raise UsageError(
            "the CPU lanes have different numbers of processors",
            "give each lane the same number: a job may run on any lane, and its times must be comparable",
        )
    return tuple(names)


def cores(name: str) -> tuple[int, ...]:
    """Return the processors that the name of a lane contains: (0, 1, 2, 3) for cpu:0-3. Raises: UsageError."""
    return processors(name.removeprefix("cpu:").replace("+", ",")) if kind(name) == "cpu" else ()


def processors(text: str) -> tuple[int, ...]:
    """Return the numbers of a list as the kernel writes it, "0-3,8". Raises: UsageError."""
    processors: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        if not first.isdigit() or not (last or first).isdigit() or int(last or first) >= _MOST_PROCESSORS:
            raise UsageError(f'invalid processor list "{text.strip()}"', "write 0-3 or 0,2,4")
        processors |= set(range(int(first), int(last or first) + 1))
    if not processors:
        raise UsageError(f'invalid processor list "{text.strip()}"', "write 0-3 or 0,2,4")
    return tuple(sorted(processors))


def listed(numbers: tuple[int, ...]) -> str:
    """Return processors as the kernel writes them: "0-3,8"."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in spans)


def needs(spec: JobSpec) -> str:
    """Return the kind of lane that a job runs on: "cpu" or "cuda"; "" for one that needs the machine alone.

    A job that does not name its device may use any; one that names a GPU itself (cuda:1, CUDA_VISIBLE_DEVICES) may use
    another lane's; MPS has no lanes.
    """
    if spec.device == "cpu":
        return "cpu"
    return "cuda" if spec.device in ("cuda", "cuda:0") and "CUDA_VISIBLE_DEVICES" not in spec.env else ""


def fits(spec: JobSpec, name: str) -> bool:
    """Return whether a job runs on this lane, or on all of these together."""
    return kind(name) != "" and needs(spec) == kind(name) and len(parts(name)) == spec.gpus


def placed(spec: JobSpec, lane: Lane) -> JobSpec:
    """Return a job as it runs on the lane: on its processors, with a thread for each. One that does not fit runs alone,
    and is returned as it is.

    A number of threads that the job's environment has is the user's, and kept.
    """
    if not fits(spec, lane.name):
        return spec
    omp_threads = spec.env.get("OMP_NUM_THREADS", "")
    threads = int(omp_threads) if omp_threads.isdecimal() and len(omp_threads) < 6 else len(lane.cores) // spec.gpus
    return replace(
        spec,
        lane=lane.name,
        affinity=listed(lane.cores),
        cores=len(lane.cores),
        threads=threads if lane.cores else 0,
    )


def without_lane(spec: JobSpec) -> JobSpec:
    """Return a job as it was before it was `placed`."""
    return spec.changed(lane="", affinity="", cores=0, threads=0)
