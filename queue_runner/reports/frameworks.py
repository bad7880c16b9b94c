"""Comparison of frameworks on the same model and device: which is fastest, by how much, and do they train alike?"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from itertools import combinations

from msgspec.structs import replace

from queue_runner.analysis.comparison import Family, Pair, Question, n_words
from queue_runner.analysis.findings import describe, ratio
from queue_runner.analysis.grouping import word
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.analysis.rounds import Word, judge
from queue_runner.errors import UsageError
from queue_runner.monitor import answers
from queue_runner.monitor.answers import prepare, select_runs, sweeps
from queue_runner.monitor.answers.run_query import Context
from queue_runner.reports._common import losses
from queue_runner.reports._common.columns import columns
from queue_runner.reports._common.compared import NEWEST as NEWEST
from queue_runner.reports._common.compared import compared
from queue_runner.reports._common.document import Result
from queue_runner.reports._common.settings import effective
from queue_runner.spec import OF_TIME

NAME = "frameworks"
HELP = "which framework is fastest for the same model on the same device; do they train alike?"
READS = ("vs", "group_by", "iters")
SQL = f"SELECT {prepare.RUN}, data_sha256 FROM v_run WHERE {{chosen}} AND framework IS NOT NULL ORDER BY job_id, number"
COLUMNS = columns(
    "table workload config device device_name dtype label framework framework_version compile factors runs n_runs "
    "n_valid compared median_s spread_s spread_over tokens_per_s samples_per_s first_iter_s is_baseline speedup "
    "speedup_low speedup_high verdict undecided_because n_rounds given_after more_rounds same_within n_iters",
    "taints",
)


def finish(stored: list[ReportedRun], context: Context) -> Result:
    """Build a table for each device, dtype and question. Raises: UsageError when --vs or --group-by is invalid."""
    if context.options.group_by and "framework" not in context.options.group_by:
        raise UsageError("frameworks: --group-by must name framework", "--group-by framework,compile")
    rows, families = answers.compared(losses.add(prepare.windowed(stored, context), context), context, _asked)
    curves = cache(lambda run_id: losses.by_iteration(run_id, context))

    def sentences(family: Family) -> Iterable[str]:
        fastest = _fastest(family)
        yield from [_in_words(fastest, family)] if fastest else []
        yield from describe(family, {}, stated=fastest)
        yield from losses.wrong_losses(family, curves)
        yield from _last_losses(family, curves)
        yield from _differing_defaults(family, context)

    several = [f for f in families if len({arm.key["framework"] for arm in f.arms if arm.shown}) > 1]
    result = compared("mpsq report frameworks", COLUMNS, rows, several, sentences, context)
    if not several:
        which = "of a second framework for the same settings (mpsq submit nanogpt --framework torch,mlx,tinygrad,jax)"
        return replace(result, lines=[select_runs.nothing(context, which)])
    return result


def _asked(prepared: Iterable[ReportedRun], context: Context) -> tuple[list[ReportedRun], Question]:
    """Return how to compare: a family for each device and dtype, so that only frameworks and modes differ."""
    rows = sweeps.add(prepared, context, declared="name" in context.options.vs)
    question = prepare.question(rows, context)
    return rows, replace(question, settings=[*question.settings, "device", "dtype"])


def _fastest(family: Family) -> Pair | None:
    """Compare the two fastest, with the baseline as the table does. Else all pairs count as words, because the data
    chose these two."""
    if not family.pairs:
        return None
    speeds = {family.pairs[0].baseline: 1.0, **{pair.arm: pair.ratio for pair in family.pairs}}
    first, second, *others = sorted(speeds, key=speeds.__getitem__, reverse=True)
    if (pair := family.pair(first)) and pair.baseline is second:
        return pair
    if (pair := family.pair(second)) and pair.baseline is first:
        return Pair(first, second, pair.verdict.mirrored())
    pairs = combinations([first, second, *others], 2)
    words = n_words(family, each_with_each=True)
    return Pair(first, second, judge(pairs, words, family.per_work, family.aim.margins.get(OF_TIME))[first, second])


def _in_words(pair: Pair, family: Family) -> str:
    """Say which framework is the fastest, in which version and by how much."""
    version = " ".join(filter(None, [pair.arm.key["framework"], pair.arm.shown[0].framework_version]))
    if pair.verdict.word == Word.FASTER:
        return f"fastest ({version}): {ratio(pair, family.unit)}"
    needs = "" if pair.verdict.decided else f": {pair.verdict.next_step}"
    return f"measured as the fastest ({version}), {ratio(pair, family.unit)}{needs}"


def _last_losses(family: Family, curves: losses.Losses) -> Iterable[str]:
    """Say how far the rows' last losses are from the baseline's."""
    base = family.baseline
    others = [arm for arm in family.arms if base is not None and arm is not base]
    known = [(arm, last) for arm in others if base and (last := losses.last_losses(arm, base, curves))]
    if base and known:
        each = ", ".join(f"{arm.label} {losses.format_difference(losses.relative(*last))}" for arm, last in known)
        yield f"mean loss of the last tenth of the iterations, difference from {base.label}: {each}"


def _differing_defaults(family: Family, context: Context) -> Iterable[str]:
    """Warn of settings that differ without having been requested: defaults of the workload files."""
    reported = effective([arm.shown[0] for arm in family.arms if arm.shown], context)
    by_label = {arm.label: reported.get(arm.shown[0].run_id, {}) for arm in family.arms if arm.shown}
    for name in sorted({name for settings in by_label.values() for name in settings}):
        values = {label: settings[name] for label, settings in by_label.items() if name in settings}
        if len({str(value) for value in values.values()}) > 1:
            parts = ", ".join(f"{word(name, value)} ({label})" for label, value in values.items())
            yield f"warning: a setting differs by default: {parts}"
