"""Tokens of known formats are hidden; of an environment only variables on a fixed list are public."""

from __future__ import annotations

import time

import pytest

from queue_runner.errors import UsageError
from queue_runner.host import redact

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"


@pytest.mark.parametrize("name", ["MPSQ_HOME", "MPSQ_STOP_AT", "TMUX", "TMUX_PANE", "PWD", "SHLVL", "_", "TERM"])
def test_not_inherited(name: str) -> None:
    assert redact.inherited({name: "x", "PATH": "/bin"}) == {"PATH": "/bin"}


@pytest.mark.parametrize("name", ["PATH", "HF_TOKEN", "OMP_NUM_THREADS", "MY_MPSQ_X", "TERMINFO"])
def test_inherited(name: str) -> None:
    assert redact.inherited({name: "x"}) == {name: "x"}


@pytest.mark.parametrize(
    ("name", "value", "public"),
    [
        ("OMP_NUM_THREADS", "4", True),
        ("PYTHONHASHSEED", "0", True),
        ("PYTORCH_ENABLE_MPS_FALLBACK", "1", True),
        ("CUDA_VISIBLE_DEVICES", "", True),
        ("LD_PRELOAD", "/lib/libjemalloc.so", True),
        ("MYTOKEN", "x", False),
        ("LICENSE_CODE", "1234", False),
        ("PATH", "/bin", False),
        ("TF_TOKEN_app_terraform_io", "x", False),  # of Terraform, as TF_CLI_CONFIG_FILE
        ("PYTORCH_MIRROR", "https://me:pw@host/", False),
    ],
)
def test_public_variables_are_on_a_list(name: str, value: str, public: bool) -> None:
    assert redact.is_public(name, value) is public


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("ghp_0123456789abcdefghij", "[hidden]"),
        ("--key=hf_0123456789abcdefghij", "--key=[hidden]"),
        ("sk-proj-0123456789abcdefghij", "[hidden]"),
        ("AKIA0123456789ABCDEF", "[hidden]"),
        ("xoxb-0123456789-abcdefghij", "[hidden]"),
        (JWT, "[hidden]"),
        ("postgres://me:pw@host/db", "postgres://me:[hidden]@host/db"),
        ("Authorization: Bearer 0123456789abcdef", "Authorization: Bearer [hidden]"),
        ("1234567890:ABCdefGHIjklMNOpqrSTUvwxYZ0123456789", "1234567890:ABCdefGHIjklMNOpqrSTUvwxYZ0123456789"),
        ("123456789:ABCdefGHIjklMNOpqrSTUvwxYZ012345678", "[hidden]"),
        (
            "https://discord.com/api/webhooks/123/abcdefghijklmnopqrstuvwxyz0123",
            "https://discord.com/api/webhooks/[hidden]",
        ),
        ("[mpsq-secret-0123456789abcdef01234567]", "[hidden]"),
        (
            "curl https://u:pw@h; echo ghp_0123456789abcdefghij",
            "curl https://u:[hidden]@h; echo [hidden]",
        ),
    ],
)
def test_tokens_of_known_formats_are_hidden(word: str, shown: str) -> None:
    assert redact.redact([word]) == [shown]
    assert redact.has_token(word) is (shown != word and "mpsq-secret" not in word)


@pytest.mark.parametrize(
    "word",
    ["--lr=1", "tokens.bin", "sk-learn-benchmark-of-trees", "hf_transfer_is_enabled_here", "http://host:80/a@b", "a@b"],
)
def test_other_words_are_not_tokens(word: str) -> None:
    assert redact.redact([word]) == [word] and not redact.has_token(word)


def test_a_stand_in_tells_tokens_apart() -> None:
    numbers: dict[str, int] = {}
    words = ["https://u:a@h", "https://u:b@h", "https://v:a@h"]
    shown = redact.replaced(words, lambda token: f"#{numbers.setdefault(token, len(numbers) + 1)}")
    assert shown == ["https://u:#1@h", "https://u:#2@h", "https://v:#1@h"]


def test_a_long_word_is_read_once() -> None:
    began = time.process_time()
    for word in ("://" * 20_000, "a:" * 50_000, "eyJ" * 30_000, "bearer " * 20_000, "sk-" * 30_000):
        redact.redact([word])
    assert time.process_time() - began < 5


def test_values_of_env_are_not_shown() -> None:
    words = ["submit", "--env", "MYTOKEN=x", "--env=OTHER=y", "--env", "OMP_NUM_THREADS=2", "--", "--env", "A=1"]
    shown = ["submit", "--env", "MYTOKEN=[hidden]", "--env=OTHER=[hidden]", *words[4:]]
    assert redact.without_env_values(words) == shown


def test_assignments() -> None:
    assert redact.assignments(["A=1", "B=x=y", "C="], "--set") == {"A": "1", "B": "x=y", "C": ""}


@pytest.mark.parametrize("pair", ["A", "=1", "", "A=\0"])
def test_invalid_assignments_are_refused(pair: str) -> None:
    with pytest.raises(UsageError):
        redact.assignments([pair], "--set")
