"""The tasks of GLUE (Wang et al. 2019) as transformers' example run_glue.py has them: columns, labels, metrics.

Each is a configuration of the data set nyu-mll/glue of the Hugging Face hub. Its test labels are not public: results
are those of its validation set. That of mnli has the genres that it trains on ("matched").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

HUB = "nyu-mll/glue"


class Task(NamedTuple):
    """The data set of one task. `labels` is 1 for a score, which is learned by regression."""

    columns: tuple[str, ...]
    labels: int
    metrics: tuple[str, ...]
    held_out: str = "validation"
    others: Mapping[str, str] = MappingProxyType({})
    """further validation sets, by the name of their split"""


TASKS = {
    "cola": Task(("sentence",), 2, ("matthews_correlation",)),
    "mnli": Task(
        ("premise", "hypothesis"), 3, ("accuracy",), "validation_matched", {"mismatched": "validation_mismatched"}
    ),
    "mrpc": Task(("sentence1", "sentence2"), 2, ("accuracy", "f1")),
    "qnli": Task(("question", "sentence"), 2, ("accuracy",)),
    "qqp": Task(("question1", "question2"), 2, ("accuracy", "f1")),
    "rte": Task(("sentence1", "sentence2"), 2, ("accuracy",)),
    "sst2": Task(("sentence",), 2, ("accuracy",)),
    "stsb": Task(("sentence1", "sentence2"), 1, ("pearson", "spearmanr")),
    "wnli": Task(("sentence1", "sentence2"), 2, ("accuracy",)),
}
"""By the names of run_glue.py's --task_name; its columns are task_to_keys there."""
PARAPHRASES = TASKS["mrpc"]


def measures(task: Task) -> Callable[[Any], dict[str, float]]:
    """Return the Trainer's compute_metrics: it takes logits (n, labels) and labels (n,), and returns the task's
    metrics, and where there are several their mean as `combined_score`, as run_glue.py does."""

    def measured(answers: Any) -> dict[str, float]:
        logits, labels = np.asarray(answers.predictions), np.asarray(answers.label_ids)
        predicted = logits.reshape(-1) if task.labels == 1 else np.argmax(logits, axis=-1)
        each = {name: _METRICS[name](predicted, labels) for name in task.metrics}
        return {**each, "combined_score": float(np.mean([*each.values()]))} if len(each) > 1 else each

    return measured


def accuracy(predicted: Any, labels: Any) -> float:
    """Return the share of right answers."""
    return float(np.mean(predicted == labels))


def f1(predicted: Any, labels: Any) -> float:
    """Return 2 TP / (2 TP + FP + FN) of label 1; 0 where there is none."""
    both = int(np.sum((predicted == 1) & (labels == 1)))
    either = int(np.sum(predicted == 1)) + int(np.sum(labels == 1))
    return 2 * both / either if either else 0.0


def matthews_correlation(predicted: Any, labels: Any) -> float:
    """Return the correlation of two answers of 0 or 1 (Matthews 1975); 0 where one of them is constant."""
    return pearson(predicted, labels)  # of 0 and 1 it is the same


def pearson(predicted: Any, labels: Any) -> float:
    """Return the linear correlation; 0 where one of them is constant, for which it is not defined."""
    x, y = (np.asarray(values, dtype=np.float64) - np.mean(values, dtype=np.float64) for values in (predicted, labels))
    scale = float(np.sqrt(np.sum(x * x) * np.sum(y * y)))
    return float(np.sum(x * y)) / scale if scale else 0.0


def spearmanr(predicted: Any, labels: Any) -> float:
    """Return the correlation of ranks, equal values sharing their mean rank (Spearman 1904)."""
    return pearson(_ranks(predicted), _ranks(labels))


def _ranks(values: Any) -> Any:
    _, place, count = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    ends = np.cumsum(count)
    return (ends - (count - 1) / 2)[place]


_METRICS: dict[str, Callable[[Any, Any], float]] = {
    "accuracy": accuracy,
    "f1": f1,
    "matthews_correlation": matthews_correlation,
    "pearson": pearson,
    "spearmanr": spearmanr,
}


def of_rows(rows: Sequence[Mapping[str, Any]], task: Task) -> list[tuple[str, str | None, int | float]]:
    """Return first sentence, second sentence (None where the task has one) and label of each row of the data set."""
    first, second = (*task.columns, None)[:2]
    kind = float if task.labels == 1 else int
    return [(row[first], row[second] if second else None, kind(row["label"])) for row in rows]
