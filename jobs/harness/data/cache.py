"""The folder of downloads and tokens that several runs share."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from array import array
from pathlib import Path

from harness.data.text import Tokenized, tokenize

CACHED_BYTES = 64 << 20
"""Largest text whose tokens are cached between runs."""


def cache_folder(name: str) -> Path:
    """Return MPSQ_CACHE/name; outside of the queue ~/.cache/mpsq/name."""
    return Path(os.environ.get("MPSQ_CACHE") or Path.home() / ".cache" / "mpsq") / name


def write_atomically(path: Path, raw: bytes) -> None:
    """Write a file that other processes see complete or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, partial = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(raw)
    Path(partial).replace(path)


def tokenized_once(raw: bytes, digest: str, tokenizer: str) -> Tokenized:
    """Return the tokens of a text from the cache, else tokenize it and cache them. Raises: UnicodeDecodeError."""
    path = cache_folder("tokens") / f"{digest[:32]}-{tokenizer}"
    if (cached := _read(path)) is not None:
        return cached
    tokenized = tokenize(raw, tokenizer)
    if len(raw) <= CACHED_BYTES:
        _write(path, *tokenized)
    return tokenized


def _write(path: Path, vocab_size: int, alphabet: str, train: array[int], val: array[int]) -> None:
    """Write tokens as a line of JSON and the arrays behind it, like nanoGPT's train.bin: a measured run should not
    tokenize. Without a writable cache the next run tokenizes again."""
    header = {"vocab_size": vocab_size, "alphabet": alphabet, "train": len(train), "val": len(val)}
    with contextlib.suppress(OSError):
        write_atomically(path, json.dumps(header).encode() + b"\n" + train.tobytes() + val.tobytes())


def _read(path: Path) -> Tokenized | None:
    """Return the tokens that _write wrote; None if the file is missing or incomplete."""
    try:
        with path.open("rb") as stream:
            header, train, val = json.loads(stream.readline()), array("i"), array("i")
            train.fromfile(stream, header["train"])
            val.fromfile(stream, header["val"])
    except (OSError, EOFError, ValueError, KeyError, TypeError):
        return None
    return header["vocab_size"], header["alphabet"], train, val
