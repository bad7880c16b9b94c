"""First probe of each search requested by --find-max, and its starting value."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from queue_runner.errors import UsageError
from queue_runner.spec import JobSpec, Value
from queue_runner.submit import grid
from queue_runner.submit.find_max.search import MOST, MOST_GIVEN, SearchRange, parse, with_value
from queue_runner.workloads import catalog, mps_switches
from queue_runner.workloads.manifest import Param, Workload

BRIEF: Mapping[str, Value] = {"max_iters": 10, "warmup_iters": 2, "eval_interval": 0}
"""Defaults of a workload's settings for probes: memory peaks in the second iteration, when the optimizer state exists,
and seven measured iterations give the speed of that size."""


def settings(
    workload: Workload, sets: Mapping[str, Sequence[Value]], search: SearchRange
) -> dict[str, Sequence[Value]]:
    """Return the settings of every probe of a workload except the one searched for.

    Raises: UsageError if the latter is unknown, not a whole number, or also swept.
    """
    param = catalog.named(workload, search.key)
    if type(param.default) is not int or param.choices:
        what = "takes only a few values" if param.choices else "is not a whole number"
        example = "batch_size" if "batch_size" in workload.params else "KEY"
        raise UsageError(f"--find-max: {search.key} {what}", f"for example --find-max {example}")
    params = {key: param for key, param in workload.params.items() if key != search.key}
    brief = {key: [value] for key, value in BRIEF.items() if key in params and not params[key].wrong(value)}
    return {**brief, **{key: values for key, values in sets.items() if key != search.key}}


def of_workload(workload: Workload, spec: JobSpec, search: SearchRange, given: Sequence[Value]) -> JobSpec:
    """Return a cell as the first probe of its search, at the value given, else at that of its preset. The search ends
    at the largest value the workload accepts. Raises: UsageError if the first or last value is not accepted."""
    param = workload.params[search.key]
    search = _in_steps(workload, spec, search)
    for value in (search.first, None if search.last == MOST else search.last):
        if value is not None:
            catalog.refuse(param, value)
    preset = workload.configs.get(spec.config or "", {}).get(search.key, param.default)
    return _first(spec, replace(search, last=min(search.last, _most(param))), _begin(search, given, preset))


def _in_steps(workload: Workload, spec: JobSpec, search: SearchRange) -> SearchRange:
    """Return the search with its step a multiple of the setting that must divide the one searched for, in this cell."""
    if (divisor := workload.params[search.key].multiple_of) is None:
        return search
    preset = workload.configs.get(spec.config or "", {})
    value = spec.params.get(divisor, preset.get(divisor, workload.params[divisor].default))
    search = replace(search, step=math.lcm(search.step, int(value or 1)))
    return parse(str(search))  # which refuses a range without a multiple


def _most(param: Param) -> int:
    """Return the largest whole number that a parameter accepts, MOST if --find-max could not express it."""
    limits = param.limits
    largest = min(limits.get("most", MOST), math.ceil(limits.get("below", MOST)) - 1)
    return math.floor(largest) if largest < MOST_GIVEN else MOST


def of_command(spec: JobSpec, search: SearchRange, given: Sequence[Value]) -> JobSpec:
    """Return a command as first probe, with {KEY} as placeholder of the value. Raises: UsageError without {KEY}."""
    if not any(grid.uses(word, search.key) for word in spec.argv):
        raise UsageError(
            f"--find-max {search.key}: the command does not use {{{search.key}}}",
            f"write {{{search.key}}} where the value belongs: -- python train.py --{search.key}={{{search.key}}}",
        )
    return _first(spec.changed(template=spec.argv), search, _begin(search, given, 1))


def within_metal(spec: JobSpec, search: SearchRange) -> JobSpec:
    """Return a probe on mps with torch's memory limited to what Metal recommends: by default torch takes 1.7 times as
    much, which macOS serves from swap. Unchanged if the search has a range, or the environment a limit of its own."""
    on_mps = spec.device == "mps" or (spec.device in ("auto", None) and sys.platform == "darwin")
    limited = mps_switches.memory_ratio(spec.env) is not None
    if not on_mps or limited or search.last != MOST or spec.framework not in (None, "torch"):
        return spec
    mps = {**spec.mps, **mps_switches.parse("high_watermark=1.0")}
    return spec.changed(mps=mps, env=mps_switches.environment(mps, spec.env))


def _begin(search: SearchRange, given: Sequence[Value], otherwise: Value | None) -> int:
    if len(given) > 1 or (given and search.first is not None):
        raise UsageError(
            f"--find-max chooses {search.key}, so --set {search.key} cannot",
            f"leave out --set {search.key}; --find-max {search.key}=8:512 searches from 8 to 512",
        )
    try:
        begin = int(search.first or (given[0] if given else otherwise) or 1)
    except ValueError as error:
        raise UsageError(
            f"--set {search.key}={given[0]} is not a whole number", "--find-max starts there: give one whole number"
        ) from error
    return max(1, begin)


def _first(spec: JobSpec, search: SearchRange, begin: int) -> JobSpec:
    begin = min(begin, search.last)
    return with_value(spec, search.key, begin).changed(find_max=str(replace(search, first=begin)))
