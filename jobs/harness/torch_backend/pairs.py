"""Pairs of sentences for a classifier in torch: tokenizer, model, rows, FLOP."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig

from harness.command_line import Options
from harness.data.pairs import Pair, Pairs
from harness.data.word_pieces import tokenizer_of
from harness.errors import JobError, UsageError, first_line


class Loss(nn.Module):
    """A classifier's mean loss in nats on a batch given in the order of `names`."""

    def __init__(self, classifier: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.classifier, self.names = classifier, tuple(names)

    def forward(self, *batch: torch.Tensor) -> torch.Tensor:
        return self.classifier(**dict(zip(self.names, batch, strict=True))).loss


def classifier_of(options: Options, pairs: Pairs) -> tuple[Any, Any]:
    """Return the tokenizer and the model with its weights, on the CPU. Raises: JobError, UsageError."""
    s = options.settings
    torch.manual_seed(options.seed)  # draws all weights of a random model, otherwise those of the last layer
    if s.model != "random":
        if (missing := _missing(s.model)) is not None:
            raise JobError(f'the model "{s.model}" is not available: {missing}', _MODEL_HINT)
        try:
            tokenizer = AutoTokenizer.from_pretrained(s.model)
            model = AutoModelForSequenceClassification.from_pretrained(
                s.model, num_labels=pairs.task.labels, dtype="float32"
            )
        except RuntimeError as error:
            raise JobError(
                f'the model "{s.model}" does not fit {pairs.name}, whose labels are {pairs.task.labels}: '
                f"{first_line(error)}",
                "a model of as many labels, or one without a classifier, such as google-bert/bert-base-cased",
            ) from None
        except (OSError, ValueError, KeyError) as error:
            reason = first_line(error)
            raise JobError(
                f'the model "{s.model}" is not available: {reason}', _MODEL_HINT, note="download_failed"
            ) from None
        if len(tokenizer) <= len(tokenizer.all_special_ids):  # empty if the folder has none
            raise JobError(f'the model "{s.model}" has no tokenizer', "save it beside the model: save_pretrained()")
        return tokenizer, model
    if s.n_embd % s.n_head:
        raise UsageError(f"n_embd={s.n_embd} is not divisible by n_head={s.n_head}", "768 has 12, for example")
    texts = (text for pair in pairs.train for text in (pair.first, pair.second) if text is not None)
    tokenizer = tokenizer_of(texts, s.vocab_size, s.max_length)
    shape = BertConfig(
        vocab_size=max(s.vocab_size, len(tokenizer)),
        hidden_size=s.n_embd,
        num_hidden_layers=s.n_layer,
        num_attention_heads=s.n_head,
        intermediate_size=4 * s.n_embd,
        max_position_embeddings=max(512, s.max_length),
        num_labels=pairs.task.labels,
    )
    return tokenizer, AutoModelForSequenceClassification.from_config(shape)


_MODEL_HINT = "--set model=random needs no network; model=PATH takes the folder of a model that is here"


def _missing(name: str) -> str | None:
    """Return why a folder is not that of a model; None if it may be one, or `name` is one of the hub."""
    folder = Path(name)
    if folder.is_dir():
        return (
            None
            if (folder / "config.json").is_file()
            else "the folder holds no config.json, as save_pretrained() writes it"
        )
    if folder.is_file():
        return "it is a file, not the folder of a model"
    return "there is no such folder" if folder.is_absolute() or name.startswith((".", "~")) else None


def rows_of(pairs: Sequence[Pair], tokenizer: Any, length: int) -> list[dict[str, torch.Tensor]]:
    """Return the pairs as the Trainer takes them, padded to the same length as by run_glue.py."""
    texts = [[pair.first for pair in pairs]]
    if pairs[0].second is not None:
        texts.append([pair.second for pair in pairs])
    made = tokenizer(*texts, padding="max_length", truncation=True, max_length=length, return_tensors="pt")
    labels = torch.tensor([pair.label for pair in pairs])  # scores are floats: then the loss is that of a regression
    return [{**{name: made[name][n] for name in made}, "labels": labels[n]} for n in range(len(pairs))]


def flops(shape: Any, batch: int, length: int) -> float:
    """Return the FLOP of one iteration, forward and backward at twice the forward; a multiply-add counts as two.

    A block has, for each token, queries, keys, values and output (4 d^2), feed-forward (2 d f), scores and their
    weighted sums (2 T d). The pooler (d^2) and the classifier see one token of a pair. Embeddings are looked up.
    """
    d, labels = shape.hidden_size, shape.num_labels
    f = getattr(shape, "intermediate_size", None) or getattr(shape, "hidden_dim", None) or 4 * d
    token = shape.num_hidden_layers * (4 * d * d + 2 * d * f + 2 * length * d)
    return 3 * 2.0 * batch * (length * token + d * d + d * labels)
