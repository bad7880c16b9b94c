"""The tables of docs/simulations.md on words and intervals: wrong words, coverage, rounds needed. Seeded; minutes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations

import numpy as np

from queue_runner.analysis.intervals import ClosedRound, all_pairs, close_rounds, lopsided
from tests.simulate import machines
from tests.simulate.looks import ABOVE, BELOW, SAME, Looks, looks, running_intervals
from tests.simulate.machines import AUTOREGRESSIVE, COURSES, NOISES, PERSISTENT, Array, differences, rng_of, values

N_FAMILIES = 4_000
N_ROUNDS = 24
SIZES = (2, 4, 12)
"""Rows, with the baseline."""
RATIOS = (1.0, 10.0)
LIMIT = 0.06
"""A cell whose upper limit is above this is bold."""
Z_99 = 2.576


def upper(share: float, n: int) -> float:
    """Return the upper end of Wilson's 99 % interval of a simulated share (Wilson 1927, JASA 22, 209-212)."""
    z2 = Z_99**2
    centre = share + z2 / (2 * n)
    return (centre + Z_99 * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))) / (1 + z2 / n)


def rate(wrong: Array) -> str:
    """Return a share in per cent; bold if its upper limit is above LIMIT."""
    share = float(np.mean(wrong))
    text = f"{100 * share:.1f}"
    return f"**{text}**" if upper(share, np.size(wrong)) > LIMIT else text


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [head, ["---"] + ["--:"] * (len(head) - 1), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _different(answers: Looks) -> Array:
    return answers.wrong(ABOVE, BELOW)


def by_noise(n: int = N_FAMILIES) -> str:
    """Return wrong words of equal rows at any look, and in brackets those that still stand after 24 rounds."""
    head = ["noise", *(f"{k} rows{', spread 10' * (ratio > 1)}" for k in SIZES for ratio in RATIOS)]
    lines = []
    for name in (*NOISES, AUTOREGRESSIVE, *PERSISTENT):
        cells = []
        for k in SIZES:
            for ratio in RATIOS:
                answers = looks(differences(values(name, n, N_ROUNDS, k, ratio)))
                stand = 100 * float(np.mean(answers.standing(ABOVE, BELOW)))
                cells.append(f"{rate(_different(answers))} ({stand:.1f})")
        lines.append([name, *cells])
    return table(head, lines)


RARE = ("two levels 50:50", "two levels 80:20", "exponential", "5 % outliers of one sign, 10 sd")


def known(n: int = N_FAMILIES) -> str:
    """Return the same for the noises that mislead, where nothing is known of the rows, or that they have levels."""
    head = ["noise, spread 10", *(f"{way}, {k} rows" for way in ("nothing", "levels") for k in SIZES)]
    lines = []
    for name in RARE:
        by_rows = [differences(values(name, n, N_ROUNDS, k, 10.0)) for k in SIZES]
        answers = [looks(d, levels=levels) for levels in (False, True) for d in by_rows]
        lines.append([name, *(rate(_different(answer)) for answer in answers)])
    return table(head, lines)


def by_course(n: int = N_FAMILIES // 2) -> str:
    """Return wrong words by what the machine adds, for three orders of the runs."""
    cells = [*(("mirrored", k) for k in SIZES), *((how, k) for how in ("random", "fixed") for k in SIZES[:2])]
    lines = []
    for course in COURSES:
        answers = [looks(differences(values("normal", n, N_ROUNDS, k, course=course, how=how))) for how, k in cells]
        lines.append([course, *(rate(_different(answer)) for answer in answers)])
    head = ["machine", *(f"{how}, {k} rows" for how, k in cells)]
    return table(head, lines)


ORDERS: Mapping[str, Callable[[np.random.Generator, int], Array]] = {
    "ABBA": lambda rng, n: np.resize([True, False, False, True], n),
    "random": lambda rng, n: rng.random(n) < 0.5,
    "AABB": lambda rng, n: np.resize([True, True, False, False], n),
}


def without_rounds(n: int = N_FAMILIES // 2) -> str:
    """Return wrong words on runs without planned rounds, which the closing rule puts into rounds."""
    head = ["order", "machine", *(f"{runs} runs" for runs in (8, 24, 48))]
    lines = []
    for name, machine in ((name, machine) for name in ORDERS for machine in ("still", AUTOREGRESSIVE)):
        cells = []
        for runs in (8, 24, 48):
            wrong = closed_wrong(name, machine, runs, n)
            cells.append(rate(wrong))
        lines.append([name, machine, *cells])
    return table(head, lines)


def closed_wrong(order: str, machine: str, runs: int, n: int) -> Array:
    """Return which families of two equal rows get a word at any look at which their order is balanced."""
    rng = rng_of("closing", order, machine, runs)
    noise = machines.autoregressive(rng, n, runs) if machine == AUTOREGRESSIVE else rng.standard_normal((n, runs))
    wrong = np.zeros(n, dtype=bool)
    by_length: dict[int, list[tuple[int, list[ClosedRound]]]] = defaultdict(list)
    for family in range(n):
        is_row = ORDERS[order](rng, runs)
        mine, theirs = ([(at, float(noise[family, at])) for at in np.flatnonzero(mask)] for mask in (is_row, ~is_row))
        closed = close_rounds(mine, theirs)
        by_length[len(closed)].append((family, closed))
    for members in by_length.values():
        gaps = np.array([[closed.difference for closed in rounds] for _, rounds in members])
        words = looks(gaps[:, :, None]).words[:, :, 0]
        firsts = np.array([[closed.row_first for closed in rounds] for _, rounds in members])
        share = firsts.cumsum(1) / np.arange(1, firsts.shape[1] + 1)
        balanced = (share >= 1 / 3 - 1e-9) & (share <= 2 / 3 + 1e-9)
        wrong[[family for family, _ in members]] = ((words != 0) & balanced).any(1)
    return wrong


def uses(n: int = N_FAMILIES) -> str:
    """Return wrong words in ordinary uses of equal rows with normal noise, and with uniform noise of spread 10."""
    head = ["use", *(f"{k} rows{', uniform, spread 10' * (ratio > 1)}" for k in SIZES for ratio in RATIOS)]
    kinds: Mapping[str, Callable[[Array], Array]] = {
        "a look after each round": lambda v: _different(looks(differences(v))),
        "5 metrics": lambda v: _metrics(v, 5),
        "another baseline, chosen last": _any_baseline,
        "two rows shown, whichever": _pairs_shown,
        "slow runs of one row left out": _left_out,
    }
    lines = []
    for name, kind in kinds.items():
        cells = []
        for k in SIZES:
            for ratio in RATIOS:
                noise = "uniform" if ratio > 1 else "normal"
                cells.append(rate(kind(values(noise, n, N_ROUNDS, k, ratio))))
        lines.append([name, *cells])
    return table(head, lines)


def _metrics(first: Array, n_metrics: int) -> Array:
    """Metrics of the same runs: the first, and others that share half of its variance."""
    n_families, _, n_rows = first.shape
    wrong = _different(looks(differences(first), n_metrics * (n_rows - 1)))
    for metric in range(1, n_metrics):
        other = first[rng_of("metric", metric, first.shape).permutation(n_families)]
        answers = looks(differences((first + other) / math.sqrt(2)), n_metrics * (n_rows - 1))
        wrong = wrong | _different(answers)
    return wrong


def _any_baseline(v: Array) -> Array:
    wrong = np.zeros(len(v), dtype=bool)
    rows = v.shape[-1]
    for baseline in range(rows):
        order = [baseline, *(row for row in range(rows) if row != baseline)]
        wrong |= _different(looks(differences(v[..., order]), all_pairs(rows)))
    return wrong


def _pairs_shown(v: Array) -> Array:
    """`compare` of any two rows alone: no other row lends its variance."""
    wrong = np.zeros(len(v), dtype=bool)
    for a, b in combinations(range(v.shape[-1]), 2):
        wrong |= _different(looks(v[..., [b]] - v[..., [a]], all_pairs(v.shape[-1])))
    return wrong


def _left_out(v: Array) -> Array:
    """Each run of the first row that is slower than 0.8 sd is left out; a word only where the loss is not lopsided."""
    wrong = np.zeros(len(v), dtype=bool)
    slow = v[..., 1] > 0.8 * v[..., 1].std()
    for length in range(3, v.shape[1] + 1):
        vanished = slow[:, :length].sum(1)
        for lost in range(length - 2):
            chosen = np.flatnonzero((vanished == lost) & ~slow[:, length - 1])
            if lopsided(lost, 0, length) or not len(chosen):
                continue
            rows = np.stack([v[family, :length][~slow[family, :length]] for family in chosen])
            wrong[chosen] |= looks(differences(rows[..., :2]), v.shape[-1] - 1).standing(ABOVE, BELOW)
    return wrong


def coverage(n: int = N_FAMILIES) -> str:
    """Return how often an interval at any look excludes the truth, and false words of equivalence after 60 rounds."""
    head = ["noise", *(f"{k} rows" for k in SIZES), *(f"the same, {k} rows" for k in SIZES)]
    lines = []
    for name, ratio in ((name, ratio) for name in ("normal", "uniform", "exponential") for ratio in RATIOS):
        excluded, same = [], []
        for k in SIZES:
            answers = looks(differences(values(name, n, N_ROUNDS, k, ratio)))
            excluded.append(rate(((answers.lows > 0) | (answers.highs < 0)).any((1, 2))))
            margin = 0.8 * ratio
            at_margin = differences(values(name, n // 2, 60, k, ratio)) + margin
            same.append(rate(looks(at_margin, margin=margin).wrong(SAME)))
        lines.append([f"{name}{', spread 10' * (ratio > 1)}", *excluded, *same])
    return table(head, lines)


def power(n: int = N_FAMILIES // 2) -> str:
    """Return the rounds needed: median; share decided by round 3, and by round 4."""
    head = ["effect", *(f"{k} rows" for k in SIZES)]
    lines = []
    for effect in (1, 2, 4, 10, 20, 30):
        cells = []
        for k in SIZES:
            v = values("normal", n, 100 if effect == 1 else 40, k)
            v[..., 1] += effect
            first = looks(differences(v)).first()
            shares = " ".join(f"{100 * float(np.mean(first <= by)):.0f} %" for by in (3, 4))
            cells.append(f"{np.median(first):.0f}; {shares}")
        lines.append([f"{effect} sd", *cells])
    v = values("normal", n, 60, 4)
    v[..., 1] += 4.0
    v[..., 2] *= 10
    first = looks(differences(v)).first()
    lines.append(["4 sd, another row 10 x as noisy", "", f"{np.median(first):.0f}", ""])
    for margin in (2.0, 4.0, 10.0):
        cells = []
        for k in SIZES:
            answers = looks(differences(values("normal", n // 2, 60, k)), margin=margin)
            given = (answers.words == SAME)[:, :, 0]
            first = np.where(given.any(1), given.argmax(1) + 1, 61)
            cells.append(f"{np.median(first):.0f}; {100 * float(np.mean(first <= 4)):.0f} % by 4")
        lines.append([f"equal, the same within {margin:.0f} sd", *cells])
    return table(head, lines)


def withdrawn(n: int = N_FAMILIES // 2) -> str:
    """Return how often a right word is withdrawn by 24 rounds, or gets an interval that holds zero, by effect."""
    head = ["effect, 2 rows", "word by 24", "withdrawn", "interval of the last look alone holds zero"]
    lines = []
    for effect in (0.5, 1, 2, 4, 10):
        d = differences(values("normal", n, N_ROUNDS, 2)) + effect
        answers = looks(d)
        given = (answers.words == ABOVE).any((1, 2))
        lost = ((answers.words[:, 1:] != ABOVE) & (answers.words[:, :-1] == ABOVE)).any((1, 2))
        plain = _plain(d)
        after = np.maximum.accumulate(answers.words[:, :, 0] == ABOVE, 1)
        holds = (after & ~plain).any(1)
        lines.append([f"{effect} sd", *(f"{100 * float(np.mean(x)):.1f}" for x in (given, lost, holds))])
    return table(head, lines)


def _plain(d: Array) -> Array:
    means, half_widths = running_intervals(d)
    return np.abs(means[..., 0]) > half_widths[..., 0]


CORRELATIONS = (0.0, 0.1, 0.2, 0.4, 0.8)
"""Share of the variance of a round's difference that is its machine's own."""
N_MACHINES = (2, 4, 20)
N_DRAWS = 40
"""How often the machines of the rounds are drawn, each time for as many families."""


def on_machines(
    n_machines: int, correlation: float, n_rows: int, n: int, effect: float = 0.0
) -> list[tuple[Array, Array]]:
    """Return differences of rows that differ by `effect` on the average machine, and the machine of each round."""
    rng = rng_of("machines", n_machines, correlation, n_rows)
    drawn = []
    for _ in range(N_DRAWS):
        machine = rng.integers(n_machines, size=N_ROUNDS)
        shift = math.sqrt(correlation / (1 - correlation)) * rng.standard_normal((n // N_DRAWS, n_machines, n_rows))
        runs = rng.standard_normal((n // N_DRAWS, N_ROUNDS, n_rows)) + shift[:, machine]
        drawn.append((differences(runs) + effect, machine))
    return drawn


def _unit(machine: Array, unit: str) -> Array | None:
    """Return the machines as the unit, or None for rounds: those of one machine always are."""
    return machine if unit == "machine" and len({*machine}) > 1 else None


def by_machine(n: int = N_FAMILIES) -> str:
    """Return wrong words of rows that are equal on the average machine, for two units."""
    cells = [(k, n_rows) for n_rows in SIZES[:2] for k in N_MACHINES]
    lines = []
    for unit in ("round", "machine"):
        for correlation in CORRELATIONS:
            line = [f"{unit}, {correlation:g}"]
            for k, n_rows in cells:
                drawn = on_machines(k, correlation, n_rows, n)
                wrong = [_different(looks(d, machines=_unit(machine, unit))) for d, machine in drawn]
                line.append(rate(np.concatenate(wrong)))
            lines.append(line)
    return table(["unit, correlation", *(f"{k} machines, {n_rows} rows" for k, n_rows in cells)], lines)


def power_by_machine(n: int = N_FAMILIES // 2) -> str:
    """Return the share of right words by 24 rounds, and the median round of the first one, for both units."""
    lines = []
    for effect in (1, 2, 4, 10):
        line = [f"{effect} sd"]
        for unit in ("round", "machine"):
            for k in N_MACHINES[1:]:
                drawn = on_machines(k, 0.0, 2, n, float(effect))
                first = np.concatenate([looks(d, machines=_unit(machine, unit)).first() for d, machine in drawn])
                decided = 100 * float(np.mean(first <= N_ROUNDS))
                line.append(f"{decided:.0f} %; {np.median(first):.0f}" if decided > 50 else f"{decided:.0f} %")
        lines.append(line)
    heads = [f"{unit}, {k} machines" for unit in ("round", "machine") for k in N_MACHINES[1:]]
    return table(["effect, 2 rows", *heads], lines)


TABLES: Mapping[str, Callable[[], str]] = {
    "looks-noise": by_noise,
    "looks-known": known,
    "looks-courses": by_course,
    "looks-closing": without_rounds,
    "looks-uses": uses,
    "looks-coverage": coverage,
    "looks-power": power,
    "looks-withdrawn": withdrawn,
    "looks-machines": by_machine,
    "looks-machines-power": power_by_machine,
}
