"""Arms, the runs of the same spec: which of them are used, their combined numbers, their label. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from statistics import stdev
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from queue_runner.analysis import stats
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.model import Outcome, State
from queue_runner.spec import mode_word

SUBJECT = ("machine", "subject", "config")
"""Factors that compared arms share: runs of two machines are never compared."""
MAIN = ("device", "compile", "dtype", "framework", "gpus")
"""Factors that distinguish arms and are named first."""
PLACE = MAIN[:2]
"""Factors that a label has even if all arms share them."""
LOG = "log"
"""Factor of an imported log without a stated device: its name. Two of them are one row only where the user asks for
it, by their settings or by --group-by."""
NAMES = SUBJECT[1:]
"""Factors of SUBJECT by which one submission, or a baseline of the user's, may let arms differ."""
WORK = ("token", "sample")
"""Units of the work of an iteration. Time per token is never compared with time per sample."""
_BARE = frozenset(
    {"arguments", "subject", "config", "device", "dtype", "framework", "device_name", "optimizer", "data_name", LOG}
)
"""Factors shown by their value alone."""


def value_of(row: ReportedRun, name: str) -> Any:
    """Return the setting or version of that name, or else a column of v_run."""
    return row.factors[name] if name in row.factors else getattr(row, name, None)


def word(name: str, value: Any) -> str:
    """Return a factor as text: "eager", "mps", "max_iters=20"."""
    if name == "compile":
        return mode_word(value)
    if name == "gpus":
        return f"{value} GPUs" if value is not None and value > 1 else ""
    if name == "resumed":
        return "resumed" if value else ""
    if name in _BARE:
        return "" if value is None else str(value)
    return f"{name}={'unset' if value is None else value}"


def factor_name(name: str, arms: Iterable[Arm]) -> str:
    """Return the name of a factor in words; that of a setting, variable or version of one of these arms as users type
    it."""
    if any(name in row.factors or name in row.settings for arm in arms for row in arm.runs):
        return name
    return {"subject": "workload", "compile": "mode"}.get(name, name.replace("_", " "))


def is_mode(part: str) -> bool:
    """Return whether a word of a label is that of a mode."""
    return part in ("eager", "compiled") or part.startswith("compiled(")


class Arm(Struct, frozen=True, eq=False, dict=True):
    """Runs of the same spec. Numbers describe the `used` runs: the successful and valid ones, or all with --all."""

    key: Mapping[str, Any]
    runs: Sequence[ReportedRun]
    used: Sequence[ReportedRun]
    label: str = ""

    @cached_property
    def ended(self) -> list[ReportedRun]:
        return [row for row in self.runs if row.state == State.DONE]

    @cached_property
    def n_ended(self) -> int:
        """Number of repeats of which a run has ended: an attempt that was repeated does not count again."""
        return len(last_attempts(self.ended))

    @cached_property
    def n_valid(self) -> int:
        """Number of used runs that are valid: --all uses others, too."""
        return sum(_is_used(row, False) for row in self.used)

    @cached_property
    def n_machines(self) -> int:
        """Number of machines on which its used runs ran."""
        return len({machine_of(row) for row in self.used})

    @cached_property
    def left_out(self) -> list[ReportedRun]:
        """Runs that ended and are not used."""
        ids = {row.run_id for row in self.used}
        return [row for row in self.ended if row.run_id not in ids]

    @cached_property
    def shown(self) -> Sequence[ReportedRun]:
        """Runs whose numbers are shown: the used ones; if none, the invalid ones, which are never compared."""
        return self.used or [row for row in self.left_out if row.outcome == Outcome.SUCCEEDED]

    @cached_property
    def times(self) -> list[float]:
        """Median seconds per iteration of each used run: the values compared."""
        return [row.median_s for row in self.timed if row.median_s is not None]

    @cached_property
    def timed(self) -> list[ReportedRun]:
        """The used runs that have a time."""
        return [row for row in self.used if 0 < (row.median_s or 0) < math.inf]

    @cached_property
    def is_unmeasured(self) -> bool:
        """Whether its used runs reported iterations, and none that counts: all were warm-up, or outside of --iters."""
        return not self.timed and any(row.n_iters and not row.n_measure for row in self.used)

    @cached_property
    def median_s(self) -> float | None:
        """The geometric mean of the run medians, seconds: ratios of arms compare these."""
        times = [row.median_s for row in self.shown if row.median_s is not None]
        return stats.geometric_mean(times) if times and min(times) > 0 else self.median("median_s")

    @cached_property
    def spread_s(self) -> tuple[float | None, str | None]:
        return spread_s(self.shown)

    def work(self, unit: str) -> float | None:
        """Return the tokens or samples per iteration; `unit` is one of WORK."""
        return self.median(f"{unit}s_per_iter")

    def rate(self, unit: str) -> float | None:
        """Return the tokens or samples per second, at the geometric mean of the runs' times."""
        pairs = ((row.median_s or 0.0, row.work(unit)) for row in self.shown)
        times = [time_s / work for time_s, work in pairs if time_s > 0 and work]
        return 1 / stats.geometric_mean(times) if times else None

    def median(self, name: str) -> float | None:
        """Return the median of a column over the shown runs; None if no run has it."""
        return middle(self.shown, name)

    @cached_property
    def main_cache(self) -> str | None:
        """The state of the compiler's cache to report first: cold if any run was cold, None if unknown."""
        states = {row.compile_cache for row in self.shown if row.compile_cache is not None}
        return "cold" if "cold" in states else min(states, default=None)

    def first_iter_s(self, cache: str | None) -> float | None:
        """Return the seconds of the first iteration over the runs that started with the compiler's `cache` in that
        state: a median of cold and warm starts would describe neither."""
        return middle((row for row in self.shown if row.compile_cache == cache), "first_iter_s")

    def compile_cost_s(self, twin: Arm | None, cache: str | None) -> float | None:
        """Return the cost of compilation in seconds: the excess of the first iteration over the median, minus that of
        the eager twin; over the runs that started with the compiler's `cache` in that state. None where the state is
        unknown: a mixture of cold and warm starts has no cost."""
        runs = [row for row in self.shown if cache is not None and row.compile_cache == cache]
        ours = middle(runs, "first_iter_excess_s")
        theirs = twin.median("first_iter_excess_s") if twin is not None else None
        return None if ours is None or theirs is None else ours - theirs

    def break_even_iters(self, twin: Arm | None, cost_s: float | None) -> float | None:
        """Return the number of iterations after which compilation pays off; None if never."""
        if twin is None or not cost_s or self.median_s is None or twin.median_s is None:
            return None
        gain_s = twin.median_s - self.median_s
        return cost_s / gain_s if gain_s > 0 and cost_s > 0 else None


def middle(rows: Iterable[ReportedRun], name: str) -> float | None:
    """Return the median of a column; None if no row has it, nan if one is nan, which has no order."""
    values: list[float] = [value for row in rows if (value := getattr(row, name)) is not None]
    if len(values) < 2:
        return values[0] if values else None
    if any(value != value for value in values):
        return math.nan
    return stats.median(values)


def spread_s(rows: Sequence[ReportedRun]) -> tuple[float | None, str | None]:
    """Return the spread that belongs to `median_s`. Over several runs ("runs") this is the standard deviation of the
    logarithms, as seconds; of a single run it is the MAD over its iterations ("iterations")."""
    medians = [row.median_s for row in rows if row.median_s is not None]
    if len(medians) > 1:
        positive = min(medians) > 0
        deviation = stdev(map(math.log, medians)) * stats.geometric_mean(medians) if positive else stdev(medians)
        return deviation, "runs"
    several = (middle(rows, "n_measure") or 0) > 1
    return (middle(rows, "mad_s"), "iterations") if medians and several else (None, None)


def taints(row: ReportedRun) -> list[str]:
    """Return the kinds of taint of a run."""
    return row.taints.split(",") if row.taints else []


def kinds_of_taint(rows: Iterable[ReportedRun]) -> list[str]:
    """Return the kinds of taint that any of the runs has, sorted."""
    return sorted({kind for row in rows for kind in taints(row)})


def round_of(row: ReportedRun) -> tuple[Any, int] | None:
    """Return the round in which the run was planned: its submission, and which repeat of its job it is; None for rows
    without one, such as imported logs."""
    group_id, repeat = row.group_id, row.repeat
    return None if group_id is None or repeat is None or row.kind == "import" else (group_id, repeat)


def seed_of(row: ReportedRun) -> int | None:
    """Return the seed that the run reported, else what stands for it: the repeat, where each has another seed."""
    return row.repeat if row.seed is None and row.seed_by_round else row.seed


def seeds_in_common(first: Iterable[ReportedRun], second: Iterable[ReportedRun]) -> set[int | None]:
    """Return the seeds that runs of both have; those of all where none is shared."""
    seeds = {*map(seed_of, first)}, {*map(seed_of, second)}
    return seeds[0] & seeds[1] or seeds[0] | seeds[1]


def machine_of(row: ReportedRun) -> str | None:
    """Return the machine that a run was on; its column `machine` names the first machine of that kind."""
    return row.machine_hash or row.machine


def group(rows: Iterable[ReportedRun], names: Sequence[str], include_invalid: bool = False) -> list[Arm]:
    """Group runs into arms, keyed by SUBJECT and `names`.

    A run without numbers joins the other runs of its spec and name, because it did not report its device and versions.
    Two names may share a spec: one command in two folders.
    """
    names = [*SUBJECT, *(name for name in names if name not in SUBJECT)]
    members: dict[tuple[Any, ...], list[ReportedRun]] = {}
    place: dict[Any, tuple[Any, ...]] = {}
    for row in sorted(rows, key=lambda row: (row.median_s is None, row.run_id)):
        key = tuple(value_of(row, name) for name in names)
        spec = row.spec_hash, row.name
        if row.median_s is None:
            key = place.get(spec, key)
        place.setdefault(spec, key)
        members.setdefault(key, []).append(row)
    arms = []
    for key, rows_of_arm in members.items():
        runs = not_replaced(rows_of_arm)
        used = [row for row in runs if _is_used(row, include_invalid)]
        arms.append(Arm(dict(zip(names, key, strict=True)), runs, used))
    return arms


def last_attempts(rows: Iterable[ReportedRun]) -> list[ReportedRun]:
    """Return the newest run of each repeat: a repeat and its retries count once."""
    return [*{_repeat_of(row): row for row in sorted(rows, key=lambda row: row.run_id)}.values()]


def without_used(rows: Iterable[ReportedRun], used: Collection[int]) -> list[ReportedRun]:
    """Return the newest run of each repeat of which no run is `used`, given as run_ids."""
    rows = [*rows]
    counted = {_repeat_of(row) for row in rows if row.run_id in used}
    return [row for row in last_attempts(rows) if _repeat_of(row) not in counted]


def _repeat_of(row: ReportedRun) -> tuple[int, int]:
    return row.job_id, row.run_id if row.repeat is None else row.repeat


def not_replaced(rows: Iterable[ReportedRun]) -> list[ReportedRun]:
    """Return the runs in order, without the valid ones that a retry has replaced: of those of one repeat on one machine
    the newest counts."""
    runs = sorted(rows, key=lambda row: row.run_id)
    attempts = [_is_used(row, False) and (row.job_id, row.repeat or row.run, machine_of(row)) for row in runs]
    newest = {attempt: row.run_id for attempt, row in zip(attempts, runs, strict=True)}
    return [row for attempt, row in zip(attempts, runs, strict=True) if not attempt or newest[attempt] == row.run_id]


def _is_used(row: ReportedRun, include_invalid: bool) -> bool:
    succeeded = row.outcome == Outcome.SUCCEEDED
    return bool(succeeded or row.median_s is not None) if include_invalid else bool(succeeded and row.valid)


_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_WORDS = re.compile(r"(\D*)(\d*)", re.ASCII)


def order(arm: Arm) -> tuple[Any, ...]:
    """Return a sort key: the CPU first, eager before compiled, fp32 before other dtypes, then by the rest."""
    key = arm.key
    device = str(key.get("device"))
    rest = [_place(value) for value in key.values()]
    reduced = key.get("dtype") not in ("fp32", None)
    return device != "cpu", device, bool(key.get("compile")), reduced, rest


@lru_cache(1024)  # rows share most of their values
def _place(value: Any) -> tuple[int, float, list[tuple[str, int]]]:
    """Return a sort key of a value: numbers first, those in a text by their size, so that bs=8 stands before bs=16."""
    text = str(value)
    if isinstance(value, int | float) or _NUMBER.fullmatch(text):
        return 0, value if isinstance(value, int | float) else float(text), []
    return 1, 0.0, [(word, int(digits or 0)) for word, digits in _WORDS.findall(text)]


def labelled(arms: Sequence[Arm], common: Mapping[str, Any], short: bool = False) -> list[Arm]:
    """Label arms by device and mode, by other factors of MAIN that differ, and by further ones where labels clash.

    With `short`, arms that share device and mode and differ in something else are labelled without them."""
    names = [name for name in arms[0].key if name not in common]
    differ = {name for name in names if len({arm.key[name] for arm in arms}) > 1}
    if short and "subject" in differ:  # the name, and what tells rows of one name apart
        shown = ["subject"]
    else:
        always = () if short and differ and not differ & {*PLACE} else PLACE
        telling = {*MAIN, *(NAMES if short else ())} & differ
        shown = [name for name in names if name in always or name in telling]
    for name in names:
        if name in differ and name not in shown and _splits(arms, shown, name):
            shown.append(name)
    for unset in (False, True):  # an unset setting is named only where labels clash
        named = [[word(name, arm.key[name]) for name in shown if unset or arm.key[name] is not None] for arm in arms]
        labels = [" ".join(filter(None, words)) for words in named]
        if len({*labels}) == len(labels) and (all(labels) or not short):
            break
    return [replace(arm, label=label or str(arm.key["subject"])) for arm, label in zip(arms, labels, strict=True)]


def _splits(arms: Sequence[Arm], shown: Sequence[str], name: str) -> bool:
    """Return whether arms with the same `shown` factors differ in `name`."""
    values: dict[tuple[Any, ...], Any] = {}
    alike = [(tuple(arm.key[other] for other in shown), arm.key[name]) for arm in arms]
    return any(values.setdefault(key, value) != value for key, value in alike)
