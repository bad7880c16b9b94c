"""--metric: values read from a log, and the option suggested for a log."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from queue_runner.errors import UsageError
from queue_runner.ingest import log_metrics
from queue_runner.submit.given_options import read

LOG = "step 0 loss 3.5 acc 0.1\nstep 1 loss 1.5 acc 0.4\r step 2 loss 2.5 acc 0.3\nloss of time\nloss nan\n"


@pytest.fixture
def logs(tmp_path: Path) -> list[Path]:
    (tmp_path / "out").write_text(LOG)
    (tmp_path / "err").write_text("score 7\nloss 99.0\n")
    return [tmp_path / "out", tmp_path / "err", tmp_path / "missing"]


def test_the_last_the_least_and_the_mean_value(logs: list[Path]) -> None:
    patterns = dict.fromkeys(["loss", "loss:min", "loss:mean"], r"loss ([0-9.]+)")
    assert log_metrics.read(logs, patterns) == {"loss": 2.5, "loss:min": 1.5, "loss:mean": 2.5}


def test_stderr_counts_where_stdout_has_no_match(logs: list[Path]) -> None:
    assert log_metrics.read(logs, {"score": r"score (\d+)", "absent": r"absent (\d+)"}) == {"score": 7.0}


def test_a_match_without_a_number_is_left_out(logs: list[Path]) -> None:
    assert log_metrics.read(logs, {"loss": r"loss (\w+)"}) == {}


def test_a_number_in_colour_is_read(logs: list[Path]) -> None:
    logs[0].write_text("loss \x1b[1;32m1.25\x1b[0m\n")
    assert log_metrics.read(logs, {"loss": r"^loss ([0-9.]+)$"}) == {"loss": 1.25}


def test_an_expression_that_never_ends_is_stopped(logs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    logs[0].write_text("a" * 60 + "!\n")
    monkeypatch.setattr(log_metrics, "TIMEOUT_S", 1.0)
    with pytest.raises(log_metrics.Unread, match="simpler"):
        log_metrics.read(logs, {"x": r"((?:a+)+)b"})


@pytest.mark.parametrize("metric", ["loss", "loss=loss", "loss=(a)(b)", "loss=(", "a b=(x)", "loss:max=(x)"])
def test_an_expression_without_one_number_is_refused(metric: str) -> None:
    with pytest.raises(UsageError) as error:
        read({"command": ["true"], "metric": metric})
    assert error.value.hint


@pytest.mark.parametrize(
    ("log", "name", "last"),
    [
        ("step 1 loss 2.31\nstep 2 loss 1.25", "loss", "1.25"),
        ("epoch 1 loss: 2.0 val_loss: 1.9", "val_loss", "1.9"),
        ("lr=0.001 acc = 0.91", "acc", "0.91"),
        ("time 3.5 s\ndone 1.0", None, None),
        ("", None, None),
    ],
)
def test_an_option_for_the_numbers_of_a_log(log: str, name: str | None, last: str | None) -> None:
    suggested = log_metrics.suggest(log)
    assert (suggested and suggested[0]) == name
    if suggested is not None:
        assert re.findall(suggested[1], log)[-1] == last
