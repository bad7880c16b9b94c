"""Grids: which cells, in which order."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queue_runner.errors import UsageError
from queue_runner.submit import grid, run_order


def test_product_varies_the_last_axis_fastest() -> None:
    assert grid.product({"a": [1, 2], "b": "xy"}) == [
        {"a": 1, "b": "x"},
        {"a": 1, "b": "y"},
        {"a": 2, "b": "x"},
        {"a": 2, "b": "y"},
    ]
    assert grid.product({}) == [{}]


def test_a_grid_that_no_memory_holds_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="160,000 jobs are too many"):
        grid.product({"a": range(400), "b": range(400)})


@given(st.integers(1, 12), st.integers(1, 6), st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_every_round_runs_every_cell_once(cells: int, repeats: int, seed: int) -> None:
    order = run_order.rounds([repeats] * cells, seed)
    assert Counter(order) == Counter({(cell, repeat): 1 for cell in range(cells) for repeat in range(1, repeats + 1)})
    assert [repeat for _, repeat in order] == sorted(repeat for _, repeat in order)
    assert order == run_order.rounds([repeats] * cells, seed)


@given(st.integers(1, 12), st.integers(1, 9), st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_an_even_round_reverses_the_odd_one_before(cells: int, number: int, seed: int) -> None:
    odd = 2 * number - 1
    assert run_order.round_order(cells, odd + 1, seed) == run_order.round_order(cells, odd, seed)[::-1]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=9), st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_rounds_added_later_continue_the_order(repeats: list[int], seed: int) -> None:
    """Cells with fewer repeats leave the others in their order, and in mirrored pairs."""
    order = run_order.rounds(repeats, seed)
    more = run_order.rounds([n + 2 for n in repeats], seed)
    assert [(cell, n) for cell, n in more if n <= repeats[cell]] == order
    for number in range(1, max(repeats) + 1):
        expected = [cell for cell in run_order.round_order(len(repeats), number, seed) if repeats[cell] >= number]
        assert [cell for cell, n in order if n == number] == expected


def test_each_pair_of_rounds_draws_its_own_order() -> None:
    odd = [tuple(run_order.round_order(8, number, seed=1)) for number in range(1, 20, 2)]
    assert len(set(odd)) == len(odd)
    assert odd[0] != tuple(run_order.round_order(8, 1, seed=2))
    firsts = Counter(run_order.round_order(2, number, seed)[0] for number in (1, 3) for seed in range(200))
    assert min(firsts.values()) > 160  # of 400


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("cpu", ("cpu",)),
        ("cpu, mps,cpu", ("cpu", "mps")),
        ("cuda:1,cuda:12", ("cuda:1", "cuda:12")),
        ("auto", ("auto",)),
    ],
)
def test_devices(text: str, devices: tuple[str, ...]) -> None:
    assert grid.devices(grid.names(text, "--device")) == devices


@pytest.mark.parametrize("text", ["", "gpu", "cpu,", "cuda:", "cuda:x", "mps:0", "CPU", "cuda:-1", "cpu;mps"])
def test_no_such_device(text: str) -> None:
    with pytest.raises(UsageError):
        grid.devices(grid.names(text, "--device"))


@pytest.mark.parametrize(
    ("text", "modes"),
    [("on", [True]), ("off", [False]), ("both", [False, True]), ("True", [True]), ("False,on", [False, True])],
)
def test_compiles(text: str, modes: list[bool]) -> None:
    assert grid.compiles(grid.names(text, "--compile")) == modes


def test_no_such_mode_or_dtype() -> None:
    for call in (grid.compiles, grid.dtypes):
        with pytest.raises(UsageError):
            call(["sometimes"])
    assert grid.dtypes(["fp32", "bf16"]) == ["fp32", "bf16"]


def test_dtypes_are_those_of_the_workload() -> None:
    assert grid.dtypes(["fp64", "fp32"], ["fp32", "fp64"]) == ["fp64", "fp32"]
    with pytest.raises(UsageError, match="fp64"):
        grid.dtypes(["fp64"])
