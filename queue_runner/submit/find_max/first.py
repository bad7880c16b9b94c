"""The first probe of each search that --find-max asks for, and where it begins."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from queue_runner.errors import UsageError
from queue_runner.spec import JobSpec, Value
from queue_runner.submit.find_max.search import MOST, MOST_SAID, Asked, with_value
from queue_runner.workloads import catalog
from queue_runner.workloads.manifest import Param, Workload

BRIEF: Mapping[str, Value] = {"max_iters": 10, "warmup_iters": 2, "eval_interval": 0}
"""A workload's settings where --set does not name them: memory is at its highest in the second iteration, when the
optimizer's state is there, and seven measured ones tell how fast that size is."""


def settings(workload: Workload, sets: Mapping[str, Sequence[Value]], asked: Asked) -> dict[str, Sequence[Value]]:
    """The settings of every probe of a workload, but the one that is looked for.

    Raises: UsageError for a setting that there is not, that is no whole number, or that is swept besides.
    """
    param = catalog.named(workload, asked.key)
    if type(param.default) is not int or param.choices:
        what = "takes but a few values" if param.choices else "is no whole number"
        raise UsageError(f"--find-max {asked.key}: that {what}", f"for example --find-max {_example(workload)}")
    params = {key: param for key, param in workload.params.items() if key != asked.key}
    brief = {key: [value] for key, value in BRIEF.items() if key in params and not params[key].wrong(value)}
    return {**brief, **{key: values for key, values in sets.items() if key != asked.key}}


def _example(workload: Workload) -> str:
    return "batch_size" if "batch_size" in workload.params else "KEY"


def of_workload(workload: Workload, spec: JobSpec, asked: Asked, said: Sequence[Value]) -> JobSpec:
    """A cell as the first probe of its search, at the value that was said, else at that of its preset. It ends at the
    most that the workload takes. Raises: UsageError where the first or the last value is none that it takes."""
    param = workload.params[asked.key]
    for value in (asked.first, None if asked.last == MOST else asked.last):
        if value is not None:
            catalog.refuse(param, value)
    preset = workload.configs.get(spec.config or "", {}).get(asked.key, param.default)
    return _first(spec, replace(asked, last=min(asked.last, _most(param))), _begin(asked, said, preset))


def _most(param: Param) -> int:
    """The largest whole number that a parameter takes, MOST where --find-max could not say it."""
    limits = param.limits
    largest = min(limits.get("most", MOST), math.ceil(limits.get("below", MOST)) - 1)
    return math.floor(largest) if largest < MOST_SAID else MOST


def of_command(spec: JobSpec, asked: Asked, said: Sequence[Value]) -> JobSpec:
    """The same of a command, in which {KEY} stands for the value. Raises: UsageError where it does not."""
    if not any("{" + asked.key + "}" in word for word in spec.argv):
        raise UsageError(
            f"--find-max {asked.key}: the command does not use {{{asked.key}}}",
            f"write {{{asked.key}}} where the value belongs: -- python train.py --{asked.key}={{{asked.key}}}",
        )
    return _first(replace(spec, template=spec.argv), asked, _begin(asked, said, 1))


def _begin(asked: Asked, said: Sequence[Value], otherwise: Value | None) -> int:
    if len(said) > 1 or (said and asked.first is not None):
        raise UsageError(
            f"--set {asked.key} is what --find-max looks for",
            f"--find-max {asked.key}=8 begins at 8, =8:512 ends at 512",
        )
    try:
        begin = int(asked.first or (said[0] if said else otherwise) or 1)
    except ValueError as error:
        raise UsageError(f"--set {asked.key}={said[0]} is no whole number", "--find-max begins at one") from error
    return max(1, begin)


def _first(spec: JobSpec, asked: Asked, begin: int) -> JobSpec:
    begin = min(begin, asked.last)
    return replace(with_value(spec, asked.key, begin), find_max=str(replace(asked, first=begin)))
