"""Text to train on: its source, its checksum, its tokens as arrays of 32-bit integers, and batches of them.

Sources: `pydoc`, the help texts that every CPython carries; `shakespeare` (downloads.py); or the path of any text file.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.errors import UsageError
from harness.user_paths import expanded

SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
TRAIN_SHARE = 0.9
"""Share of the text to train on; the rest is for validation. The split of nanoGPT's data/*/prepare.py."""

Tokenized = tuple[int, str, "array[int]", "array[int]"]
"""Size of the vocabulary, its alphabet, and the tokens to train on and to validate with"""
Tokens = NDArray[np.int32]
Share = tuple[int, int]
"""The number of a process, from 0, and how many share the batches."""
WHOLE: Share = (0, 1)
_STREAMS = {"iterations": 0, "evaluations": 1}


@dataclass(frozen=True)
class Text:
    """A tokenized text (arrays of type "i"). `sha256` and `n_bytes` describe its UTF-8 encoding."""

    name: str
    sha256: str
    n_bytes: int
    tokenizer: str
    vocab_size: int
    alphabet: str
    """the characters by their numbers; empty for byte pairs"""
    train: array[int]
    val: array[int]

    def parts(self) -> dict[str, array[int]]:
        """Return the tokens by split."""
        return {"train": self.train, "val": self.val}

    def fields(self) -> dict[str, object]:
        """Return the fields of hello about the data."""
        return {
            "name": self.name,
            "sha256": self.sha256,
            "bytes": self.n_bytes,
            "tokenizer": self.tokenizer,
            "vocab_size": self.vocab_size,
            "train_tokens": len(self.train),
            "val_tokens": len(self.val),
        }


Text.said = Text.fields  # the name that workloads made by `mpsq workloads new` of version 0.1 use


def load(source: str, tokenizer: str, block_size: int) -> Text:
    """Read, split and tokenize a text. Both parts hold more than `block_size` tokens.

    Raises: UsageError for an unknown source or a text too short; JobError if a download fails.
    """
    name, raw = _read(source)
    digest = hashlib.sha256(raw).hexdigest()
    try:
        if os.environ.get("MPSQ_CACHE"):
            from harness.data.cache import tokenized_once

            tokenized = tokenized_once(raw, digest, tokenizer)
        else:
            tokenized = tokenize(raw, tokenizer)
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{source} is not a text in UTF-8: {error.reason} at byte {error.start}", "convert it first"
        ) from None
    vocab_size, alphabet, train, val = tokenized
    for part, tokens in (("training", train), ("validation", val)):
        if len(tokens) <= block_size:
            raise UsageError(
                f"{source} is too short: its {part} part has {len(tokens)} tokens, block_size is {block_size}",
                "take a longer text, or a smaller block_size",
            )
    return Text(name, digest, len(raw), tokenizer, vocab_size, alphabet, train, val)


def _read(source: str) -> tuple[str, bytes]:
    """Return the name of the text and its bytes."""
    if source == "pydoc":  # the topics of help(): half a megabyte of English, different in every minor version
        from pydoc_data.topics import topics

        return "pydoc", "\n\n".join(topics[key] for key in sorted(topics)).encode()
    if source == "shakespeare":
        from harness.data.downloads import shakespeare

        return "shakespeare", shakespeare()
    path = expanded(source)
    try:
        raw = path.read_bytes()
    except OSError as error:
        hint = "data is pydoc, shakespeare, or the path of a text file"
        raise UsageError(f'data "{source}" cannot be read: {error.strerror}', hint) from None
    return ("shakespeare" if hashlib.sha256(raw).hexdigest() == SHAKESPEARE_SHA256 else path.name), raw


def tokenize(raw: bytes, tokenizer: str) -> Tokenized:
    """Tokenize by characters, numbered in the order of code points, or by byte pairs. Raises: UnicodeDecodeError."""
    text = raw.decode()
    cut = int(len(text) * TRAIN_SHARE)
    if tokenizer == "bpe":
        from harness.data.downloads import byte_pairs

        return byte_pairs(text, cut)
    alphabet = "".join(sorted(set(text)))
    number = {character: i for i, character in enumerate(alphabet)}
    tokens = array("i", map(number.__getitem__, text))
    return len(number), alphabet, tokens[:cut], tokens[cut:]


class Batches:
    """Batches of a text, the same in every framework, on every device, in every version of numpy.

    `parts` is {"train": tokens, "val": tokens}: arrays of type "i" with more than `block_size` tokens. The start of a
    sequence depends on the seed, the split and the sequence's number alone, through the raw output of PCG64, which
    numpy guarantees to keep. So there is no state to save: iteration 500 draws the same batch after a resume.
    """

    def __init__(self, parts: Mapping[str, array[int]], seed: int, batch_size: int, block_size: int) -> None:
        self._parts = {name: np.frombuffer(part, np.intc).astype(np.int32, copy=False) for name, part in parts.items()}
        self._seed, self._rows, self._block = seed, batch_size, block_size
        self._offsets = np.arange(block_size + 1)
        self._drawn: tuple[int, np.random.PCG64] = (0, self._stream("iterations"))

    def of_iteration(self, i: int, parts: int = 1, share: Share = WHOLE) -> tuple[Tokens, Tokens]:
        """Return the `parts` batches of iteration i (from 0) and their successors, each (parts, batch, block); with a
        share, those of one of several processes, which divide `parts` evenly.

        Sequences are numbered consecutively, so that two parts of 4 hold the sequences of one part of 8.
        """
        index, processes = share
        n = parts // processes
        first = i * parts + index * n
        position, stream = self._drawn
        if position != first:
            stream = self._stream("iterations").advance(first * self._rows)
        self._drawn = (first + n, stream)
        return self._cut("train", stream, n)

    def of_evaluation(self, split: str, n: int, share: Share = WHOLE) -> tuple[Tokens, Tokens]:
        """Return `n` batches of a split, the same at every evaluation, each (n, batch, block); with a share, every
        process takes its turn."""
        index, processes = share
        x, y = self._cut(split, self._stream("evaluations"), n)
        return x[index::processes], y[index::processes]

    def _stream(self, name: str) -> np.random.PCG64:
        return np.random.PCG64([self._seed, _STREAMS[name]])

    def _cut(self, split: str, stream: np.random.PCG64, n: int) -> tuple[Tokens, Tokens]:
        tokens = self._parts[split]
        # The bias of the remainder towards the first places, len / 2^64, is negligible.
        starts = stream.random_raw(n * self._rows) % np.uint64(len(tokens) - self._block)
        rows = tokens[starts.astype(np.int64)[:, None] + self._offsets].reshape(n, self._rows, self._block + 1)
        return np.ascontiguousarray(rows[..., :-1]), np.ascontiguousarray(rows[..., 1:])
