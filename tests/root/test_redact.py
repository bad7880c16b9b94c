"""No secret is captured, and none is shown."""

from __future__ import annotations

import time

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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("DBPASS", "x"), ("PGPASSWORD", "1234"), ("MYSQL_PWD", "x"), ("SSHPASS", "x"), ("GITHUB_PAT", "x")),
        *(("WANDB_API_KEY", "x"), ("APIKEY", "x"), ("authToken", "x"), ("CSRF_COOKIE", "x"), ("REGISTRY_AUTH", "x")),
        *(("TOKEN_GITHUB", "abcdefgh12345678"), ("DATABASE_URL", "postgres://u:PW@h/db"), ("DSN", "host=h password=x")),
        *(("HTTPS_PROXY", "http://u:p@proxy:80"), ("AMQP", "amqp://:pw@h"), ("CURL_ARGS", "-H 'Authorization: x'")),
        *(("A", "ghp_abcdefghijklmnop1234"), ("A", "AKIAABCDEFGHIJKLMNOP"), ("A", "eyJhbGciOiJI.eyJzdWIiOiIx.abc")),
        *(("URL", "postgres://u:p@ss@h/db"), ("REPO", "https://a1b2c3d4e5f6a7b8c9d0@host/x")),
        *(
            ("DBPASS", "1234"),
            ("SECRETKEY", "x"),
            ("HFTOKEN", "x"),
            ("refreshToken", "x"),
            ("DB_PW", "x"),
            ("AWS_CREDS", "x"),
        ),
        *(("A", "-----BEGIN OPENSSH PRIVATE KEY-----\nx"), ("A", "bearer x")),
        *(
            ("MAIL", "SG.abcdefghijklmnopqrstuv.ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
            ("HOOK", "https://hooks.slack.com/services/T00/B00/XXX"),
        ),
    ],
)
def test_is_a_secret(name: str, value: str) -> None:
    assert redact.is_secret(name, value)
    assert redact.environment({name: value}) == {} and redact.secrets({name: value}) == {name: value}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("TOKENIZERS_PARALLELISM", "false"), ("KEYBOARD", "de"), ("XAUTHORITY", "/x"), ("COMPAT", "x")),
        *(("SSH_AUTH_SOCK", "/tmp/ssh-1234567890abc/agent.1"), ("SSH_KEY_PATH", "/home/u/.ssh/id_ed25519")),
        *(("DATABASE_URL", "sqlite:///x.db"), ("URL", "https://h:80/a@b"), ("BYPASS", "x"), ("FORWARD_PASS", "fused")),
        *(("USE_AUTH_TOKEN", "true"), ("N_KEY", "8"), ("KEY_DIM", "64"), ("MAX_TOKENS", "512"), ("DB_PASSWORD", "")),
        *(
            ("N_PASS", "3"),
            ("PAD_TOKEN", "<pad>"),
            ("EOS_TOKEN", "<|endoftext|>"),
            ("CLS_TOKEN", "[CLS]"),
            ("BYPASS", "1234"),
            ("maxTokens", "x"),
            ("URL", "ssh://somebody@host/x"),
            ("BOTTLENECK", "x"),
            ("TOPKEY", "x"),
        ),
    ],
)
def test_is_no_secret(name: str, value: str) -> None:
    assert not redact.is_secret(name, value)


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["mysql", "-p", "SECRET"], ["mysql", "-p", "[hidden]"]),
        (["ssh", "-p", "22", "h"], ["ssh", "-p", "22", "h"]),
        (["/bin/mkdir", "-p", "out"], ["/bin/mkdir", "-p", "out"]),
        (["psql", "postgres://u:PW@h/db"], ["psql", "postgres://u:[hidden]@h/db"]),
        (["curl", "-H", "Authorization: Bearer x"], ["curl", "-H", "Authorization: [hidden]"]),
        (["psql", "postgres://u:p@ss@h/db"], ["psql", "postgres://u:[hidden]@h/db"]),
        (["mysql", "-uroot", "-pPW"], ["mysql", "-uroot", "-p[hidden]"]),
        (["mpsq", "submit", "--", "sshpass", "-p", "1234"], ["mpsq", "submit", "--", "sshpass", "-p", "[hidden]"]),
        (
            ["sh", "-c", "cd x && mysql -p PW; A=1 mysql -pPW"],
            ["sh", "-c", "cd x && mysql -p [hidden]; A=1 mysql -p[hidden]"],
        ),
        (["sh", "-c", "mkdir -p out; ssh -p 22 h"], ["sh", "-c", "mkdir -p out; ssh -p 22 h"]),
        (["curl", "-u", "me:PW", "https://h"], ["curl", "-u", "me:[hidden]", "https://h"]),
        (["sh", "-c", "curl -ume:PW https://h"], ["sh", "-c", "curl -ume:[hidden] https://h"]),
        (["docker", "run", "-u", "me:users"], ["docker", "run", "-u", "me:users"]),
        (
            ["t.py", "--header", "Authorization:", "Bearer", "x"],
            ["t.py", "--header", "Authorization:", "Bearer", "[hidden]"],
        ),
        (["t.py", "Bearer x"], ["t.py", "Bearer [hidden]"]),
        (["curl", "-H", "X-Api-Key: x"], ["curl", "-H", "X-Api-Key: [hidden]"]),
        (["t.py", '{"token": "x", "lr": 1}'], ["t.py", '{"token": [hidden], "lr": 1}']),
        (["env", "DBPASS=a b", "t.py"], ["env", "DBPASS=[hidden]", "t.py"]),
        (["t.py", "--password", "a b"], ["t.py", "--password", "[hidden]"]),
        (["t.py", "--use-token", "--lr", "1"], ["t.py", "--use-token", "--lr", "1"]),
        (["t.py", "--n_key=8", "--key", "32"], ["t.py", "--n_key=8", "--key", "32"]),
        (
            ["sh", "-c", "DBPASS=x t.py --token 'a b' --lr 3; curl https://h/?key=k&b=1"],
            ["sh", "-c", "DBPASS=[hidden] t.py --token [hidden] --lr 3; curl https://h/?key=[hidden]&b=1"],
        ),
        (["t", "--token=[mpsq-secret-0123456789abcdef01234567]"], ["t", "--token=[hidden]"]),
    ],
)
def test_redact_by_names_and_values(argv: list[str], shown: list[str]) -> None:
    assert redact.redact(argv) == shown
    assert redact.replaced(argv, lambda word: word) == argv


def test_a_long_word_is_read_once() -> None:
    started = time.process_time()
    for word in (
        "a" * 20_000,
        "key=" * 6_000,
        "://a:" * 4_000,
        "-a " * 6_000,
        "-eyJaaaaaaaa" * 2_000,
        "-p x " * 4_000,
        "curl -u a:" * 2_000,
        "://" + "a1" * 10_000,
        "'" * 20_000,
        "x" * 9_000 + "@",
    ):
        redact.redact(["sh", "-c", word])
        redact.is_secret("A", word)
    assert time.process_time() - started < 1.0


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
