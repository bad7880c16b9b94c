"""How many words the report train-vs-infer counts."""

from __future__ import annotations

import pytest

from queue_runner.reports.train_vs_infer import _judge
from tests.compare_support import ask, row

pytestmark = pytest.mark.fast


def test_metrics_with_words_make_its_intervals_wider() -> None:
    widths = []
    for names in ((), ("accuracy", "recall")):
        rows = [
            row(device, median_s=base * noise, seed=number, metrics={name: base + noise for name in names})
            for device, base in (("cpu", 0.2), ("cuda", 0.1))
            for number, noise in enumerate((1.0, 1.011, 0.993, 1.004))
        ]
        (family,) = ask(rows)
        (verdict,) = _judge(family.arms, None).values()
        assert verdict.low is not None and verdict.high is not None
        widths.append(verdict.high - verdict.low)
    assert widths[1] > 1.2 * widths[0]
