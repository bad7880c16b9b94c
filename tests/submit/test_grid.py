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


@given(st.integers(1, 12), st.integers(1, 6), st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_every_round_runs_every_cell_once(cells: int, repeats: int, seed: int) -> None:
    order = run_order.interleave(cells, repeats, seed)
    assert Counter(order) == Counter({(cell, repeat): 1 for cell in range(cells) for repeat in range(1, repeats + 1)})
    assert [repeat for _, repeat in order] == sorted(repeat for _, repeat in order)
    assert order == run_order.interleave(cells, repeats, seed)


def test_rounds_are_shuffled_each_anew() -> None:
    order = [cell for cell, _ in run_order.interleave(8, 6, seed=1)]
    rounds = [tuple(order[n : n + 8]) for n in range(0, 48, 8)]
    assert len(set(rounds)) > 1 and order != [cell for cell, _ in run_order.interleave(8, 6, seed=2)]


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
