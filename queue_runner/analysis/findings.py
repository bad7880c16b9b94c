"""Findings of a comparison as sentences, each with its own limits. Pure: numbers in, text out.

A ratio of too few runs is reported as measured, without a verdict; only `significance` decides that a difference is
real.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from queue_runner import units
from queue_runner.analysis.comparison import Family, Pair, break_even_iters, compile_cost_s, main_cache
from queue_runner.analysis.grouping import MAIN, Arm, taints, word
from queue_runner.analysis.significance import Word

T = TypeVar("T")

STEP0_TOLERANCE = {"fp32": 1e-3}
"""Relative difference up to which losses before the first step agree, by dtype; REDUCED_TOLERANCE for the others."""
REDUCED_TOLERANCE = 1e-2
MOST_PAIRS = 8
"""Maximum number of ratios in words; the table has the others."""
MOST_FACTORS = 3
"""Maximum number of factors with the same split of rows that get a sentence each; more share one that names so many."""
NOTABLE = 1.25
"""Minimum ratio of the change of the real time to that of the iterations to be reported."""
NOTABLE_EVAL = 2.0
NOTABLE_REAL = 1.1
"""Ratio of real times up to which they count as unchanged: there is no test for them."""


@dataclass(frozen=True)
class RunDetails:
    """Data of single runs, by run_id. `step0`: losses before the first step, by name; `last_eval`: number and seconds
    of the last iteration that includes an evaluation, in logs that do not time evaluations separately."""

    step0: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    last_eval: Mapping[int, tuple[int, float]] = field(default_factory=dict)


def describe(family: Family, details: RunDetails) -> list[str]:
    """Return all findings about a family, the answer first."""
    return [
        *_ratios(family),
        *(line for pair in family.twins for line in _twin_costs(pair, details)),
        *drifts(family.arms),
        *_step0(family.arms, details),
        *not_falling(family.arms),
        *others_that_differ(family),
    ]


def _ratios(family: Family) -> list[str]:
    twins = {frozenset((pair.arm, pair.baseline)) for pair in family.twins}
    against = sorted(family.pairs, key=lambda pair: -pair.ratio)
    pairs = [pair for pair in against if frozenset((pair.arm, pair.baseline)) not in twins]
    lines = [ratio(pair, family.per_work) for pair in pairs[:MOST_PAIRS]]
    lines += [ratio(pair, family.per_work, compiling=True) for pair in family.twins[:MOST_PAIRS]]
    need = max((p.verdict.need for p in [*pairs, *family.twins] if not p.verdict.decided), default=0)
    return [*lines, f"a verdict needs {need} runs of each row: use --repeats {need}"] if need else lines


def ratio(pair: Pair, per_work: str, compiling: bool = False) -> str:
    """Compare an arm with its baseline, with the limits of the result: "is" marks a verdict, "measured" a ratio without
    one."""
    arm, base, verdict = pair.arm.label, pair.baseline.label, pair.verdict
    slower = pair.ratio < 1
    times = units.ratio(1 / pair.ratio if slower else pair.ratio)
    how = "slower" if slower else "faster"
    judged = verdict.decided
    if same := verdict.word in (Word.NO_DIFFERENCE, Word.SAME):
        subject = f"{arm} and {base}"
        nothing = verdict.word is Word.NO_DIFFERENCE
        text = f"{verdict.word} between {subject}" if nothing else f"{subject} are {verdict.word}"
        text += f": {units.ratio(pair.ratio)}"
    elif not judged and times == units.ratio(1.0):
        text = f"{arm} measured as fast as {base}"
    elif compiling:
        it = without_mode(pair.baseline)
        text = f"compile makes {it} {times} {how}" if judged else f"{it} compiled measured {times} {how} than eager"
    else:
        text = f"{arm} {'is' if judged else 'measured'} {times} {how} than {base}"
    if not per_work:
        numbers = f", {units.ms(pair.arm.median_s)} vs {units.ms(pair.baseline.median_s)} ms/iter"
    else:
        a, b = (units.number((c.work(per_work) or 0) / (c.median_s or math.inf)) for c in (pair.arm, pair.baseline))
        numbers = f" per {per_work}, {a} vs {b} {per_work}s/s"
    return f"{text}{numbers} ({_limits(pair, slower and not same)})"


def _limits(pair: Pair, inverted: bool) -> str:
    verdict = pair.verdict
    words = []
    if verdict.low is not None and verdict.high is not None:
        low, high = (1 / verdict.high, 1 / verdict.low) if inverted else (verdict.low, verdict.high)
        words.append(f"95 % CI {units.ratio_interval(low, high)}")
    runs = f"{verdict.n} runs each" if verdict.n == verdict.n_baseline else f"{verdict.n} and {verdict.n_baseline} runs"
    words.append("one run each" if verdict.n == verdict.n_baseline == 1 else runs)
    if verdict.p_corrected is not None:
        words.append(f"p = {units.number(verdict.p_corrected, 2)}")
    return ", ".join(words) + ("" if verdict.decided else ": no verdict")


def without_mode(arm: Arm) -> str:
    """Return the label of an arm without its mode: "mps" of "mps eager"."""
    return " ".join(part for part in arm.label.split(" ") if part not in ("eager", "compiled")) or "it"


def _twin_costs(pair: Pair, details: RunDetails) -> Iterable[str]:
    """Report the costs of compilation: in the first iteration, in evaluations, in the real time."""
    arm, twin = pair.arm, pair.baseline
    cache = main_cache(arm)
    cost_s = compile_cost_s(arm, twin, cache)
    if cost_s is not None and cost_s > 0:
        after = break_even_iters(arm, twin, cost_s)
        pays = "never pays off" if after is None else f"pays off after {units.count(after)} iterations"
        state = f" ({cache} cache)" if cache else ""
        yield f"compiling {without_mode(twin)} costs {units.duration(cost_s)} in the first iteration{state} and {pays}"
    ours, theirs = (_first(c.shown, details.last_eval) for c in (arm, twin))
    if ours and theirs and _far(ours[1], theirs[1], NOTABLE_EVAL):
        yield (
            f"the last iteration with an evaluation ({units.count(ours[0])}) took {tenths(ours[1])} s in {arm.label},"
            f" {tenths(theirs[1])} s in {twin.label}"
        )
    real, twin_real = arm.median("real_s"), twin.median("real_s")
    if not real or not twin_real or arm.median("n_iters") != twin.median("n_iters"):
        return
    grew, iteration = real / twin_real, 1 / pair.ratio
    if _far(grew, iteration, NOTABLE):
        much = _far(grew, 1, NOTABLE_REAL)
        how = f"is {units.number(max(grew, 1 / grew), 3)} times {'longer' if grew > 1 else 'shorter'}"
        yield (
            f"real time of {arm.label} {how if much else 'is about the same'}, {tenths(real)} s vs"
            f" {tenths(twin_real)} s of {twin.label}; an iteration takes {units.number(iteration, 3)} times as long"
        )


def _first(rows: Sequence[Mapping[str, Any]], found: Mapping[int, T]) -> T | None:
    return next((found[row["run_id"]] for row in rows if row["run_id"] in found), None)


def _far(a: float, b: float, factor: float) -> bool:
    return a > b * factor or b > a * factor


def tenths(x_s: float) -> str:
    """Format seconds to a tenth, with thousands separators: "1,255.9"; below 1 s with two significant digits."""
    rounded = round(x_s, 1) if x_s >= 1 else x_s
    return units.number(rounded, len(str(int(rounded))) + 1)


def drifts(arms: Sequence[Arm]) -> Iterable[str]:
    """Report arms whose iterations became slower or faster during the run."""
    for arm in arms:
        runs = [row for row in arm.shown if "drift" in taints(row) and row["drift_ratio"]]
        if not runs:
            continue
        row = max(runs, key=lambda row: abs(row["drift_ratio"] - 1))
        change = row["drift_ratio"] - 1
        which = f" ({len(runs)} of {len(arm.shown)} runs; most in {row['run']})" if len(arm.shown) > 1 else ""
        yield (
            f"{arm.label} drifted{which}: iterations of the last third took {units.percent(abs(change), 2)}"
            f" {'longer' if change > 0 else 'less'} than those of the first,"
            f" {units.ms(row['last_third_median_s'])} vs {units.ms(row['first_third_median_s'])} ms"
        )


def _step0(arms: Sequence[Arm], details: RunDetails) -> Iterable[str]:
    """Report whether the rows start with the same loss: the speed of a wrong computation is no speedup."""
    known = [(arm, found) for arm in arms if (found := _first(arm.shown, details.step0))]
    names = [name for name in ("on the device", "val", "train") if sum(name in found for _, found in known) > 1]
    if not names:
        return
    name = names[0]
    losses = [(arm, found[name]) for arm, found in known if name in found]
    values = [value for _, value in losses]
    dtypes = {row["dtype"] for arm, _ in losses for row in arm.shown[:1]}
    tolerance = max(STEP0_TOLERANCE.get(str(dtype), REDUCED_TOLERANCE) for dtype in dtypes)
    off = (max(values) - min(values)) / max(min(abs(value) for value in values), 1e-12)
    within = f"tolerance {units.percent(tolerance, 1)}"
    if off <= tolerance:
        spread = units.loss(min(values))
        if units.loss(max(values)) != spread:
            spread = f"{spread} to {units.loss(max(values))}"
        yield f"step-0 losses agree ({within}): {spread} ({name}) in {len(losses)} of {len(arms)} rows"
        return
    each = ", ".join(f"{units.loss(value)} {arm.label}" for arm, value in losses)
    yield f"step-0 losses differ by {units.percent(off, 2)} ({within}; {name}): {each}; they may not compute the same"


def not_falling(arms: Sequence[Arm]) -> Iterable[str]:
    """Report arms whose loss did not decrease: the speed of a run that does not learn is useless."""
    for arm in arms:
        if arm.key.get("resumed"):
            continue  # the loss may have fallen in the part of another run
        first, last, n = arm.median("loss_first"), arm.median("loss_last"), arm.median("n_iters") or 0
        if first is not None and last is not None and n >= 10 and last >= first:
            yield f"the loss of {arm.label} did not decrease: first {units.loss(first)}, last {units.loss(last)}"


def others_that_differ(family: Family) -> Iterable[str]:
    """Report factors that differ along with those in the labels: a ratio is not due to device and mode alone."""
    arms = [arm for arm in family.arms if arm.times]
    alike: dict[tuple[tuple[int, ...], ...], list[str]] = {}
    for name in arms[0].key if len(arms) > 1 else ():
        values: dict[Any, list[Arm]] = {}
        for arm in arms:
            values.setdefault(arm.key[name], []).append(arm)
        hidden = any(word(name, arm.key[name]) not in arm.label for arm in arms)
        if name in MAIN or name == "device_name" or len(values) < 2 or not hidden:
            continue
        parts = tuple(tuple(number for number, arm in enumerate(arms) if arm in of) for of in values.values())
        alike.setdefault(parts, []).append(name)
    for parts, names in alike.items():
        members = [[arms[number] for number in part] for part in parts]
        yield from (_differ(some, members) for some in ([names] if len(names) > MOST_FACTORS else ([n] for n in names)))


def _differ(names: Sequence[str], parts: Sequence[Sequence[Arm]]) -> str:
    """Return one sentence on factors with the same split of arms: an environment may add dozens of packages."""
    listed = [name.replace("_", " ") for name in names[:MOST_FACTORS]]
    if len(names) > MOST_FACTORS:
        listed.append(f"{len(names) - MOST_FACTORS} more")
    factors = " and ".join(filter(None, [", ".join(listed[:-1]), listed[-1]]))
    each = [(", ".join(str(of[0].key[name] or "unset") for name in names[:MOST_FACTORS]), of) for of in parts]
    where = "; ".join(f"{values}: {', '.join(arm.label for arm in of)}" for values, of in each)
    return f"the rows also differ in {factors} ({where})"
