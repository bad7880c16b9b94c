"""Findings of a comparison, as sentences that include their own limits. Pure: numbers in, words out.

A ratio without enough runs says so in the same sentence; no difference is called real unless `significance` says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from queue_runner import units
from queue_runner.analysis.comparison import Family, Pair, break_even_iters, compile_cost_s, main_cache
from queue_runner.analysis.grouping import MAIN, Arm, taints, word
from queue_runner.analysis.significance import Word

STEP0_TOLERANCE = {"fp32": 1e-3}
"""Relative difference up to which losses before the first step agree, by dtype; REDUCED_TOLERANCE for the others."""
REDUCED_TOLERANCE = 1e-2
MOST_PAIRS = 8
"""The most ratios stated in words; a longer table speaks for itself."""
MOST_FACTORS = 3
"""The most factors splitting the rows alike that get a sentence each; more share one, which names this many."""
NOTABLE = 1.25
"""How much more than the iterations the real time must have changed to be reported."""
NOTABLE_EVAL = 2.0
NOTABLE_REAL = 1.1
"""Real times closer than this count as unchanged: they are single numbers, without a test."""


@dataclass(frozen=True)
class RunDetails:
    """Data read from single runs, by run_id. `step0`: losses before the first step by name; `last_eval`: number and
    seconds of the last iteration that includes an evaluation, in logs whose clock cannot tell them apart."""

    step0: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    last_eval: Mapping[int, tuple[int, float]] = field(default_factory=dict)


def describe(family: Family, seen: RunDetails) -> list[str]:
    """Return all findings about a family, the answer first."""
    return [
        *_ratios(family),
        *(line for pair in family.twins for line in _twin_costs(pair, seen)),
        *drifts(family.cells),
        *_step0(family.cells, seen),
        *not_falling(family.cells),
        *others_that_differ(family),
    ]


def _ratios(family: Family) -> list[str]:
    twins = {frozenset((pair.cell, pair.baseline)) for pair in family.twins}
    against = sorted(family.pairs, key=lambda pair: -pair.ratio)
    pairs = [pair for pair in against if frozenset((pair.cell, pair.baseline)) not in twins]
    lines = [ratio(pair, family.per_work) for pair in pairs[:MOST_PAIRS]]
    lines += [ratio(pair, family.per_work, compiling=True) for pair in family.twins[:MOST_PAIRS]]
    need = max((p.verdict.need for p in [*pairs, *family.twins] if not p.verdict.decided), default=0)
    return [*lines, f"a verdict needs {need} runs each: add --repeats {need}"] if need else lines


def ratio(pair: Pair, per_work: str, compiling: bool = False) -> str:
    """State how a cell compares with its baseline, and how reliable that is: "is" is reserved for a verdict, a ratio
    without one "was measured"."""
    cell, base, verdict = pair.cell.label, pair.baseline.label, pair.verdict
    slower = pair.ratio < 1
    times = units.ratio(1 / pair.ratio if slower else pair.ratio)
    how = "slower" if slower else "faster"
    judged = verdict.decided
    if same := verdict.word in (Word.NO_DIFFERENCE, Word.SAME):
        subject = f"{cell} and {base}"
        nothing = verdict.word is Word.NO_DIFFERENCE
        text = f"{verdict.word} between {subject}" if nothing else f"{subject} are {verdict.word}"
        text += f": {units.ratio(pair.ratio)}"
    elif not judged and times == units.ratio(1.0):
        text = f"{cell} measured as fast as {base}"
    elif compiling:
        it = without_mode(pair.baseline)
        text = f"compile makes {it} {times} {how}" if judged else f"{it} compiled measured {times} {how} than eager"
    else:
        text = f"{cell} {'is' if judged else 'measured'} {times} {how} than {base}"
    if not per_work:
        numbers = f", {units.ms(pair.cell.median_s)} against {units.ms(pair.baseline.median_s)} ms an iteration"
    else:
        of = [units.number((c.work(per_work) or 0) / (c.median_s or math.inf)) for c in (pair.cell, pair.baseline)]
        numbers = f" per {per_work}, {of[0]} against {of[1]} {per_work}s/s"
    return f"{text}{numbers} ({_limits(pair, slower and not same)})"


def _limits(pair: Pair, inverted: bool) -> str:
    verdict = pair.verdict
    words = []
    if verdict.low is not None and verdict.high is not None:
        low, high = (1 / verdict.high, 1 / verdict.low) if inverted else (verdict.low, verdict.high)
        words.append(f"95 % interval {units.ratio_interval(low, high)}")
    runs = f"{verdict.n} runs each" if verdict.n == verdict.n_baseline else f"{verdict.n} and {verdict.n_baseline} runs"
    words.append("one run each" if verdict.n == verdict.n_baseline == 1 else runs)
    if pair.verdict.p_corrected is not None:
        words.append(f"p {units.number(pair.verdict.p_corrected, 2)}")
    return ", ".join(words) + ("" if verdict.decided else ": no verdict")


def without_mode(cell: Arm) -> str:
    """Return the label of a cell without its mode: "mps" of "mps eager"."""
    return " ".join(part for part in cell.label.split(" ") if part not in ("eager", "compiled")) or "it"


def _twin_costs(pair: Pair, seen: RunDetails) -> Iterable[str]:
    """Report the further costs of compilation: the first iteration, the evaluations, the real time."""
    cell, twin = pair.cell, pair.baseline
    cache = main_cache(cell)
    cost_s = compile_cost_s(cell, twin, cache)
    if cost_s is not None and cost_s > 0:
        after = break_even_iters(cell, twin, cost_s)
        pays = "never pays for itself" if after is None else f"pays for itself after {units.count(after)} iterations"
        state = f" ({cache} cache)" if cache else ""
        yield f"compiling {without_mode(twin)} costs {units.duration(cost_s)} in the first iteration{state} and {pays}"
    ours, theirs = (_first(c.shown, seen.last_eval) for c in (cell, twin))
    if ours and theirs and _far(ours[1], theirs[1], NOTABLE_EVAL):
        yield (
            f"the last evaluating iteration ({units.count(ours[0])}) of {cell.label} took {tenths(ours[1])} s against"
            f" {tenths(theirs[1])} s of {twin.label}"
        )
    real, twin_real = cell.median("real_s"), twin.median("real_s")
    if not real or not twin_real or cell.median("n_iters") != twin.median("n_iters"):
        return
    grew, iteration = real / twin_real, 1 / pair.ratio
    if _far(grew, iteration, NOTABLE):
        much = _far(grew, 1, NOTABLE_REAL)
        how = f"{'grew' if grew > 1 else 'shrank'} {units.number(max(grew, 1 / grew), 3)} times"
        yield (
            f"real time of {cell.label} {how if much else 'hardly changed'}, {tenths(real)} s against"
            f" {tenths(twin_real)} s of {twin.label}; an iteration takes {units.number(iteration, 3)} times as long"
        )


def _first(rows: Sequence[Mapping[str, Any]], found: Mapping[int, tuple[int, float]]) -> tuple[int, float] | None:
    return next((found[row["run_id"]] for row in rows if row["run_id"] in found), None)


def _far(a: float, b: float, factor: float) -> bool:
    return a > b * factor or b > a * factor


def tenths(x_s: float) -> str:
    """Format seconds to a tenth, with thousands separators: "1,255.9"; below a second two digits."""
    rounded = round(x_s, 1) if x_s >= 1 else x_s
    return units.number(rounded, len(str(int(rounded))) + 1)


def drifts(cells: Sequence[Arm]) -> Iterable[str]:
    """Report cells whose iterations became slower or faster over the run."""
    for cell in cells:
        runs = [row for row in cell.shown if "drift" in taints(row) and row["drift_ratio"]]
        if not runs:
            continue
        row = max(runs, key=lambda row: abs(row["drift_ratio"] - 1))
        change = row["drift_ratio"] - 1
        which = f" ({len(runs)} of {len(cell.shown)} runs; most in {row['run']})" if len(cell.shown) > 1 else ""
        yield (
            f"{cell.label} drifted{which}: an iteration took {units.percent(abs(change), 2)}"
            f" {'longer' if change > 0 else 'less'} in the last third than in the first,"
            f" {units.ms(row['last_third_median_s'])} against {units.ms(row['first_third_median_s'])} ms"
        )


def _step0(cells: Sequence[Arm], seen: RunDetails) -> Iterable[str]:
    """Report whether the rows begin with the same loss: a result that is wrong from the start is no speed-up."""
    told = [(cell, found) for cell in cells if (found := _step0_of(cell, seen))]
    names = [name for name in ("on the device", "val", "train") if sum(name in found for _, found in told) > 1]
    if not names:
        return
    name = names[0]
    losses = [(cell, found[name]) for cell, found in told if name in found]
    values = [value for _, value in losses]
    dtypes = {row["dtype"] for cell, _ in losses for row in cell.shown[:1]}
    tolerance = max(STEP0_TOLERANCE.get(str(dtype), REDUCED_TOLERANCE) for dtype in dtypes)
    off = (max(values) - min(values)) / max(min(abs(value) for value in values), 1e-12)
    within = f"tolerance {units.percent(tolerance, 1)}"
    if off <= tolerance:
        spread = units.loss(min(values))
        if units.loss(max(values)) != spread:
            spread = f"{spread} to {units.loss(max(values))}"
        yield f"step-0 losses agree ({within}): {spread} ({name}) in {len(losses)} of {len(cells)} rows"
        return
    each = ", ".join(f"{units.loss(value)} {cell.label}" for cell, value in losses)
    yield f"step-0 losses differ by {units.percent(off, 2)} ({within}; {name}): {each}; do they compute the same?"


def _step0_of(cell: Arm, seen: RunDetails) -> Mapping[str, float]:
    return next((seen.step0[row["run_id"]] for row in cell.shown if row["run_id"] in seen.step0), {})


def not_falling(cells: Sequence[Arm]) -> Iterable[str]:
    """Report cells whose loss did not fall: a fast run that does not learn is useless."""
    for cell in cells:
        if cell.key.get("resumed"):
            continue  # the loss may have fallen in the part of another run
        first, last, n = cell.median("loss_first"), cell.median("loss_last"), cell.median("n_iters") or 0
        if first is not None and last is not None and n >= 10 and last >= first:
            yield f"the loss of {cell.label} did not fall: {units.loss(first)} at first, {units.loss(last)} at last"


def others_that_differ(family: Family) -> Iterable[str]:
    """Report factors that differ along with those in the labels, so that a ratio is not of device and mode alone."""
    cells = [cell for cell in family.cells if cell.times]
    alike: dict[tuple[tuple[int, ...], ...], list[str]] = {}
    for name in cells[0].key if len(cells) > 1 else ():
        values: dict[Any, list[Arm]] = {}
        for cell in cells:
            values.setdefault(cell.key[name], []).append(cell)
        hidden = any(word(name, cell.key[name]) not in cell.label for cell in cells)
        if name in MAIN or name == "device_name" or len(values) < 2 or not hidden:
            continue
        parts = tuple(tuple(number for number, cell in enumerate(cells) if cell in of) for of in values.values())
        alike.setdefault(parts, []).append(name)
    for parts, names in alike.items():
        members = [[cells[number] for number in part] for part in parts]
        yield from (_differ(some, members) for some in ([names] if len(names) > MOST_FACTORS else ([n] for n in names)))


def _differ(names: Sequence[str], parts: Sequence[Sequence[Arm]]) -> str:
    """Return one sentence for factors that split the cells alike: an environment may add dozens of packages."""
    told = [name.replace("_", " ") for name in names[:MOST_FACTORS]]
    more = [f"{len(names) - len(told)} more"] if len(names) > len(told) else []
    listed = " and ".join(filter(None, [", ".join([*told, *more][:-1]), [*told, *more][-1]]))
    each = [(", ".join(str(of[0].key[name] or "unset") for name in names[: len(told)]), of) for of in parts]
    where = "; ".join(f"{values}: {', '.join(cell.label for cell in of)}" for values, of in each)
    return f"the rows differ in {listed} as well ({where})"
