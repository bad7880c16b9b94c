"""--find-max: search for the largest working value of a setting, from the results of those tried. Pure functions.

The value is doubled until one does not fit, then the gap is halved until nothing lies between the largest that fits and
the smallest that does not (exponential and binary search: Bentley & Yao 1976). The probes are the entire state of
a search, so only the current run can be lost.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

from queue_runner import units
from queue_runner.errors import UsageError
from queue_runner.spec import JobSpec
from queue_runner.submit import grid

MOST = 1 << 30
"""Upper end of a search without a given one; no setting reaches it."""
MOST_GIVEN = 10**9
"""Exclusive limit of values that can be given: nine digits."""
MEMORY_SHARE = 0.9
"""Share of the memory that a probe may be predicted to need: beyond it the machine swaps, or the kernel's OOM killer
may end another program than the probe."""
_NUMBER = r"(\d{1,9})"
_SEARCH = re.compile(
    rf"([A-Za-z_]\w{{0,63}})(?:=(?=[\d:]){_NUMBER}?(?::{_NUMBER}(?::{_NUMBER})?|::{_NUMBER})?)?", re.ASCII
)


class SearchRange(Struct, frozen=True):
    """The argument of --find-max: the setting, the first value (None: that of the workload), the largest to try.

    Only multiples of `step` are tried: a width must be one of its heads.
    """

    key: str
    first: int | None = None
    last: int = MOST
    step: int = 1

    def __str__(self) -> str:
        last = "" if self.last == MOST else str(self.last)
        limit = f":{last}:{self.step}" if self.step > 1 else f":{last}" if last else ""
        span = f"{'' if self.first is None else self.first}{limit}"
        return f"{self.key}={span}" if span else self.key


def parse(text: str) -> SearchRange:
    """Read `batch_size`, `batch_size=8`, `batch_size=8:512` or `n_embd=384::6`. Raises: UsageError."""
    match = _SEARCH.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f'--find-max: "{text}" is not KEY, KEY=FIRST, KEY=FIRST:LAST or KEY=FIRST:LAST:STEP',
            "--find-max batch_size=8:512",
        )
    first, last, *steps = (int(word) if word else None for word in match.groups()[1:])
    step = next((word for word in steps if word is not None), None)
    params = SearchRange(match[1], first, MOST if last is None else last, 1 if step is None else step)
    if params.step == 0 or (first or 0) % params.step or params.step > params.last:
        raise UsageError(
            f"--find-max {text}: only multiples of {params.step} are tried",
            "FIRST must be a multiple of STEP; STEP is at least 1 and at most LAST",
        )
    if params.first == 0 or not 1 <= params.last <= MOST or (params.first or 1) > params.last:
        raise UsageError(f"--find-max {text}: the range is empty", "FIRST must be at least 1, and LAST at least FIRST")
    return params


class Probe(Struct, frozen=True):
    """A value that was tried. `fits` is None if its run does not tell: it waits, failed or was cancelled.

    `why` is its result in words. `used_bytes` is set only where the machine's memory is the limit: what the driver
    reserved on mps, else the memory of the process, unless it computed on another device.
    """

    value: int
    fits: bool | None
    why: str
    over: bool = True
    used_bytes: int | None = None


class Limit(Struct, frozen=True):
    """The memory that a probe may be predicted to need. `name` is how the state names it."""

    size_bytes: float
    name: str


def of_machine(memory_bytes: float | None) -> Limit | None:
    """Return the limit of a machine with that much memory; None if it is unknown."""
    if memory_bytes is None:
        return None
    share = f"{units.percent(MEMORY_SHARE, 2)} of the machine's {units.size(memory_bytes)}"
    return Limit(memory_bytes * MEMORY_SHARE, share)


def of_metal(recommended_bytes: float, ratio: float, memory_bytes: float | None) -> Limit | None:
    """Return the limit of a Mac's GPU: `ratio` times what Metal recommends, at most that of the machine."""
    machine, size_bytes = of_machine(memory_bytes), recommended_bytes * ratio
    if machine is not None and machine.size_bytes <= size_bytes:
        return machine
    times = "" if ratio == 1 else f"{ratio:g} times "
    return Limit(size_bytes, f"{times}the {units.size(recommended_bytes)} that Metal recommends")


class SearchState(Struct, frozen=True):
    """The state of a search. `following` is the next value to try; None when it has ended or waits for a probe.

    `largest` works, `too_large` does not; None if there is none yet. `stopped` is the probe that ended the
    search without an answer.
    """

    largest: int | None
    too_large: int | None
    following: int | None
    why_not: str = ""
    stopped: Probe | None = None

    def sentence(self, key: str) -> str:
        """Return the state in words."""
        works = f"{key} {units.count(self.largest)} works" if self.largest else f"no {key} has worked yet"
        so_far = f"{works} so far" if self.largest else works
        if self.stopped is not None:
            if not self.stopped.over:
                return f"{so_far}; {units.count(self.stopped.value)} is pending"
            return f"{works}; the search stopped at {units.count(self.stopped.value)}: {self.stopped.why}"
        if self.following is not None:
            return f"{so_far}; {units.count(self.following)} is next"
        if self.largest is None:
            return f"not even {key} {units.count(self.too_large)} works: {self.why_not}"
        if self.too_large is None:
            return f"{key} {units.count(self.largest)} works, and it is the largest allowed"
        largest, beyond = units.count(self.largest), units.count(self.too_large)
        return f"{key} {largest} is the largest that works; {beyond} does not: {self.why_not}"


def state(params: SearchRange, probes: Iterable[Probe], limit: Limit | None = None) -> SearchState:
    """Return the state after these probes, each value once. Without a limit nothing is predicted."""
    tried = sorted(probes, key=lambda probe: probe.value)
    fitting = [probe for probe in tried if probe.fits]
    largest = fitting[-1].value if fitting else None
    # A value below one that works is not too large, whatever its result: another program used the memory then.
    beyond = [probe for probe in tried if probe.fits is False and probe.value > (largest or 0)]
    too_large, why_not = (beyond[0].value, beyond[0].why) if beyond else (None, "")
    stopped = next((probe for probe in tried if probe.fits is None), None)
    following = None if stopped else _following(params, largest, too_large)
    if limit is None or following is None or largest is None:
        return SearchState(largest, too_large, following, why_not, stopped)
    known = [(probe.value, probe.used_bytes) for probe in fitting if probe.used_bytes]
    over = _first_over(known, limit.size_bytes)
    if over is not None and following >= over:
        too_large = max(math.ceil(over / params.step), largest // params.step + 1) * params.step
        why_not = f"it would need more than {limit.name}, judging by smaller values"
        following = _following(params, largest, too_large)
    elif len(known) == 1:
        value, used_bytes = known[0]
        most = min(value * limit.size_bytes / used_bytes, MOST)  # if memory is in proportion: one value claims no more
        following = min(following, max(int(most) // params.step, largest // params.step + 1) * params.step)
    return SearchState(largest, too_large, following, why_not, stopped)


def _following(params: SearchRange, largest: int | None, too_large: int | None) -> int | None:
    step = params.step
    if largest is None and too_large is None:
        return params.first or step
    if too_large is None:
        assert largest is not None
        last = params.last // step * step
        return min(2 * largest, last) if largest < last else None
    least = largest or 0
    middle = (least + too_large) // 2 // step * step
    return middle if middle > least else None


def _first_over(known: Sequence[tuple[int, int]], limit_bytes: float) -> int | None:
    """Return the first value predicted to exceed the limit, by a line through the two largest values; None if nothing
    tells."""
    if limit_bytes == math.inf or not known:
        return None
    b, at_b = known[-1]
    if at_b >= limit_bytes:
        return b + 1
    if len(known) < 2:
        return None
    a, at_a = known[-2]
    slope = (at_b - at_a) / (b - a)
    return int(b + (limit_bytes - at_b) / slope) + 1 if slope > 0 else None


def without(spec: JobSpec, key: str) -> str:
    """Return a hash of what the probes of a search have in common."""
    params = {name: value for name, value in spec.params.items() if name != key}
    return spec.changed(params=params, argv=spec.template or spec.argv).content_hash()


def with_value(spec: JobSpec, key: str, value: int) -> JobSpec:
    """Return the same job with another value of the setting."""
    argv = tuple(grid.fill(word, {key: str(value)}) for word in spec.template) or spec.argv
    typed = str(value) if spec.kind == "command" else value  # a command's settings are words
    return spec.changed(params={**spec.params, key: typed}, argv=argv)
