"""The table of tests/gpu_against_train.py, which runs where a GPU is lent."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gpu_against_train import less, table

pytestmark = pytest.mark.fast


def row(name: str, real: list[float], cpu: list[float], ms: list[float]) -> dict[str, Any]:
    counts = {"iterations": [60] * len(real), "evaluations": [1] * len(real)}
    return {"name": name, "real": real, "cpu": cpu, "ms": ms, "taints": [], **counts}


def test_ratios_are_of_medians_with_the_interval_of_the_runs() -> None:
    ours = row("gpt2 eager ours", [5.1, 5.2, 5.3, 5.2], [8.0, 8.1, 8.2, 8.1], [32.0, 32.1, 32.2, 32.1])
    theirs = row("gpt2 eager train.py", [5.0, 5.0, 5.1, 4.9], [8.0, 8.1, 8.0, 8.2], [33.0, 33.2, 33.1, 33.1])
    *_, last = table([ours, theirs])
    name, real, cpu, ms = last.strip("| ").split(" | ")
    assert name == "gpt2 eager"
    assert real.startswith("1.040 (") and cpu.startswith("1.006 (0.9") and ms.startswith("0.970 (0.96")
    assert "| gpt2 eager ours | 4 | 60 | 1 | 5.20 ± 0.05 |" in "\n".join(table([ours, theirs]))


def test_what_was_not_measured_is_a_dash() -> None:
    ours = row("gpt2 eager ours", [5.1], [8.0], [32.0])
    theirs = row("gpt2 eager train.py", [], [], [])
    lines = table([ours, theirs])
    assert lines[-1] == "|---|---|---|---|" and "| gpt2 eager train.py | 0 | - | - | - | - | - |" in lines
    few = table([ours, row("gpt2 eager train.py", [5.0], [-0.1], [33.0])])
    assert few[-1] == "| gpt2 eager | 1.020 | - | 0.970 |"


def test_imports_are_the_median_of_their_runs() -> None:
    runs = [{"real_s": real_s, "user_s": 2.0, "sys_s": 0.5} for real_s in (3.0, 9.0, 3.2)]
    assert less(runs) == {"real": 3.2, "cpu": 2.5} and less([]) == {"real": 0.0, "cpu": 0.0}
