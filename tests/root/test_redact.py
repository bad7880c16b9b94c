"""No secret is captured, and none is shown."""

from __future__ import annotations

import pytest

from queue_runner import redact
from queue_runner.errors import UsageError

SECRETS = ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "openai_api_key", "DB_PASSWORD", "GOOGLE_APPLICATION_CREDENTIALS"]


@pytest.mark.parametrize(
    "name", [*SECRETS, "MPSQ_HOME", "MPSQ_STOP_AT", "TMUX", "TMUX_PANE", "PWD", "SHLVL", "_", "TERM"]
)
def test_left_out(name: str) -> None:
    assert redact.environment({name: "x", "PATH": "/bin"}) == {"PATH": "/bin"}


@pytest.mark.parametrize(
    "name", ["PATH", "HOME", "OMP_NUM_THREADS", "PYTORCH_ENABLE_MPS_FALLBACK", "MY_MPSQ_X", "TERMINFO"]
)
def test_taken_along(name: str) -> None:
    assert redact.environment({name: "x"}) == {name: "x"}


def test_secrets_come_from_the_workers_own_environment() -> None:
    source = dict.fromkeys([*SECRETS, "PATH", "MPSQ_TOKEN"], "x")
    assert set(redact.secrets(source)) == set(SECRETS)
    assert not set(redact.secrets(source)) & set(redact.environment(source))


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["train.py", "--api-key=abc"], ["train.py", "--api-key=[hidden]"]),
        (["train.py", "--token", "abc", "--lr", "1"], ["train.py", "--token", "[hidden]", "--lr", "1"]),
        (["env", "HF_TOKEN=abc", "python"], ["env", "HF_TOKEN=[hidden]", "python"]),
        (["train.py", "--lr=1", "tokens.bin"], ["train.py", "--lr=1", "tokens.bin"]),
        (["--password"], ["--password"]),
    ],
)
def test_redact(argv: list[str], shown: list[str]) -> None:
    assert redact.redact(argv) == shown


def test_assignments() -> None:
    assert redact.assignments(["a=1", "b=x=y", "c="], "--set") == {"a": "1", "b": "x=y", "c": ""}


@pytest.mark.parametrize("pair", ["a", "=1", "", "a=\0"])
def test_no_assignment(pair: str) -> None:
    with pytest.raises(UsageError):
        redact.assignments([pair], "--set")


def test_a_count_of_tokens_is_no_secret() -> None:
    argv = ["python", "train.py", "--max-tokens=9", "--set", "tokens=bpe", "--key_dim", "64"]
    assert redact.redact(argv) == argv
    assert redact.redact(["--api-key", "abc", "wandb.api_key=abc", "--token=abc"]) == [
        "--api-key",
        "[hidden]",
        "wandb.api_key=[hidden]",
        "--token=[hidden]",
    ]
