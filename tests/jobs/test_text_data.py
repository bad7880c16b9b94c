"""Texts: where from, checked how, cut and numbered how; and what is said when one cannot be had."""

from __future__ import annotations

import hashlib
import io
import urllib.error
import urllib.request
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiktoken

from harness.data import cache as text_cache
from harness.data import downloads
from harness.data.downloads import SHAKESPEARE_URL
from harness.data.text import SHAKESPEARE_SHA256
from harness.data.text import load as load_text
from harness.errors import JobError, UsageError
from harness.models.nanogpt_sampling import decoded
from tests.jobs.conftest import Run, shared

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no network but what a test gives."""
    monkeypatch.setenv("MPSQ_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR", raising=False)
    answers(monkeypatch, urllib.error.URLError(OSError("Name or service not known")))
    return tmp_path / "cache"


def answers(monkeypatch: pytest.MonkeyPatch, answer: bytes | Exception) -> list[str]:
    requested: list[str] = []

    def urlopen(url: str, timeout: float) -> Any:
        requested.append(url)
        if isinstance(answer, Exception):
            raise answer
        return io.BytesIO(answer)

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    return requested


def test_pydoc_is_the_help_of_this_python() -> None:
    text = load_text("pydoc", "char", 64)
    n_chars = len(text.train) + len(text.val)
    assert n_chars > 300_000 and 90 < text.vocab_size < 200
    assert text == load_text("pydoc", "char", 64)
    assert len(text.train) == int(n_chars * 0.9)


def test_characters_are_numbered_in_order(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes("bañab ñabba\r\nab".encode())
    text = load_text(str(tmp_path / "t.txt"), "char", 1)
    letters = sorted(set("bañab ñabba\r\nab"))
    assert "".join(letters[i] for i in [*text.train, *text.val]) == "bañab ñabba\r\nab"
    assert (text.name, text.n_bytes, text.vocab_size) == ("t.txt", 17, 6)


def test_shakespeare_by_path_is_known_by_its_checksum() -> None:
    text = load_text(str(shared("tinyshakespeare.txt")), "char", 256)
    assert (text.name, text.sha256, text.vocab_size) == ("shakespeare", SHAKESPEARE_SHA256, 65)
    assert (len(text.train), len(text.val)) == (1_003_854, 111_540)


def test_shakespeare_is_downloaded_once(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    requested = answers(monkeypatch, shared("tinyshakespeare.txt").read_bytes())
    first, again = (load_text("shakespeare", "char", 256) for _ in range(2))
    assert first == again and first.vocab_size == 65 and requested == [SHAKESPEARE_URL]
    cached = cache / "data" / "tinyshakespeare.txt"
    cached.write_bytes(b"To be, or")  # a copy that was damaged is fetched again
    assert load_text("shakespeare", "char", 256) == first and len(requested) == 2
    assert [path.name for path in cached.parent.iterdir()] == ["tinyshakespeare.txt"]


def test_offline_the_remedy_is_said(run: Run, cache: Path) -> None:
    ran = run("--config", "shakespeare_char", block_size=8)
    assert ran.code == 1 and ran.err.startswith("error: the shakespeare ")
    assert "--set data=PATH" in ran.err and str(cache / "data" / "tinyshakespeare.txt") in ran.err
    assert "download_failed" in ran.notes()


def test_another_text_under_its_name_is_not_taken(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    answers(monkeypatch, b"<html>captive portal</html>")
    with pytest.raises(JobError, match="is not the shakespeare text") as caught:
        load_text("shakespeare", "char", 8)
    assert hashlib.sha256(b"<html>captive portal</html>").hexdigest()[:16] in caught.value.message
    assert not (cache / "data").exists()


def test_a_cache_that_cannot_be_written_is_done_without(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    answers(monkeypatch, shared("tinyshakespeare.txt").read_bytes())
    assert load_text("shakespeare", "char", 8).vocab_size == 65


def folder(path: Path) -> Path:
    return path


def binary(path: Path) -> Path:
    (path / "b").write_bytes(b"\xff\xfe\x00")
    return path / "b"


def short(path: Path) -> Path:
    (path / "s").write_text("short")
    return path / "s"


@pytest.mark.parametrize(
    ("make", "message"), [(folder, "cannot be read"), (binary, "not a text in UTF-8"), (short, "too short")]
)
def test_what_is_no_text_is_refused(tmp_path: Path, make: Callable[[Path], Path], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_text(str(make(tmp_path)), "char", 8)


def test_bpe_cuts_before_it_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With a vocabulary of bytes and two pairs instead of GPT-2's, which needs a network."""
    ranks = {bytes([i]): i for i in range(256)} | {b"th": 256, b"the": 257}
    toy = tiktoken.Encoding("toy", pat_str=r"\w+|\W+", mergeable_ranks=ranks, special_tokens={})
    monkeypatch.setattr(tiktoken, "get_encoding", {"gpt2": toy}.__getitem__)
    (tmp_path / "t").write_text("the " * 10)
    text = load_text(str(tmp_path / "t"), "bpe", 1)
    assert (list(text.train), list(text.val)) == ([257, 32] * 9, [257, 32])
    assert (text.tokenizer, text.vocab_size) == ("bpe", 258)
    assert decoded(text, [257, 32, 300, 0xE2, 65]) == "the \ufffd\ufffdA"


def test_bpe_offline_is_a_sentence_with_the_remedy(run: Run, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # the discard port: nobody listens
    tiktoken.registry.ENCODINGS.pop("gpt2", None)
    ran = run(tokens="bpe")
    assert ran.code == 1 and ran.err.startswith("error: tiktoken ")
    assert str(cache / "tiktoken") in ran.err and "tokens=char" in ran.err and "Traceback" not in ran.err


@pytest.mark.parametrize("tokenizer", ["char", "bpe"])
def test_tokens_are_kept_for_the_next_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path, tokenizer: str
) -> None:
    """A measured run does not tokenize; a file that lost its end is as none."""
    path = tmp_path / "a.txt"
    path.write_text("Grüße, 東京! " * 40)
    monkeypatch.setattr(downloads, "byte_pairs", lambda text, cut: (9, "", *(array("i", [k] * cut) for k in (1, 2))))
    first = load_text(str(path), tokenizer, 4)
    with monkeypatch.context() as later:
        later.setattr(text_cache, "tokenize", None)
        assert load_text(str(path), tokenizer, 4) == first
    (cached,) = (cache / "tokens").iterdir()
    cached.write_bytes(cached.read_bytes()[:-1])
    assert load_text(str(path), tokenizer, 4) == first
