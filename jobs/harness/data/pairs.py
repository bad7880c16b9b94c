"""Pairs of sentences labelled as paraphrases or not: MRPC, a file, or generated; and the other tasks of GLUE.

MRPC is the Microsoft Research Paraphrase Corpus (Dolan and Brockett 2005) in its GLUE form: 3,668 pairs to train on and
408 held out, of which 68 % are paraphrases.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import logging
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from harness.data import glue
from harness.errors import JobError, UsageError, first_line
from harness.user_paths import expanded

GENERATED = "paraphrases"
HELD_OUT = 0.1
"""Share of a file that is held out: 408 of MRPC's 4,076."""
_COLUMNS = ("sentence1", "sentence2", "label")
_OFFLINE = f"--config offline, or --set data={GENERATED}, needs no network; --set data=PATH reads a csv or jsonl file"


class Pair(NamedTuple):
    first: str
    second: str | None
    """None in a task of single sentences"""
    label: int | float
    """of paraphrases 1: the second sentence says what the first says"""


@dataclass(frozen=True)
class Pairs:
    """Training data and held-out data."""

    name: str
    train: Sequence[Pair]
    val: Sequence[Pair]
    task: glue.Task = glue.PARAPHRASES
    others: Mapping[str, Sequence[Pair]] = field(default_factory=dict)
    """further held-out data by split, evaluated once at the end"""

    def fields(self) -> dict[str, Any]:
        """Return the fields of hello about the data: name, sha256, description, number of training pairs."""
        digest = hashlib.sha256(json.dumps([self.train, self.val]).encode()).hexdigest()
        about = f"{len(self.train):,} {self.word}, {len(self.val):,} held out, {self._labels()}"
        return {"name": self.name, "sha256": digest, "about": about, "pairs": len(self.train)}

    @property
    def word(self) -> str:
        """Return the plural noun for an example."""
        return "sentences" if len(self.task.columns) == 1 else "pairs"

    def majority(self) -> float | None:
        """Return the accuracy of always predicting the most frequent label of the held-out data; None for scores."""
        if self.task.labels == 1:
            return None
        return max(Counter(pair.label for pair in self.val).values()) / len(self.val)

    def _labels(self) -> str:
        if (majority := self.majority()) is None:
            return f"with scores from {min(p.label for p in self.val):g} to {max(p.label for p in self.val):g}"
        alike = "alike" if self.task is glue.PARAPHRASES else f"with the most frequent of {self.task.labels} labels"
        return f"{100 * majority:.1f} % of them {alike}"


def load(name: str, n_train: int, n_val: int, seed: int) -> Pairs:
    """Return the data called `name`: a task of GLUE, paraphrases (`n_train` and `n_val` generated pairs), or the path
    of a file.

    Raises: UsageError, JobError if it is not there or not valid.
    """
    if name == GENERATED:
        return generated(n_train, n_val, seed)
    return of_hub(name) if name in glue.TASKS else of_file(name, seed)


def of_hub(name: str) -> Pairs:
    """Return a task of GLUE from the Hugging Face hub, or its cache on this machine. Raises: JobError."""
    task = glue.TASKS[name]
    try:
        import datasets
    except ImportError:
        raise JobError(f"data={name} is loaded by the package datasets, which is not here", _OFFLINE) from None
    datasets.disable_progress_bars()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it logs each attempt
    print(f"asking the Hugging Face hub for {name}")
    try:
        dataset = datasets.load_dataset(glue.HUB, name)
    except Exception as error:  # OSError, ConnectionError, DatasetNotFoundError, ...
        message = f"{name} is not available from the Hugging Face hub: {first_line(error)}"
        raise JobError(message, _OFFLINE, note="download_failed") from None
    splits = ("train", task.held_out, *task.others.values())
    train, val, *others = ([Pair(*row) for row in glue.of_rows(dataset[split], task)] for split in splits)
    return Pairs(name, train, val, task, dict(zip(task.others, others, strict=True)))


def of_file(path: str, seed: int) -> Pairs:
    """Return the pairs of a csv or jsonl file with sentence1, sentence2 and label (0 or 1); `seed` draws those held
    out.

    Raises: UsageError.
    """
    file = expanded(path)
    hint = f"data is {', '.join(glue.TASKS)}, {GENERATED}, or the path of a csv or jsonl file"
    if file.suffix not in (".csv", ".jsonl"):
        raise UsageError(f'no data "{path}"', hint)
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}", hint) from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8: {error.reason} at byte {error.start}", "save it as UTF-8") from None
    rows = enumerate(_rows(file.suffix, text, path), 1)
    pairs = [_pair(row, f"{path}, record {number}") for number, row in rows if not _is_empty(row)]
    n_val = round(HELD_OUT * len(pairs))
    if n_val < 1:
        raise UsageError(f"{path} has {len(pairs)} pairs", "a tenth of them is held out: give 10 or more")
    if len(labels := {pair.label for pair in pairs}) < 2:
        raise UsageError(f"all pairs of {path} have the label {labels.pop()}", "with both, there is something to learn")
    random.Random(seed).shuffle(pairs)
    return Pairs(file.name, pairs[n_val:], pairs[:n_val])


def _rows(suffix: str, text: str, path: str) -> list[Any]:
    if suffix == ".csv":
        try:
            return list(csv.DictReader(io.StringIO(text)))
        except csv.Error as error:  # such as an unclosed quotation mark followed by 128 KiB
            raise UsageError(f"{path} is not a csv file: {error}", "a quotation mark that is not closed?") from None
    try:  # not splitlines(), which also splits at U+2028 and others, legal in JSON strings
        return [json.loads(line) for line in text.split("\n") if line.strip()]
    except ValueError as error:
        raise UsageError(f"{path} is not one JSON object a line: {error}") from None


def _is_empty(row: Any) -> bool:
    """Return whether a row has no values, like the lines of commas that spreadsheets leave behind."""
    return isinstance(row, dict) and bool(row) and all(value in ("", None) for value in row.values())


def _pair(row: Any, where: str) -> Pair:
    if not isinstance(row, dict):
        raise UsageError(f"{where} is not a JSON object", 'a line is {"sentence1": ..., "sentence2": ..., "label": 0}')
    if None in row:
        raise UsageError(
            f"{where} has more values than the first line has columns", "a text with a comma needs quotation marks"
        )
    if lacking := [key for key in _COLUMNS if row.get(key) is None]:
        there = ", ".join(str(key) for key, value in row.items() if value is not None)[:200]
        raise UsageError(
            f"{where}: it lacks {', '.join(lacking)}" + (f", it has {there}" if there else ""),
            "the first line of a csv names its columns; each line of a jsonl file is an object with all three",
        )
    first, second, label = (str(row[key]) for key in _COLUMNS)
    if not (first.strip() and second.strip()):
        raise UsageError(f"{where}: a sentence is empty", "take the pair out, or complete it")
    if label.strip() not in ("0", "1"):
        raise UsageError(f'{where}: label "{label}" is not 0 or 1', "1: the second sentence says what the first says")
    return Pair(first, second, int(label))


_WHO = (
    ("the mayor", "the head of the town"), ("a nurse", "a hospital worker"), ("the pilot", "the man who flew"),
    ("two students", "a pair of students"), ("the baker", "the owner of the bakery"), ("her lawyer", "her attorney"),
    ("the farmer", "the man with the farm"), ("our neighbour", "the woman next door"),
)  # fmt: skip
_DID = (
    ("bought", "paid for"), ("repaired", "fixed"), ("lost", "could no longer find"), ("hid", "concealed"),
    ("painted", "put colour on"), ("borrowed", "took on loan"), ("described", "gave an account of"),
    ("sold", "found a buyer for"),
)  # fmt: skip
_WHAT = (
    ("a boat", "a small ship"), ("the old clock", "the antique clock"), ("three letters", "a few letters"),
    ("the car", "the automobile"), ("a map", "a chart"), ("the house", "the home"), ("a painting", "a picture"),
    ("the bicycle", "the bike"),
)  # fmt: skip
_WHEN = (
    ("on Monday", "at the start of the week"), ("in spring", "when the snow had gone"),
    ("last night", "yesterday after dark"), ("at noon", "in the middle of the day"),
)  # fmt: skip
_SLOTS = (_WHO, _DID, _WHAT, _WHEN)
ALIKE = 0.68
"""Share of paraphrases, as in MRPC."""
DENIED = 0.5
"""Share of the other pairs whose second sentence negates the first, which a small model learns soon."""


def generated(n_train: int, n_val: int, seed: int) -> Pairs:
    """Generate pairs from a small vocabulary: a sentence, and its paraphrase, its negation, or one with other facts.

    The facts of a first sentence are never both in the training data and in the held-out data.
    """
    drawn = random.Random(seed)
    facts = [(a, b, c, d) for a in range(8) for b in range(8) for c in range(8) for d in range(4)]
    drawn.shuffle(facts)
    kept_back = len(facts) // 10
    return Pairs(
        f"{GENERATED} (generated)",
        [_generated(drawn, facts[kept_back:]) for _ in range(n_train)],
        [_generated(drawn, facts[:kept_back]) for _ in range(n_val)],
    )


def _generated(drawn: random.Random, facts: Sequence[tuple[int, ...]]) -> Pair:
    fact = list(drawn.choice(facts))
    first = _told(drawn, fact)
    if drawn.random() < ALIKE:
        return Pair(first, _told(drawn, fact), 1)
    if drawn.random() < DENIED:
        return Pair(first, "It is not true that " + _told(drawn, fact, capital=False), 0)
    for slot in drawn.sample(range(4), 2):
        fact[slot] = drawn.choice([n for n in range(len(_SLOTS[slot])) if n != fact[slot]])
    return Pair(first, _told(drawn, fact), 0)


def _told(drawn: random.Random, fact: Sequence[int], capital: bool = True) -> str:
    who, did, what, when = (drawn.choice(slot[number]) for slot, number in zip(_SLOTS, fact, strict=True))
    text = f"{when}, {who} {did} {what}." if drawn.random() < 0.5 else f"{who} {did} {what} {when}."
    return text[0].upper() + text[1:] if capital else text
