"""The tables of docs/simulations.md on verdicts: false alarms, coverage, power, equivalence, looks. Seeded; minutes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np

from queue_runner.analysis import confidence_interval
from tests.simulate import verdicts as sim
from tests.simulate.verdicts import ALPHA, FAMILIES, N_TRIALS, SIZES, SPREADS, Cell, Draw, percent, rng_of

COURSES = ("still", "drifting", "AR(1) 0.9", "AR(1) 0.5")
ROUNDS = (4, 5, 6, 8, 10)
Key = tuple[tuple[float, float], tuple[int, int], int]


def cells(name: str, draw: Draw | None, n: int = N_TRIALS, of: Sequence[tuple[int, int]] = SIZES) -> dict[Key, Cell]:
    """Return the counts of a shape by spreads, sizes and number of pairs."""
    by_key = {}
    for spreads, size in product(SPREADS, of):
        pairs = sim.independent(draw, spreads, size, rng_of(name, spreads, size), n)
        ends = pairs.ends(ALPHA)
        for n_pairs in FAMILIES:
            by_key[spreads, size, n_pairs] = sim.counted(pairs, n_pairs, ends)
    return by_key


@cache
def _of(name: str) -> dict[Key, Cell]:
    return cells(name, sim.shapes()[name])


def symmetric() -> str:
    """Return the table of symmetric shapes, the worst of all spreads in each cell."""
    names = ("normal", *sim.SYMMETRIC)
    head = ["shape", "runs", *(f"{n} pair{'s' * (n > 1)}" for n in FAMILIES), "coverage"]
    lines = []
    for name, size in product(names, SIZES):
        by_key = {key: cell for key, cell in _of(name).items() if key[1] == size}
        worst = [sim.limit(cell for key, cell in by_key.items() if key[2] == n) for n in FAMILIES]
        covered = min(cell.coverage for cell in by_key.values())
        rates = [f"{percent(cell.rate)} ({percent(cell.upper)})" for cell in worst]
        lines.append([name, sim.words(size), *rates, percent(covered)])
    return _markdown(head, lines)


def skewed() -> str:
    """Return every cell of skewed and bimodal arms: the rates of families of 1, 4, 12 and 16 pairs."""
    head = ["shape", "spreads, %", *map(sim.words, SIZES)]
    lines = []
    for name, spreads in product(sim.SKEWED, SPREADS):
        by_key = _of(name)
        rates = [" · ".join(percent(by_key[spreads, size, n].rate) for n in FAMILIES) for size in SIZES]
        lines.append([name, _spreads(spreads), *rates])
    return f"{_markdown(head, lines)}\n\n{worst(sim.SKEWED)}"


def worst(names: Iterable[str]) -> str:
    """Name the worst cell of arms of unequal spread, and of equal ones."""
    every = [(cell.rate, name, key) for name in names for key, cell in _of(name).items()]
    alike = max(found for found in every if found[2][0][0] == found[2][0][1])
    apart = max(found for found in every if found[2][0][0] != found[2][0][1])
    each = [
        f"{text}: {percent(rate)} % ({name}, {_spreads(spreads)} %, {sim.words(size)} runs, {_pairs(n)})"
        for text, (rate, name, (spreads, size, n)) in (("equal spreads", alike), ("unequal spreads", apart))
    ]
    return f"Worst cell, {'; '.join(each)}."


def courses() -> str:
    """Return the table of interleaved arms on machines that change, and of arms that ran one after the other."""
    head = ["machine", "rounds", *(_pairs(n) for n in FAMILIES), "coverage", "2 % seen", "unpaired"]
    lines = []
    for kind, rounds in product(COURSES, ROUNDS):
        rates, covered = [], 1.0
        for n in FAMILIES:
            rows = []
            for spreads in ((0.01, 0.01), (0.03, 0.003), (0.003, 0.03)):
                rows.append(_in_rounds(kind, spreads, rounds, n))
            rates.append(sim.limit(rows))
            covered = min(covered, *(cell.coverage for cell in rows))
        shares = [_seen_in_rounds(kind, rounds, always) for always in (False, True)]
        shown = [f"{percent(cell.rate)} ({percent(cell.upper)})" for cell in rates]
        lines.append([kind, str(rounds), *shown, percent(covered), *shares])
    return _markdown(head, lines)


def _in_rounds(kind: str, spreads: tuple[float, float], rounds: int, n_pairs: int) -> Cell:
    """Return the counts of interleaved families: more of them where flips of signs decide, which come close to 5 %."""
    parts = 6 if 2.0 ** (1 - rounds) <= ALPHA / n_pairs else 1
    rows = []
    for part in range(parts):
        rng = rng_of(kind, rounds, n_pairs, spreads, part)
        pairs = sim.in_rounds(kind, spreads, rounds, n_pairs, rng, N_TRIALS // 2)
        rows.append(sim.counted(pairs, n_pairs, pairs.ends(ALPHA)))
    each = ((cell.n, cell.alarms, cell.covered, cell.intervals) for cell in rows)
    return Cell(*map(sum, zip(*each, strict=True)))


def _seen_in_rounds(kind: str, rounds: int, always_unpaired: bool) -> str:
    """Return the share in which one pair that differs by 2 %, spread 1 %, is called different."""
    n, spread = N_TRIALS, 0.01
    rng = rng_of("power", kind, rounds)
    arms, baseline = sim.logs_in_rounds(kind, (spread, spread), rounds, 1, rng, n)
    weigh = sim.unpaired if always_unpaired or rounds < 6 else sim.by_rounds
    pairs = weigh(arms + math.log(1.02), baseline)
    return percent(float((pairs.p[:, 0] <= ALPHA).mean()))


def one_after_the_other() -> str:
    """Return how often arms that ran one after the other would be called different if they were tested."""
    lines = []
    for phi, n in product((0.5, 0.9), (4, 6, 12)):
        machine = sim.machine_course(f"AR(1) {phi}", rng_of("apart", phi, n), N_TRIALS, 2 * n)
        pairs = sim.unpaired(machine[:, None, :n], machine[:, n:])
        lines.append([f"AR(1) {phi}", f"{n}/{n}", percent(float((pairs.p[:, 0] <= ALPHA).mean())), "0: no verdict"])
    return _markdown(["machine", "runs", "if tested", "as reported"], lines)


def power() -> str:
    """Return the share of true differences that get the right word, and of those that the line below a table names."""
    head = ["spreads, %", "runs", "pairs", "2 %", "5 %", "10 %", "100 %", "the difference named"]
    lines = []
    for spreads, size, n_pairs in product(
        ((0.01, 0.01), (0.03, 0.003)), ((4, 4), (5, 5), (6, 6), (8, 8), (12, 12), (6, 30)), (1, 4, 12)
    ):
        shares = [_power(spreads, size, n_pairs, effect) for effect in (0.02, 0.05, 0.1, 1.0, None)]
        lines.append([_spreads(spreads), sim.words(size), str(n_pairs), *shares])
    return _markdown(head, lines)


def _power(spreads: tuple[float, float], size: tuple[int, int], n_pairs: int, effect: float | None) -> str:
    n, (mine, theirs) = 1_000, size
    rng = rng_of("power", spreads, size, n_pairs)
    arms = spreads[0] * rng.standard_normal((n, n_pairs, mine))
    baseline = spreads[1] * rng.standard_normal((n, theirs))
    if effect is None:
        first = confidence_interval.unpaired([*(arms[0, 0])], [*baseline[0]])
        unequal = spreads[0] > confidence_interval.UNEQUAL * spreads[1]
        se = math.sqrt(spreads[0] ** 2 / mine + spreads[1] ** 2 / theirs)
        true = replace(first, se=se, widening=confidence_interval.widened(mine) if unequal else 1.0)
        shift = true.seen(ALPHA / n_pairs)
    else:
        shift = math.log1p(effect)
    arms[:, 0] += shift
    pairs = sim.unpaired(arms, baseline)
    return percent(float(sim.holm_rejects(pairs.p)[:, 0].mean()))


def equivalence() -> str:
    """Return how often arms that differ by just the margin, 1 %, are called the same, and equal arms."""
    head = ["spread, %", "runs", "pairs", "1 % apart", "equal", "equal, rounds"]
    lines = []
    for spread, n, n_pairs in product((0.003, 0.01), (4, 6, 8, 12), (1, 11)):
        shares = []
        for shift in (math.log(1.01), 0.0):
            rng = rng_of("same", spread, n, n_pairs, shift)
            arms = spread * rng.standard_normal((1_000, n_pairs, n)) + shift
            pairs = sim.unpaired(arms, spread * rng.standard_normal((1_000, n)), n_ends=n_pairs)
            trials = sim.same(pairs, n_pairs)
            shares.append(percent(float(trials.any(1).mean() if shift else trials[:, 0].mean())))
        rng = rng_of("same in rounds", spread, n, n_pairs)
        by = "-"
        if 2.0 ** (1 - n) <= ALPHA / n_pairs and n <= 10:
            arms = spread * rng.standard_normal((1_000, n_pairs, n))
            pairs = sim.by_rounds(arms, spread * rng.standard_normal((1_000, n)))
            by = percent(float(sim.same(pairs, n_pairs)[:, 0].mean()))
        lines.append([percent(spread), f"{n}/{n}", str(n_pairs), *shares, by])
    return _markdown(head, lines)


def looks() -> dict[int, float]:
    """Return, by the number of additions, how often equal arms get a verdict at some time: runs of both are added, 1 to
    10 at a time to 4 to 10 first ones, unpaired or in rounds, until there is one; the worst of these plans."""
    by_key = {}
    for most in (1, 2, 4, 9):
        shares = []
        for first, step, rounds in ((4, 1, False), (4, 4, False), (10, 10, False), (6, 1, True), (6, 6, True)):
            rng = rng_of("looks", most, first, step, rounds)
            xs = rng.standard_normal((4_000, 2, first + step * most))
            wrong = np.zeros(len(xs), dtype=bool)
            for n in range(first, first + step * most + 1, step):
                p = _p_in_rounds(xs[..., :n]) if rounds else sim.unpaired(xs[:, :1, :n], xs[:, 1, :n]).p[:, 0]
                wrong |= p <= ALPHA
            shares.append(float(wrong.mean()))
        by_key[most] = max(shares)
    return by_key


def _p_in_rounds(xs: sim.Array) -> sim.Array:
    """Return p of flips of signs; of 1,000 drawn ones beyond 10 rounds."""
    if xs.shape[-1] <= 10:
        return sim.by_rounds(xs[:, :1], xs[:, 1]).p[:, 0]
    ds = xs[:, 1] - xs[:, 0]
    signs = np.where(rng_of("signs", xs.shape[-1]).random((1_000, xs.shape[-1])) < 0.5, 1.0, -1.0)
    return (1 + (np.abs(ds @ signs.T) >= np.abs(ds.sum(-1, keepdims=True))).sum(-1)) / 1_001


def _looks() -> str:
    return _markdown(["additions", "wrong, %"], [[str(n), percent(share)] for n, share in looks().items()])


def attack() -> str:
    """Return the worst cells of shapes that nothing was chosen by."""
    head = ["shape", "spreads", *map(_pairs, FAMILIES)]
    sizes = ((4, 4), (6, 6), (4, 12))
    lines = []
    for name, draw in sim.UNTUNED.items():
        by_key = cells(f"attack {name}", draw, 2_000, sizes)
        for text, equal in (("equal", True), ("unequal", False)):
            chosen = {key: cell for key, cell in by_key.items() if (key[0][0] == key[0][1]) is equal}
            each = [sim.limit(cell for key, cell in chosen.items() if key[2] == n) for n in FAMILIES]
            lines.append([name, text, *(f"{percent(cell.rate)} ({percent(cell.upper)})" for cell in each)])
    return _markdown(head, lines)


def drifting_spread() -> str:
    """Return the same for interleaved arms whose spread grows fourfold while the machine drifts."""
    kind, lines = "heteroscedastic drift", []
    for rounds in ROUNDS:
        shown = []
        for n in FAMILIES:
            rows = []
            for spreads in ((0.01, 0.01), (0.03, 0.003)):
                rows.append(_in_rounds(kind, spreads, rounds, n))
            cell = sim.limit(rows)
            shown.append(f"{percent(cell.rate)} ({percent(cell.upper)})")
        lines.append([str(rounds), *shown])
    return _markdown(["rounds", *map(_pairs, FAMILIES)], lines)


TABLES: Mapping[str, Callable[[], str]] = {
    "verdicts-symmetric": symmetric,
    "verdicts-skewed": skewed,
    "verdicts-courses": courses,
    "verdicts-apart": one_after_the_other,
    "verdicts-power": power,
    "verdicts-same": equivalence,
    "verdicts-looks": _looks,
    "verdicts-attack": attack,
    "verdicts-drifting-spread": drifting_spread,
}


def _spreads(spreads: tuple[float, float]) -> str:
    return " and ".join(f"{100 * spread:g}" for spread in spreads)


def _pairs(n: int) -> str:
    return f"{n} pair{'s' * (n > 1)}"


def _markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    def row(values: Sequence[str]) -> str:
        return f"| {' | '.join(values)} |"

    def every() -> Iterator[str]:
        yield row(head)
        yield f"|{'---|' * 2}{'--:|' * (len(head) - 2)}"
        yield from map(row, lines)

    return "\n".join(every())
