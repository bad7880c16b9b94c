"""`mpsq bench --neighbours`: rounds of a run alone and the same beside another lane's (docs/decisions/neighbours.md).

Of each cell three jobs are made, or more with more lanes. The first has the machine to itself, on the processors and
the GPU of the first lane. The second runs on that lane as any run does, while the third, the same on the next lane
without an end of its own, is being measured; the worker ends that one when the second has ended.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from queue_runner import config, lanes
from queue_runner.errors import UsageError
from queue_runner.host import lane_list
from queue_runner.lanes import Lane
from queue_runner.model import Condition
from queue_runner.paths import Layout, jobs_dir, layout
from queue_runner.spec import ALONE, NEIGHBOUR, JobSpec, NewJob
from queue_runner.submit.options import Said
from queue_runner.submit.plan import Plan, Sibling
from queue_runner.workloads import catalog

REPEATS = 8
"""Rounds: one pair is compared round by round from 6 on, and 8 leave room for a round or two that are left out."""
_REFUSED = {
    "find_max": "a search has no repeats to compare",
    "on": "lanes are of this machine",
    "until_valid": "a round that is added later has no neighbour",
    "after": "its jobs wait for each other already",
}
_ENDLESS = {"max_iters": 1_000_000, "eval_interval": 0, "checkpoint_interval": 0}
"""Settings of a neighbour, as far as the workload takes them: it measures until it is ended."""


def lanes_here(of: Layout) -> list[Lane]:
    """Return the lanes of this machine, as set. Raises: UsageError where there are fewer than two of one kind."""
    found, told = lane_list.resolve(config.load(of.config).lanes)
    first = [lane for lane in found if lane.kind == found[0].kind]
    if len(first) < 2:
        why = f" ({told[0]})" if told else ""
        raise UsageError(
            f"--neighbours compares lanes, and this machine has {len(first) or 'none'}{why}",
            "mpsq config set lanes auto, or of the CPU: mpsq config set lanes cpu:0-3,cpu:4-7",
        )
    return first


def preset(said: Said, here: Sequence[Lane]) -> dict[str, Any]:
    """Return the options given, completed: the lanes' device, eager, REPEATS rounds.

    Raises: UsageError for no workload, and for options that a comparison with neighbours cannot have.
    """
    if not said.get("workload") or said.get("command"):
        raise UsageError("bench takes a workload", "mpsq workloads lists them")
    for name, why in _REFUSED.items():
        if said.get(name):
            raise UsageError(f"--neighbours and --{name.replace('_', '-')}: {why}", "give one of them")
    device = said.get("device", here[0].kind)
    if device != here[0].kind:
        raise UsageError(f"--device {device}: the lanes are of {here[0].kind}", f"--device {here[0].kind}, or none")
    return {"repeats": REPEATS, "compile": "off", **said, "device": device, "preflight": False, "until_valid": False}


def paired(planned: Plan, here: Sequence[Lane]) -> Plan:
    """Return the plan with three jobs or more for each of its own: alone, beside, and a neighbour on each other lane.

    Raises: UsageError for a workload that does not count its iterations, and a job that has no lane.
    """
    made: list[NewJob] = []
    after: list[tuple[Sibling, ...]] = []
    for job in planned.jobs:
        spec = lanes.placed(job.spec, here[0])
        if spec.lane != here[0].name:
            raise UsageError(
                f"{spec.name} does not run on the lane {here[0].name}: it takes several GPUs, or names one itself",
                "leave out CUDA_VISIBLE_DEVICES and --gpus",
            )
        first = len(made) + 2
        neighbours = [lanes.placed(endless(job.spec), lane) for lane in here[1:]]
        ours = spec.changed(pairing=ALONE), spec.changed(gate=False)
        made += [replace(job, spec=one) for one in (*ours, *neighbours)]
        waits = tuple(Sibling(index, Condition.WHILE) for index in range(first, len(made)))
        after += [(), waits, *(() for _ in neighbours)]
    order = _rounds(len(planned.jobs), len(here) + 1, planned.jobs[0].repeats, planned.seed)
    return replace(planned, jobs=tuple(made), order=tuple(order), own_after=tuple(after))


def endless(spec: JobSpec) -> JobSpec:
    """Return a cell as a neighbour runs it. Raises: UsageError for a workload that does not count its iterations."""
    workload = catalog.find(jobs_dir(), str(spec.workload), spec.framework, own=layout().workloads)
    known = workload.params
    if "max_iters" not in known:
        raise UsageError(
            f"{workload.name} does not count its iterations, so that nothing can run beside it throughout",
            "--neighbours takes a workload with max_iters, such as nanogpt",
        )
    params = {name: value for name, value in _ENDLESS.items() if name in known and not known[name].wrong(value)}
    return spec.changed(pairing=NEIGHBOUR, params={**spec.params, **params})


def _rounds(cells: int, each: int, repeats: int, seed: int) -> list[tuple[int, int]]:
    """Return (job, repeat from 1) for every run: in each round all cells alone and beside, in a seeded order.
    Neighbours come right before the run that they are beside."""
    generator = random.Random(seed)
    order: list[tuple[int, int]] = []
    for repeat in range(1, repeats + 1):
        turns = [(cell, alone) for cell in range(cells) for alone in (True, False)]
        generator.shuffle(turns)
        for cell, alone in turns:
            first = cell * each
            jobs = [first] if alone else [*range(first + 2, first + each), first + 1]
            order += [(job, repeat) for job in jobs]
    return order
