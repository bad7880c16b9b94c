"""What a submission to another machine is refused for, and what it sends of the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from queue_runner import config
from queue_runner.errors import ConfigError, UsageError
from queue_runner.submit import remote
from queue_runner.submit.request import Request

BOX = '[on.box]\nkind = "ssh"\n'


@pytest.mark.parametrize("key", ["ssh", "sbatch"])
def test_a_profile_with_an_open_quote_is_refused(tmp_path: Path, key: str) -> None:
    path = tmp_path / "config.toml"
    with pytest.raises(UsageError, match=f"on.box.{key} cannot be split into words"):
        config.set_value(path, f"on.box.{key}", "-o 'x")
    path.write_text(f'[on.box]\nkind = "ssh"\n{key} = "-o \'x"\n')
    with pytest.raises(ConfigError, match="cannot be split"):
        config.load(path)


def test_an_option_with_an_open_quote_is_refused(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sbatch").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    home.mkdir()
    (home / "config.toml").write_text('[on.slurm]\nfolder = "/shared"\n')
    with pytest.raises(UsageError, match="--sbatch cannot be split into words"):
        remote.placed(Request(argv=("true",), on="slurm", sbatch='--comment="x'), [])
