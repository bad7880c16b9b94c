"""What a submission to another machine is refused for, and what it sends of the environment."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import fields, replace

from queue_runner import config_file
from queue_runner.errors import ConfigError, UsageError
from queue_runner.remote import placement
from queue_runner.remote.profile import Profile, find_profile
from queue_runner.remote.slurm import commands
from queue_runner.remote.slurm.cluster import Slurm
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


@pytest.mark.parametrize("option", ["--clusters=b", "-M b", "-Mb"])
def test_a_cluster_of_which_squeue_does_not_know_is_refused(option: str) -> None:
    """It would call each block forgotten."""
    with pytest.raises(UsageError, match=r"cannot be given to sbatch: SLURM_CLUSTERS in `env`"):
        commands.check(Profile(name="slurm", sbatch=option))


def test_a_profile_has_the_keys_that_the_settings_know() -> None:
    keys = {field.name.removesuffix("_s").replace("_", "-") for field in fields(Profile)}
    assert keys == {"name", "slurm", *config_file.PROFILE} - {*config_file.SLURM}


@pytest.mark.parametrize(
    ("on", "stored", "kind", "host", "table"),
    [
        ("slurm", {}, "slurm", "", "slurm"),
        ("big", {"kind": "slurm"}, "slurm", "", "big"),
        ("box", {"kind": "ssh"}, "ssh", "box", "box"),
        ("box", {"kind": "ssh", "host": "me@there"}, "ssh", "me@there", "box"),
        ("ssh:box", {"kind": "ssh", "host": "me@there"}, "ssh", "me@there", "box"),
        ("ssh:box", {"kind": "slurm", "host": "me@there"}, "ssh", "box", "box"),
        ("ssh:me@box", {}, "ssh", "me@box", "me@box"),
    ],
)
def test_on_means_a_profile(on: str, stored: dict[str, str], kind: str, host: str, table: str) -> None:
    profile = find_profile(config_file.Config(on={table: stored}), on)
    assert (profile.kind, profile.host, profile.name) == (kind, host, table)


@pytest.mark.parametrize("on", ["mars", "ssh", "slurm:here", "ssh:", "ssh:-oProxyCommand=x", "box", "late"])
def test_on_names_no_target(on: str) -> None:
    with pytest.raises(UsageError):
        find_profile(
            config_file.Config(on={"box": {"folder": "/shared"}, "late": {"kind": "slurm", "time": "soon"}}), on
        )


def test_options_of_a_submission_replace_those_of_the_profile() -> None:
    stored = {"time": "2h", "gpus": "1", "partition": "short", "account": "lab", "mem": "64G", "sbatch": "--qos=low"}
    profile = find_profile(config_file.Config(on={"slurm": stored}), "slurm")
    assert {"--time=120", "--gres=gpu:1"} < {*commands.resources(profile)} and not profile.is_whole_node
    given = {"to": "slurm", "time": "1.2e+06", "gpus": "2", "partition": "long", "sbatch": "--exclusive --qos=high"}
    block = profile.for_block(given)
    words = commands.resources(block)
    assert {"--time=20000", "--gres=gpu:2", "--partition=long", "--account=lab", "--mem=64G"} < {*words}
    assert words[-1] == "--qos=high" and "--partition=short" not in words and block.is_whole_node


def test_the_state_of_a_block_that_waits_says_why_and_when_it_is_expected_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        "7|PENDING|Resources||2030-01-02T03:04:05|mpsq-a",
        "8|PENDING|Priority||N/A|mpsq-b",
        "9|RUNNING|None|n1|x|o",
    ]
    (tmp_path / "squeue").write_text("#!/bin/sh\ncat $SLURM_CONF\n")
    (tmp_path / "squeue").chmod(0o755)
    text = "\n".join([*lines, "6|RUNNING|None|n1|x|Größe"])
    (tmp_path / "other.conf").write_bytes(text.encode("latin-1"))  # the profile says which cluster is asked
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_CONF", "/dev/null")
    assert commands.blocks(Profile(name="slurm")) == {}
    reported = commands.blocks(Profile(name="other", env=f"SLURM_CONF={tmp_path}/other.conf"))
    assert {token: one.words for token, one in reported.items()} == {
        "a": "PENDING (Resources), expected to start at 2030-01-02 03:04",
        "b": "PENDING (Priority)",
    }


def test_a_block_has_the_comment_that_its_cluster_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sbatch").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/words\necho 7\n')
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    cluster = Slurm(Profile(name="slurm", folder=str(tmp_path), sbatch="--comment=project-7"))
    cluster.folder("a" * 32).path.mkdir()
    assert cluster.send("a" * 32, {}) == "7"
    words = (tmp_path / "words").read_text().splitlines()
    assert [word for word in words if word.startswith("--comment")] == ["--comment=project-7"]


def test_a_batch_script_sets_up_its_shell_and_wraps_the_interpreter(tmp_path: Path) -> None:
    profile = Profile(name="a100", setup="export A=b", wrapper="sh -c 'echo $A $0 $2; exit 7'", python="python3")
    script = tmp_path / "block.sh"
    script.write_text(commands.batch_script(profile, "module"))
    done = subprocess.run([script.read_text().split()[0][2:], script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (7, "b python3 module\n")
    script.write_text(commands.batch_script(replace(profile, setup="false"), "module"))
    done = subprocess.run(["bash", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stdout == "" and "[on.a100] failed" in done.stderr


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
