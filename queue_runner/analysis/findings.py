"""Findings of a comparison as sentences, each with its own limits. Pure: numbers in, text out.

A ratio without a verdict is reported as measured; only a verdict says that a difference is real.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from shlex import quote
from statistics import median

from msgspec.structs import replace

from queue_runner import units
from queue_runner.analysis import run_metrics
from queue_runner.analysis.comparison import PHASE, UNSET, WALL, Family, Pair, disturbed_rounds, without
from queue_runner.analysis.finding import Caveat, Finding, NextStep, OtherAnswer, Undecided
from queue_runner.analysis.grouping import MAIN, Arm, factor_name, is_mode, kinds_of_taint, word
from queue_runner.analysis.intervals import FIRST_LOOK
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.analysis.rounds import Verdict, Word
from queue_runner.analysis.stats import by_key
from queue_runner.analysis.validity import learns
from queue_runner.model import State
from queue_runner.spec import MOST_OFFERED, MOST_ROUNDS, mode_word, more_rounds

STEP0_TOLERANCE = {"fp32": 1e-3}
"""Relative difference up to which losses before the first step agree, by dtype; REDUCED_TOLERANCE for the others."""
REDUCED_TOLERANCE = 1e-2
MOST_PAIRS = 8
"""Maximum number of ratios in words; the table has the others."""
MOST_FACTORS = 3
"""Maximum number of factors or rows that a sentence names; the rest is counted."""
VISIBLE = 0.01
"""Relative difference of two ratios that a reader of a table notices."""
NOTABLE = 1.25
"""Minimum ratio of the change of the real time to that of the iterations to be reported."""


LITTLE = 0.25
"""Share of a run's time: where the measured iterations take less, longer runs are advised."""
FEW = 5
"""Number of further rounds up to which these are advised all the same."""
MOST_LONGER = 10
"""Maximum factor by which longer runs are advised."""
MARGINS = (1, 2, 3, 5, 10)
"""Per cent by which two rows may differ and still be of equal use to somebody."""


Step0 = Mapping[int, Mapping[str, float]]
"""Losses before the first step, by run_id and name."""


def describe(family: Family, step0: Step0, stated: Pair | None = None) -> list[str]:
    """Return all findings about a family, the answer first: that on the time, or on the metric that comes first. The
    ratio of a pair that another sentence has `stated` is not repeated."""
    metrics = {name: [*metric_answer(family, name)] for name in family.metrics}
    first = metrics.pop(family.by, None)
    return [
        *_nothing(family),
        *(_ratios(family, stated) if first is None else [*first, *map(_of_time, _ratios(family, stated))]),
        *(_other(line, name in family.named) for name, lines in metrics.items() for line in lines),
        *without_words(family),
        *other_clock((arm.label, arm.timed) for arm in family.arms),
        *(Finding(line) for pair in family.twins for line in _twin_costs(pair)),
        *_step0(family.arms, step0),
        *not_falling(family.arms),
        *others_that_differ(family),
    ]


def _other(line: str, is_named: bool) -> Finding:
    """Return a sentence that does not answer the question in the first place: only --explain prints it. It is an
    answer if it has a verdict, or somebody asks about its quantity."""
    if isinstance(line, Finding):
        return line
    decided = not isinstance(line, Undecided)
    return OtherAnswer(line, is_named and decided) if is_named or decided else Finding(line)


def _of_time(line: str) -> Finding:
    """Return a sentence on the time below the answer on a metric: it says what it is about. One without a verdict
    answers nothing."""
    if isinstance(line, Finding):
        return line
    text = f"time: {line}"
    return Finding(text) if isinstance(line, Undecided) else OtherAnswer(text, True)


def _nothing(family: Family) -> Iterable[str]:
    """Say that there is no answer, where rows were to be compared and fewer than two have a valid run."""
    able = [arm for arm in family.arms if arm.times]
    if len(family.arms) > 1 > len(able) - 1 and any(arm.ended for arm in family.arms):
        if unmeasured := next((arm for arm in family.arms if arm.is_unmeasured), None):
            run = unmeasured.runs[0]
            iters = units.counted(int(run.n_iters or 0), "iteration")
            more = "raise max_iters" if run.kind == "workload" else "let it run longer"
            text = f"{unmeasured.label} ran {iters}, all of them warm-up; {more}"
            if run.window:
                first, last = map(units.count, run.window)
                text = f"{unmeasured.label} has no measured iteration in {first} to {last} (--iters)"
            yield f"nothing to compare: {text}"
            return
        lacking = "time" if any(arm.used and not arm.times for arm in family.arms) else "valid run"
        yield f"nothing to compare: {f'only {able[0].label}' if able else 'no row'} has a {lacking}"


def _ratios(family: Family, stated: Pair | None) -> list[str]:
    arms = {stated.arm, stated.baseline} if stated else set()
    others = [[pair for pair in some if {pair.arm, pair.baseline} != arms] for some in (family.pairs, family.twins)]
    rest = replace(family, pairs=others[0], twins=others[1])
    twins = {frozenset((pair.arm, pair.baseline)) for pair in family.twins}
    against = sorted(family.pairs, key=lambda pair: -pair.ratio)
    pairs = [pair for pair in against if frozenset((pair.arm, pair.baseline)) not in twins]
    lines = [ratio(pair, family.unit) for pair in pairs[:MOST_PAIRS] if {pair.arm, pair.baseline} != arms]
    lines += [ratio(pair, family.unit, compiling=True) for pair in rest.twins[:MOST_PAIRS]]
    first = answer(rest)
    lines = [*filter(None, [first, compilation(rest, first)]), *(Finding(line) for line in lines if line != first)]
    return [*lines, *_open(family), *incomplete([*pairs, *family.twins]), *disturbed(family)]


def compilation(family: Family, answer: str) -> str:
    """Return in one sentence whether compilation helps each device; "" where the answer says it, or none compiles."""
    twins = [pair for pair in family.twins if ratio(pair, family.unit, compiling=True) != answer]
    if not twins:
        return ""
    parts = [_compiled(pair) for pair in twins[:MOST_FACTORS]]
    more = f", and {len(twins) - MOST_FACTORS} more rows" if len(twins) > MOST_FACTORS else ""
    return f"compiled vs eager: {', '.join(parts)}{more}"


def _compiled(pair: Pair) -> str:
    """Say how much faster or slower a compiled row is than its eager twin: "1.38 x slower on mps (undecided)"."""
    slower = pair.ratio < 1
    stated = pair.verdict.mirrored() if slower else pair.verdict
    mode = pair.arm.key.get("compile")
    row = " ".join([without_mode(pair.baseline).removeprefix("it"), mode if isinstance(mode, str) else ""]).strip()
    on_row = f" ({row})" if "=" in row else f" on {row}" if row else ""
    if stated.word is Word.SAME:
        return f"{stated}{on_row}"
    word = "" if stated.decided else " (undecided)"
    times = units.ratio(stated.change)
    if times == units.ratio(1.0):
        times = stated.ratio if stated.decided else ""
    how = f"{times} {'slower' if slower else 'faster'}" if times else "as fast"
    return f"{how}{on_row}{word}"


def _open(family: Family) -> Iterable[str]:
    """Say how many more rounds would decide the pairs that have no verdict, or what prevents one. On a metric, the
    sentence of its answer says what rounds do not remove. A next step is about the quantity that comes first."""
    runs = [row for arm in family.arms for row in arm.runs]
    ours = [row for row in runs if row.group_id and row.kind != "import" and not row.merged]
    groups = {row.group_id or 0 for row in ours}
    answers = [
        (name, f"{f'{name} of ' if name else ''}{pair.arm.label} vs {pair.baseline.label}", answer)
        for pair in (*family.pairs, *family.twins)
        for name, answer in family.answers(pair).items()
    ]
    undecided = [item for item in answers if not item[2].decided and (item[2].of_time or not item[2].why)]
    first = [item for item in undecided if item[0] == family.by or not family.by]
    fewest = min([answer.more for *_, answer in first if answer.more], default=0)
    for needs, alike in by_key(undecided, lambda item: item[2].next_step).items():
        quantities = [*dict.fromkeys(name or "time" for name, *_ in alike)]
        quantity = f"{quantities[0]} " if family.named and len(quantities) == 1 else ""
        reason = f"{quantity}undecided ({needs})"
        which = f": {units.listed([*dict.fromkeys(names for _, names, _ in alike)], MOST_FACTORS)}"
        answer = alike[0][2]
        if not any(item in first for item in alike):
            yield Finding(reason + which)
        elif answer.why or not answer.more:
            yield Caveat(reason, which)
            by_rounds = 0 < fewest <= MOST_OFFERED
            if not (answer.why or by_rounds) and len(groups) == 1 and all(row.state == State.DONE for row in runs):
                step = _same_within(family, alike, min(groups))
                yield from _without_rounds(step, _longer_runs(ours), "" if answer.of_time else quantities[0])
        elif any(row.state != State.DONE for row in runs):
            yield Finding(reason + which)  # further rounds wait already
        else:
            no_rounds = next((row.instead_of_rounds for row in ours if row.instead_of_rounds), "")
            if len(groups) == 1:
                command = no_rounds or (_longer_runs(ours) if fewest > FEW else "")
                command = command or _towards_an_answer(_same_within(family, first, min(groups)), min(groups), fewest)
            else:
                command = "submit the rows together: each round then has both" if groups else needs
            yield NextStep(reason + which, command) if command else Finding(reason + which)


def _longer_runs(rows: Sequence[ReportedRun]) -> str:
    """Return how to measure longer, where start and end of a workload's runs take most of their time; "" elsewhere, and
    where one number of iterations for all would end a sweep of it."""
    timed = [row for row in rows if row.valid and row.median_s and row.n_measure and row.real_s]
    planned = {row.planned_iters or 0 if row.kind == "workload" else 0 for row in timed}
    iters = planned.pop() if len(planned) == 1 else 0
    if not iters:
        return ""
    measured_s = median((row.median_s or 0) * (row.n_measure or 0) for row in timed)
    real_s = median(row.real_s or 0 for row in timed)
    if measured_s > LITTLE * real_s:
        return ""
    times = min(MOST_LONGER, round(real_s / measured_s))
    measured, whole = (units.short_duration(x_s, 2) for x_s in (measured_s, real_s))
    return f"make the runs longer ({measured} of {whole} is measured): --set max_iters={iters * times}"


def _without_rounds(step: str, longer: str, metric: str) -> Iterable[NextStep]:
    """Say what to do where rounds alone do not decide: accept a wider margin, or measure with less noise."""
    vary = f"{metric or 'the runs'} {'varies' if metric else 'vary'} too much"
    if step:
        yield NextStep("a wider margin gives a verdict", step)
    elif metric:
        yield NextStep(vary, f"stop here, or train longer: {vary} between runs")
    else:
        yield NextStep(vary, longer or f"{vary}: stop here, make them longer, or the machine quieter")


def _towards_an_answer(step: str, group: int, fewest: int) -> str:
    """Return the command for more rounds; if they are many, the `step` that needs none, if there is one; "" if they are
    too many."""
    if fewest > MOST_ROUNDS and step:
        return step
    return more_rounds(group, fewest) if fewest <= MOST_OFFERED else ""


def _same_within(family: Family, undecided: Sequence[tuple[str, str, Verdict]], group: int) -> str:
    """Return how to call rows the same within the smallest round margin that all intervals lie in; "" if there is none.
    The default report of the submission may compare other rows or iterations: then the option alone."""
    names, answers = {name for name, *_ in undecided}, [answer for *_, answer in undecided]
    if len(names) != 1 or not all(answer.low is not None for answer in answers):
        return ""
    if not answers[0].of_time:
        widest = max(abs(end or 0.0) for answer in answers for end in (answer.low, answer.high))
        least = _round_above(widest) if 0 < widest < math.inf else math.inf
        if least > MARGINS[-1] / 100 * min(abs(x) for answer in answers for x in (answer.value, answer.baseline)):
            return ""  # nobody would call them the same
        margin = f"{quote(names.pop())}={least:.6g}"
    else:
        widest = max(abs(end) for answer in answers for end in answer.on_scale)
        percent = next((margin for margin in MARGINS if widest < math.log1p(margin / 100)), 0)
        if not percent:
            return ""
        margin = f"{percent}%"
    differs = family.is_chosen or any(row.window for arm in family.arms for row in arm.runs)
    return f"add --same-within {margin}" if differs else f"mpsq report g{group} --same-within {margin}"


def _round_above(x: float) -> float:
    """Return the next larger of 1, 2 and 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(x))
    return next(step * power for step in (1, 2, 5, 10) if step * power > x)


def incomplete(pairs: Iterable[Pair]) -> Iterable[str]:
    """Name the pairs that are compared over fewer rounds than their rows have runs: below the answer if the times of
    all runs show another ratio."""
    differ = []
    for pair in pairs:
        if 0 < pair.verdict.n < max(len(pair.arm.times), len(pair.baseline.times)):
            names = f"{pair.arm.label} vs {pair.baseline.label}"
            where = f"{units.counted(pair.verdict.n, 'round')} with a valid run of both"
            if _differs_over_all(pair):
                differ.append(f"{names} over {units.counted(pair.verdict.n, 'round')}")
            else:
                yield Finding(f"{names}: compared over {where}")
    if differ:
        which = units.listed(differ, MOST_FACTORS)
        yield f"rows show all runs, but comparisons use only complete rounds: {which}"


def _differs_over_all(pair: Pair) -> bool:
    """Return whether the times or metrics of all runs visibly show another difference than the complete rounds."""
    of_all = (pair.baseline.median_s or 0.0) / (pair.arm.median_s or 1.0)
    if not math.isclose(of_all, pair.verdict.baseline / pair.verdict.value, rel_tol=VISIBLE):
        return True
    for name, answer in pair.metrics.items():
        means = [run_metrics.mean(arm, name) or 0.0 for arm in (pair.arm, pair.baseline)]
        texts = {units.measured(x, answer.low, answer.high) for x in (answer.change, means[0] - means[1])}
        if len(texts) > 1:
            return True
    return False


def other_clock(rows: Iterable[tuple[str, Sequence[ReportedRun]]]) -> Iterable[str]:
    """Say why the reported times of iterations are not compared, of labels with the runs that have a time."""
    known = [*rows]
    doubtful = [label for label, runs in known if {"wrong_clock", "unsynced"} & {*kinds_of_taint(runs)}]
    time_of = next((run.time_of for _, runs in known for run in runs if run.time_of), None)
    if doubtful and time_of:
        what = "measured phase" if time_of == PHASE else time_of
        why = f"compared by the wall time of the {what}, because reported times are doubtful"
        yield Caveat(why, f": {units.listed(doubtful, MOST_FACTORS)}")


def disturbed(family: Family, only_first: bool = False) -> Iterable[str]:
    """Say which verdicts depend on rounds in which something disturbed a run; with `only_first`, of those on the
    quantity that comes first."""
    rounds = disturbed_rounds(family)
    if not rounds:
        return
    calm = without(family, rounds)
    left = {(pair.arm.label, pair.baseline.label): calm.answers(pair) for pair in (*calm.pairs, *calm.twins)}
    pairs = {frozenset((pair.arm, pair.baseline)): pair for pair in (*family.twins, *family.pairs)}
    for pair in pairs.values():
        calm_answers = left.get((pair.arm.label, pair.baseline.label), {})
        for name, verdict in [*family.answers(pair).items()][: 1 if only_first else None]:
            calm_verdict = calm_answers.get(name)
            if calm_verdict is None or calm_verdict.word is verdict.word:
                continue
            if calm_verdict.n < FIRST_LOOK and 2 * len(rounds) < verdict.n:
                continue  # too few rounds for any verdict, although most were undisturbed
            names = f"{pair.arm.label} vs {pair.baseline.label}: {calm_verdict.word} instead of {verdict.word}"
            on = f" on {name or 'the time'}" if family.named else ""
            yield Caveat(
                f"without the {units.counted(len(rounds), 'disturbed round')} a verdict{on} would change", f": {names}"
            )


def answer(family: Family) -> str:
    """Return the answer in one sentence: how much the fastest row is ahead of the baseline; if that is the baseline, of
    the next. A pair that has a verdict comes before one that was measured alone."""
    if not family.pairs:
        return ""
    ahead = [pair for pair in family.pairs if pair.ratio > 1]
    best = max(ahead or family.pairs, key=lambda pair: (bool(ahead) and pair.pays_off, pair.ratio))
    twin = any(frozenset((pair.arm, pair.baseline)) == frozenset((best.arm, best.baseline)) for pair in family.twins)
    return ratio(best, family.unit, compiling=twin and bool(best.arm.key.get("compile")))


def metric_answer(family: Family, name: str) -> Iterable[str]:
    """Say the answer on a metric: which rows may have the lowest loss; or else the answers on the rows."""
    rows = family.lowest(name) if len(family.arms) > 2 else []
    if not 0 < len(rows) <= MOST_FACTORS:
        yield from row_answers(family, name)
        return
    pairs = sorted((pair for pair in family.pairs if name in pair.metrics), key=lambda pair: pair.metrics[name].change)
    contest = family.contest_of(name)
    pair = contest or pairs[0]
    answer = pair.metrics[name]
    if len(rows) == 1:
        lower, other = pair.arm.label, pair.baseline.label
        if rows != [lower]:
            lower, other, answer = other, lower, answer.mirrored()
        difference, interval = _difference(answer)
        text = f"{lower}, {difference} than {other}, {' vs '.join(_metric_values(answer))}"
        known = _sentence(f"lowest {name} of {len(family.arms)} rows: {text}", [interval, answer.rounds], decided=True)
        others = [pair for pair in pairs if pair.baseline is family.baseline and pair.arm.label != lower]
        if others and other == _label(family.baseline) and (second := others[0].metrics[name]).change < 0:
            known += f"; then {others[0].arm.label}, {_metric_values(second)[0]}"
        yield known
    elif contest is not None and answer.word is Word.SAME:
        text = f"lowest {name}: {' and '.join(rows)}, {answer}"
        yield _sentence(text, [answer.interval, answer.rounds], decided=True)
    else:
        is_judged = contest is not None or _label(family.baseline) in rows
        compared = f"; {answer.rounds} do not tell which" if is_judged else ", not compared yet"
        if contest is not None and answer.interval:
            compared += f" (difference: {answer.interval})"
        yield f"lowest {name}: {' or '.join(rows)}{compared}"
        if contest is not None:
            between = _open(replace(family, pairs=[contest], twins=[]))
            yield from (line for line in between if isinstance(line, NextStep))
        else:
            yield from _towards_the_lowest(family, name, rows)
    yield from map(Finding, row_answers(family, name))


def _towards_the_lowest(family: Family, name: str, rows: Sequence[str]) -> Iterable[NextStep]:
    """Return the command that compares the rows that may be the lowest with each other."""
    groups = {row.group_id for arm in family.arms for row in arm.runs}
    other = next((row for row in rows if re.fullmatch(r"\S+=\S+", row) and row != _label(family.baseline)), "")
    if name == family.by and other and len(groups) == 1 and None not in groups and not family.is_chosen:
        command = f"compare them: mpsq report g{min(filter(None, groups))} --vs {quote(other)} --by {quote(name)}"
        yield NextStep(command, command)


def _label(arm: Arm | None) -> str:
    return arm.label if arm is not None else ""


def row_answers(family: Family, name: str) -> Iterable[str]:
    """Say the answers on a metric: one sentence for the rows that are compared with the same one. Where no row has a
    word, only the largest difference."""
    distinct = {frozenset((pair.arm, pair.baseline)): pair for pair in (*family.twins, *family.pairs)}
    judged = sorted(
        (pair for pair in distinct.values() if name in pair.metrics),
        key=lambda pair: pair.baseline is not family.baseline,
    )
    decided = [pair for pair in judged if pair.metrics[name].decided]
    largest = sorted(judged, key=lambda pair: -abs(pair.metrics[name].change))[:1]
    for pairs in by_key(judged if decided else largest, lambda pair: pair.baseline).values():
        if len(pairs) == 1:
            yield _metric_answer(family, name, pairs[0])
        elif any(pair in decided for pair in pairs):
            yield _metric_answers(name, pairs)


def _metric_answers(name: str, pairs: Sequence[Pair]) -> str:
    """Say the answers on rows that are compared with one baseline; rows without a word come last."""
    decided = [pair for pair in pairs if pair.metrics[name].decided]
    undecided = [
        f"{pair.arm.label} ({_difference(pair.metrics[name])[0]})" for pair in pairs if not pair.metrics[name].decided
    ]
    rows: list[str] = []
    answers = [(pair.arm.label, pair.metrics[name]) for pair in decided[:MOST_PAIRS]]
    for label, answer in answers:
        difference, interval = _difference(answer)
        limits = f" ({interval.removeprefix('95 % CI ')})" if interval else ""
        rows.append(f"{label} {difference}{limits}")
    if len(decided) > MOST_PAIRS:
        rows.append(units.counted(len(decided) - MOST_PAIRS, "more row"))
    if undecided:
        rows.append(f"undecided: {units.listed(undecided, MOST_FACTORS)}")
    base = f"{pairs[0].baseline.label} ({_metric_values(decided[0].metrics[name])[1]})"
    return f"{name} against {base} (95 % CI): {'; '.join(rows)}"


def _metric_values(answer: Verdict) -> list[str]:
    """Return the values of an arm and its baseline, with the digits that the interval needs."""
    return [
        units.measured(x, answer.low, answer.high, least=units.VALUE_DIGITS) for x in (answer.value, answer.baseline)
    ]


def _difference(answer: Verdict) -> tuple[str, str]:
    """Return the difference in words, "0.20 higher" or "the same within 0.1", and its interval in that direction."""
    if answer.word is Word.SAME:
        return str(answer), answer.interval
    size = answer.difference()
    if answer.change > 0:
        return f"{size} higher", answer.interval
    return f"{size} lower", answer.mirrored().interval


def _metric_answer(family: Family, name: str, pair: Pair) -> str:
    arm, base, answer = pair.arm.label, pair.baseline.label, pair.metrics[name]
    if run_metrics.is_loss(name) and answer.word is Word.HIGHER:
        arm, base, answer = base, arm, answer.mirrored()
    difference, interval = _difference(answer)
    if answer.word is Word.SAME:
        text = f"{name} of {arm} and {base} is {difference}"
    elif not (answer.decided or difference.partition(" ")[0].strip("0.")):
        text, interval = f"{name} of {arm} and {base} may be equal", answer.interval
    else:
        text = f"{name} of {arm} {'is' if answer.decided else 'was'} {difference} than that of {base}"
    repeated = answer.why and answer.why in (family.metrics[name], pair.verdict.why)
    needs = "" if answer.decided or repeated else answer.next_step
    limits = [] if family.metrics[name] else [interval, answer.rounds]
    if answer.why:
        limits, needs = [*limits, needs], ""
    return _sentence(f"{text}, {' vs '.join(_metric_values(answer))}", limits, needs, decided=answer.decided)


def _sentence(text: str, limits: Sequence[str], needs: str = "", *, decided: bool) -> str:
    """Return a result with its limits; one without a verdict begins with that, and ends with the rounds it `needs`."""
    measured, whole = (
        text + (f" ({', '.join(known)})" if (known := [*filter(None, parts)]) else "")
        for parts in (limits, [*limits, needs])
    )
    return measured if decided else Undecided(f"undecided: {whole}", measured)


def without_words(family: Family) -> Iterable[str]:
    """Say on which metrics there can be no verdict, and why."""
    names = [name for name, obstacle in family.metrics.items() if obstacle]
    for obstacle, same in by_key(names, family.metrics.__getitem__).items():
        text = f"no verdict on {', '.join(same)}: {obstacle}"
        compared = any(name in pair.metrics for name in same for pair in (*family.pairs, *family.twins))
        yield text if compared or family.named.intersection(same) else Caveat(text)


def ratio(pair: Pair, per_work: str, compiling: bool = False) -> str:
    """Say which of two arms is faster, with the limits of the result: "is" marks a verdict, "was" none. About a
    compiled arm, say what compilation does to it."""
    verdict = pair.verdict
    slower = pair.ratio < 1 and verdict.word is not Word.SAME
    stated = verdict.mirrored() if slower else verdict
    if equal := not verdict.decided and units.ratio(stated.change) == units.ratio(1.0):
        slower, stated = False, verdict
    times, per = stated.ratio, f" per {per_work}" if per_work not in ("", WALL) else ""
    compared = [(pair.arm, verdict.value), (pair.baseline, verdict.baseline)]
    if verdict.word is Word.SAME:
        text = f"{pair.arm.label} and {pair.baseline.label} are {verdict}: {times}{per}"
    elif equal:
        text = f"{pair.arm.label} was about as fast{per} as {pair.baseline.label}"
    elif compiling:
        how = f"{'slower' if slower else 'faster'}{per}"
        it = without_mode(pair.baseline)
        mode = pair.arm.key.get("compile")
        by = f"compile {mode}" if isinstance(mode, str) else "compile"
        ours = f"{it} {mode_word(mode)}".removeprefix("it ")
        decided = f"{by} makes {it} {times} {how}"
        text = decided if verdict.decided else f"{ours} was {times} {how} than eager"
    else:
        compared = compared[::-1] if slower else compared
        (first, _), (second, _) = compared
        text = f"{first.label} {'is' if verdict.decided else 'was'} {times} faster{per} than {second.label}"
    if per_work == WALL:
        numbers = f", {' vs '.join(units.without_spread(x, row.spread_s[0]) for row, x in compared)} s"
    elif not per_work:
        values = (units.without_spread(x, row.spread_s[0], 1e-3) for row, x in compared)
        numbers = f", {' vs '.join(values)} ms/iter"
    else:
        a, b = (units.number(1 / time) for _, time in compared)
        numbers = f", {a} vs {b} {per_work}s/s"
    return _sentence(text + numbers, [stated.interval, stated.rounds], decided=stated.decided)


def without_mode(arm: Arm) -> str:
    """Return the label of an arm without its mode: "mps" of "mps eager"."""
    return " ".join(part for part in arm.label.split(" ") if not is_mode(part)) or "it"


def _twin_costs(pair: Pair) -> Iterable[str]:
    """Report the costs of compilation: in the first iteration, in the real time."""
    arm, twin = pair.arm, pair.baseline
    cost_s = arm.compile_cost_s(twin, arm.main_cache)
    if cost_s is not None and cost_s > 0:
        after = arm.break_even_iters(twin, cost_s)
        pays = ""
        if pair.pays_off and after is not None:
            pays = f" and pays off after {units.count(after)} iterations"
        elif pair.verdict.word is Word.SLOWER:
            pays = " and never pays off"
        on_mps = any(row.device == "mps" for row in arm.shown)
        cache = (
            f"compiler cache {arm.main_cache}; state of Metal's cache unknown" if on_mps else f"{arm.main_cache} cache"
        )
        first = f"in the first iteration ({cache})"
        in_mode = f" in {mode}" if isinstance(mode := arm.key.get("compile"), str) else ""
        row = without_mode(twin)
        what = "compiling" if row == "it" else f"compiling for {row}"
        yield f"{what}{in_mode} costs {units.duration(cost_s)} {first}{pays}"
    real, twin_real = arm.median("real_s"), twin.median("real_s")
    if not real or not twin_real or arm.median("n_iters") != twin.median("n_iters"):
        return
    if _far(real / twin_real, 1 / pair.ratio, NOTABLE):  # without their ratio: real times have no interval
        yield (
            f"real time of a run (median): {tenths(real)} s of {arm.label}, {tenths(twin_real)} s of {twin.label}; the"
            " ratio of iteration times differs"
        )


def _far(a: float, b: float, factor: float) -> bool:
    return a > b * factor or b > a * factor


def tenths(x_s: float) -> str:
    """Format seconds to a tenth, with thousands separators: "1,255.9"; below 1 s with two significant digits."""
    rounded = round(x_s, 1) if x_s >= 1 else x_s
    return units.number(rounded, len(str(int(rounded))) + 1)


def _step0(arms: Sequence[Arm], step0: Step0) -> Iterable[str]:
    """Report whether rows start with the same loss: a wrong computation has no speed. Rows with another
    known batch size begin with other data, and those with other work an iteration with another model."""
    work = {arm: (arm.work("token"), arm.work("sample"), arm.median("flops_per_iter")) for arm in arms}
    unknown = any(amounts[:2] == (None, None) for amounts in work.values())
    for alike in [arms] if unknown else by_key(arms, work.__getitem__).values():
        yield from _same_start(alike, step0)


def _same_start(arms: Sequence[Arm], step0: Step0) -> Iterable[str]:
    known = {arm: step0[row.run_id] for arm in arms for row in reversed(arm.shown) if row.run_id in step0}
    names = [name for name in ("on the device", "val", "train") if sum(name in first for first in known.values()) > 1]
    if not names:
        return
    name = names[0]
    losses = [(arm, first[name]) for arm, first in known.items() if name in first]
    values = [value for _, value in losses]
    dtypes = {row.dtype for arm, _ in losses for row in arm.shown[:1]}
    tolerance = max(STEP0_TOLERANCE.get(str(dtype), REDUCED_TOLERANCE) for dtype in dtypes)
    off = (max(values) - min(values)) / max(min(abs(value) for value in values), 1e-12)
    tolerated = units.percent(tolerance, 1)
    if off <= tolerance:
        spread = units.loss(min(values))
        if units.loss(max(values)) != spread:
            spread = f"{spread} to {units.loss(max(values))}"
        some = "" if len(losses) == len(arms) else f", {len(losses)} of {len(arms)} rows known"
        yield Finding(f"losses before the first step agree within {tolerated}: {spread} ({name}){some}")
        return
    each = ", ".join(f"{units.loss(value)} {arm.label}" for arm, value in losses)
    differ = f"losses before the first step differ by {units.percent(off, 2)}"
    yield Caveat(differ, f" (tolerance {tolerated}; {name}): {each}; one of the rows may be wrong")


def not_falling(arms: Sequence[Arm]) -> Iterable[str]:
    """Report arms whose loss did not decrease: the speed of a run that does not learn is useless."""
    for arm in arms:
        if arm.key.get("resumed") or not all(learns(row.workload) for row in arm.shown):
            continue  # the loss may have fallen in the part of another run, or has no trend
        first, last, n = arm.median("loss_first"), arm.median("loss_last"), arm.median("n_iters") or 0
        if first is not None and last is not None and n >= 10 and last >= first:
            yield f"the loss of {arm.label} did not decrease: first {units.loss(first)}, last {units.loss(last)}"


def others_that_differ(family: Family) -> Iterable[str]:
    """Report factors that differ along with those in the labels: a ratio is not due to device and mode alone."""
    arms = [arm for arm in family.arms if arm.times]
    names = [
        name
        for name in (arms[0].key if len(arms) > 1 else ())
        if name not in (*MAIN, "device_name")
        and len({arm.key[name] for arm in arms}) > 1
        and any(word(name, arm.key[name]) not in arm.label for arm in arms)
    ]
    if names:
        named = [factor_name(name, arms) for name in names[:MOST_FACTORS]]
        named += [f"{len(names) - MOST_FACTORS} more"] if len(names) > MOST_FACTORS else []
        factors = " and ".join(filter(None, [", ".join(named[:-1]), named[-1]]))
        known = ([arm.key[name] for name in names[:MOST_FACTORS]] for arm in arms)
        values = (", ".join(UNSET if value is None else str(value) for value in some) for some in known)
        each = (f"{arm.label}: {text}" for arm, text in zip(arms, values, strict=True))
        yield Caveat(f"the rows also differ in {factors}", f" ({'; '.join(each)})")
