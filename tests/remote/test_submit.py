"""What a submission to another machine is refused for, and what it sends of the environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from queue_runner import config_file
from queue_runner.errors import ConfigError, UsageError
from queue_runner.remote import placement
from queue_runner.spec import JobSpec
from queue_runner.submit import plan
from tests.submit_support import requested

BOX = '[on.box]\nkind = "ssh"\n'


@pytest.mark.parametrize("key", ["ssh", "sbatch"])
def test_a_profile_with_an_open_quote_is_refused(tmp_path: Path, key: str) -> None:
    path = tmp_path / "config.toml"
    with pytest.raises(UsageError, match=f"on.box.{key} cannot be split into words"):
        config_file.set_value(path, f"on.box.{key}", "-o 'x")
    path.write_text(f'[on.box]\nkind = "ssh"\n{key} = "-o \'x"\n')
    with pytest.raises(ConfigError, match="cannot be split"):
        config_file.load(path)


def test_an_option_with_an_open_quote_is_refused(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sbatch").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    home.mkdir()
    (home / "config.toml").write_text('[on.slurm]\nfolder = "/shared"\n')
    with pytest.raises(UsageError, match="--sbatch cannot be split into words"):
        placement.placed(requested(argv=("true",), on="slurm", sbatch='--comment="x'), [])


def on_a_box(home: Path, monkeypatch: pytest.MonkeyPatch, **said: Any) -> JobSpec:
    """A job as it is sent to a box from a machine where a GPU was chosen."""
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(BOX)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    return plan.plan(requested(argv=said.pop("argv", ("true",)), on="box", cwd=str(home), **said)).jobs[0].spec


TOKEN = "ghp_0123456789abcdefghij"


@pytest.mark.parametrize("said", [{"argv": ("echo", TOKEN), "allow_plain": True}, {"env": (f"MINE={TOKEN}",)}])
def test_a_token_is_not_sent(home: Path, monkeypatch: pytest.MonkeyPatch, said: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="tokens are not sent to other machines"):
        on_a_box(home, monkeypatch, **said)


def test_the_devices_of_this_machine_are_not_sent_but_those_of_env_are(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "CUDA_VISIBLE_DEVICES" not in on_a_box(home, monkeypatch).env
    monkeypatch.setenv("MYTOKEN", "hunter2")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    env = on_a_box(home, monkeypatch, env=("MINE=1",)).env
    assert (env["OMP_NUM_THREADS"], env["MINE"]) == ("3", "1") and not {"MYTOKEN", "PATH"} & env.keys()
    assert on_a_box(home, monkeypatch, env=("CUDA_VISIBLE_DEVICES=1",)).env["CUDA_VISIBLE_DEVICES"] == "1"
