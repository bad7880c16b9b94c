"""Comparison of arms: baselines, eager twins, ratios and verdicts. Pure.

A family is a set of arms that may be compared: same machine, workload, config and settings. Ratios are of run medians;
a verdict needs several runs on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from queue_runner.analysis.grouping import SUBJECT, WORK, Arm, Row, group, labelled, middle, order
from queue_runner.errors import UsageError

if TYPE_CHECKING:
    from queue_runner.analysis.significance import Verdict

MOST_SPLITS = 13_000
"""Maximum number of permutations for all verdicts of a report together, about 25 ms; see `fold`."""
UNSET = "unset"
"""The value in labels and for --vs of a setting that an arm does not have."""
FEWEST_BATCHES = 6
"""Minimum number of values into which the smaller arm is folded: with 6 and 6 the smallest p-value is 0.002."""


@dataclass(frozen=True)
class Question:
    """How to compare: the names that distinguish arms, those fixed within a family, the baseline."""

    names: Sequence[str]
    settings: Sequence[str] = ()
    vs: Mapping[str, Any] = field(default_factory=dict)
    include_invalid: bool = False


@dataclass(frozen=True)
class Pair:
    """An arm, its baseline and the verdict, which is corrected for all pairs of the family."""

    arm: Arm
    baseline: Arm
    verdict: Verdict

    @property
    def ratio(self) -> float:
        """Speedup over the baseline: above 1 the arm takes less time."""
        return self.verdict.speedup


@dataclass(frozen=True, eq=False)
class Family:
    """Comparable arms and their comparison. `per_work` is "token" or "sample" if ratios are of the time per token or
    sample, "" if they are of the time per iteration."""

    common: Mapping[str, Any]
    arms: Sequence[Arm]
    baseline: Arm | None = None
    why: str = ""
    pairs: Sequence[Pair] = ()
    twins: Sequence[Pair] = ()
    per_work: str = ""

    @property
    def shown(self) -> list[Row]:
        """Runs whose numbers are shown."""
        return [row for arm in self.arms for row in arm.shown]

    def pair(self, arm: Arm) -> Pair | None:
        """Return the pair of the arm and the baseline; None for the baseline, or if there is nothing to compare."""
        return next((pair for pair in self.pairs if pair.arm is arm), None)

    def twin(self, arm: Arm) -> Arm | None:
        """Return the eager twin of a compiled arm: the same without compilation; None if there is none."""
        if not arm.key.get("compile"):
            return None
        wanted = {**arm.key, "compile": 0}
        return next((other for other in self.arms if other.key == wanted), None)


def compare(rows: Iterable[Row], question: Question) -> list[Family]:
    """Group runs into arms and families; judge each arm against its family's baseline and its eager twin.

    Raises: UsageError when the requested baseline matches no arm, or several of a family.
    """
    found = _with_baselines(families(rows, question), question.vs)
    return [_judged(family, MOST_SPLITS // len(found)) for family in found]


def families(rows: Iterable[Row], question: Question) -> list[Family]:
    """Group runs into arms and arms into families, sorted and labelled, but not yet compared.

    Arms of two workloads are compared only if they do the same work and the baseline names a workload: nanogpt and the
    same model under another trainer.
    """
    across = "subject" in question.vs
    fixed = [name for name in SUBJECT if not (across and name == "subject")]
    fixed += [name for name in question.settings if name not in question.vs]
    found: dict[tuple[Any, ...], list[Arm]] = {}
    for arm in group(rows, question.names, question.include_invalid):
        work = (arm.median("flops_per_iter"), *map(arm.work, WORK)) if across else ()
        found.setdefault((*(arm.key.get(name) for name in fixed), *work), []).append(arm)
    made = []
    for key in sorted(found, key=lambda key: [(value is not None, str(value)) for value in key]):
        common = dict(zip(fixed, key, strict=False))
        made.append(Family(common, labelled(sorted(found[key], key=order), common)))
    return made


def _with_baselines(families: Sequence[Family], vs: Mapping[str, Any]) -> list[Family]:
    if not vs:
        return [_default_baseline(family) for family in families]
    said = ",".join(_asked(name, value) for name, value in vs.items())
    chosen = []
    for family in families:
        match = [c for c in family.arms if all(_same(c.key.get(name), value) for name, value in vs.items())]
        if "resumed" not in vs:
            match = [arm for arm in match if not arm.key.get("resumed")] or match
        if len(match) > 1:
            apart = [name for name in match[0].key if len({arm.key[name] for arm in match}) > 1]
            raise UsageError(
                f"--vs {said} matches {len(match)} rows: {', '.join(arm.label for arm in match[:6])}",
                "add what distinguishes them, as in --vs "
                + ",".join([said, *(_asked(name, match[0].key[name]) for name in apart)]),
            )
        chosen.append(replace(family, baseline=match[0] if match else None, why="chosen by --vs"))
    if families and not any(family.baseline for family in chosen):
        rows = list(dict.fromkeys(arm.label for family in families for arm in family.arms))
        raise UsageError(f"--vs {said} matches none of the rows", f"the rows: {', '.join(rows[:8])}")
    return chosen


def _same(value: Any, wanted: Any) -> bool:
    return wanted == UNSET if value is None else value == wanted or str(value) == str(wanted)


def _asked(name: str, value: Any) -> str:
    """Return a setting in the syntax of --vs."""
    shown = UNSET if value is None else ("on" if value else "off") if name == "compile" else str(value)
    return f"{'workload' if name == 'subject' else name}={shown}"


def _default_baseline(family: Family) -> Family:
    """Choose eager on the CPU; else the slowest eager arm; else the slowest arm; of each kind fp32 and torch first."""
    able = [arm for arm in family.arms if arm.times]
    if len(able) < 2:
        return family
    best = min(able, key=lambda arm: (_distance(arm), -(arm.median_s or 0)))
    return replace(family, baseline=best, why=f"{_why(best, able)}; --vs selects another")


def _why(best: Arm, able: Sequence[Arm]) -> str:
    away, compiled, *chosen = _distance(best)
    if not away:
        return "eager on the cpu"
    others = [rest for arm in able for a, b, *rest in [_distance(arm)] if (a, b) == (away, compiled)]
    names = " in fp32", " of torch"
    of = [name for at, name in enumerate(names) if not chosen[at] and any(other[at] for other in others)]
    return f"the slowest {'row' if compiled else 'eager row'}{''.join(of)}"


def _distance(arm: Arm) -> tuple[bool, ...]:
    key = arm.key
    compiled = bool(key.get("compile"))
    away = key.get("device") != "cpu" or compiled
    other = key.get("dtype") not in ("fp32", None), key.get("framework") not in ("torch", None)
    return away, compiled, *other, bool(key.get("resumed"))


def _judged(family: Family, most_splits: int) -> Family:
    """Return the family with its pairs; if iterations differ in size, time per token or sample is compared."""
    able = [arm for arm in family.arms if arm.times]
    per_work = next((unit for unit in WORK if len({arm.work(unit) for arm in able} - {None}) > 1), "")
    able = [arm for arm in able if not per_work or arm.work(per_work)]
    base = family.baseline
    pairs = [(arm, base) for arm in able if base is not None and base in able and arm is not base]
    twins = [(arm, twin) for arm in able if (twin := family.twin(arm)) is not None and twin in able]
    verdicts = judge([*pairs, *twins], per_work, most_splits)
    judged = [[Pair(arm, against, verdicts[arm, against]) for arm, against in of] for of in (pairs, twins)]
    return replace(family, per_work=per_work, pairs=judged[0], twins=judged[1])


def judge(
    asked: Iterable[tuple[Arm, Arm]], per_work: str = "", most_splits: int = MOST_SPLITS
) -> dict[tuple[Arm, Arm], Verdict]:
    """Judge all pairs with a common correction, those with the baseline and those with eager twins. A pair requested in
    both directions counts once (docs/decisions/many-pairs.md)."""
    pairs = [*{frozenset(pair): pair for pair in asked}.values()]
    if not pairs:
        return {}
    from queue_runner.analysis import significance

    affordable = [n for n in (8, 7) if len(pairs) * math.comb(2 * n, n) <= most_splits]
    n_most = max(significance.needed_repeats(len(pairs)), *affordable[:1], FEWEST_BATCHES)
    times = [(_times(arm, per_work), _times(base, per_work)) for arm, base in pairs]
    found = significance.compare_all([fold(arm, base, n_most) for arm, base in times])
    judged = {}
    for (arm, base), v in zip(pairs, found, strict=True):
        judged[arm, base] = replace(v, n=len(arm.times), n_baseline=len(base.times))
        judged[base, arm] = judged[arm, base].mirrored()
    return judged


def _times(arm: Arm, per_work: str) -> list[float]:
    return [time / (arm.work(per_work) or 1.0) for time in arm.times] if per_work else arm.times


def fold(arm: Sequence[float], baseline: Sequence[float], n_most: int) -> tuple[list[float], list[float]]:
    """Combine run medians into batches, at most `n_most` of the smaller arm: geometric means of successive runs.

    All splits of a few batches can be enumerated, whereas those of many runs could only be sampled; a slow drift over
    the runs stays visible between batches (batch means: Law & Kelton 2000, Simulation Modeling and Analysis, section
    9.5). Batches of both arms hold equally many runs: a mean of 30 runs varies less than a single run, and
    exchanging the two would call equal arms different in 10 to 20 % of cases.
    """
    size = max(1.0, min(len(arm), len(baseline)) / n_most)
    return _batches(arm, size), _batches(baseline, size)


def _batches(times: Sequence[float], size: float) -> list[float]:
    n = round(len(times) / size)
    cuts = [len(times) * k // n for k in range(n + 1)]
    return [math.exp(math.fsum(map(math.log, times[a:b])) / (b - a)) for a, b in pairwise(cuts)]


def compile_cost_s(arm: Arm, twin: Arm | None, cache: str | None = None) -> float | None:
    """Return the cost of compilation in seconds: the excess of the first iteration over the median, minus that of the
    eager twin; over the runs that started with the compiler's `cache` in that state, or over all."""
    runs = [row for row in arm.shown if cache is None or row["compile_cache"] == cache]
    ours = middle(runs, "first_iter_excess_s")
    theirs = twin.median("first_iter_excess_s") if twin is not None else None
    return None if ours is None or theirs is None else ours - theirs


def first_iter_s(arm: Arm, cache: str | None) -> float | None:
    """Return the seconds of the first iteration over the runs that started with the compiler's `cache` in that state: a
    median of cold and warm starts would describe neither."""
    return middle((row for row in arm.shown if row["compile_cache"] == cache), "first_iter_s")


def main_cache(arm: Arm) -> str | None:
    """Return the state of the compiler's cache to report first: cold if any run was cold, None if unknown."""
    states = {row["compile_cache"] for row in arm.shown} - {None}
    return "cold" if "cold" in states else min(states, default=None)


def break_even_iters(arm: Arm, twin: Arm | None, cost_s: float | None) -> float | None:
    """Return the number of iterations after which compilation pays off; None if never."""
    if twin is None or not cost_s or arm.median_s is None or twin.median_s is None:
        return None
    gain_s = twin.median_s - arm.median_s
    return cost_s / gain_s if gain_s > 0 and cost_s > 0 else None
