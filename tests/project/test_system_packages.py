"""What only a system package gives: how it is named, installed, and missed by a test."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import system_packages
from tests.cli_support import ROOT
from tests.system_packages import PROGRAMS, Program

RECORDS = """#!/bin/sh
case "$*" in *update*) echo "$*" >> "$0.log"; exit 0;; esac
"{policy}"
echo "$* policy $?" >> "$0.log"
exit {code}
"""
"""A stand-in for apt-get: it notes its words, and whether services may start."""


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it, on Linux."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(system_packages.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(system_packages, "POLICY", tmp_path / "policy-rc.d")
    monkeypatch.delenv("CI", raising=False)
    return tmp_path


def program(path: Path, text: str = "#!/bin/sh\n") -> None:
    path.write_text(text)
    path.chmod(0o755)


def test_a_test_without_its_program_is_skipped_with_the_command(bare: Path) -> None:
    program(bare / "apt-get")
    with pytest.raises(pytest.skip.Exception, match=r"needs g\+\+: .*apt-get install g\+\+"):
        system_packages.require("g++")
    program(bare / "g++")
    system_packages.require("g++")


def test_in_ci_it_fails(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(bare / "apt-get")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="apt-get install zsh"):
        system_packages.require("zsh")
    monkeypatch.setenv("CI", "false")
    with pytest.raises(pytest.skip.Exception):
        system_packages.require("zsh")


def test_what_a_system_has_no_package_of_is_a_skip_even_in_ci(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.skip.Exception, match="this system has no"):
        system_packages.require("systemd-analyze")


@pytest.mark.process
def test_the_marker_is_seen_before_the_fixtures_of_a_test(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_runtest_setup\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = needs_program(name)\n")
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "@pytest.fixture\ndef compiled(): raise RuntimeError('no g++')\n"
        "@pytest.mark.needs_program('g++')\ndef test_it(compiled): pass\n"
    )
    command = [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:anyio", "."]
    env = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": str(ROOT)}
    for ci, message in (("", "1 skipped"), ("true", "CI is set")):
        env["CI"] = ci
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert message in done.stdout and "RuntimeError" not in done.stdout, done.stdout


def test_root_installs_missing_packages_and_a_user_gets_the_command(
    bare: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    venv = f"python3.{sys.version_info[1]}-venv"
    monkeypatch.setattr(system_packages, "_of_python", lambda: {"venv": Program("makes .venv", venv, "", "", "")})
    program(bare / "apt-get", RECORDS.format(code=0, policy=system_packages.POLICY))
    program(bare / "git")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert system_packages.main() == 0
    lines = capfd.readouterr().out.splitlines()
    remote = ["slurmctld", "munged", "sshd"]
    assert [line.split()[0] for line in lines] == ["g++", "zsh", "fish", *remote, "chromium", "systemd-analyze", "venv"]
    assert lines[0].endswith("apt-get install g++") and not (bare / "apt-get.log").exists()

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert system_packages.main() == 0
    calls = (bare / "apt-get.log").read_text().splitlines()
    assert len(calls) == 2 and calls[1].endswith(
        f"g++ zsh fish slurm-wlm munge openssh-server chromium systemd {venv} policy 101"
    )
    assert not system_packages.POLICY.exists()


def test_a_policy_of_the_machine_stays(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(bare / "apt-get", RECORDS.format(code=0, policy=system_packages.POLICY))
    program(system_packages.POLICY, "#!/bin/sh\nexit 104\n")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert system_packages.main() == 0
    assert (bare / "apt-get.log").read_text().endswith("policy 104\n") and system_packages.POLICY.exists()


def test_one_package_that_fails_does_not_stop_the_others(
    bare: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    program(bare / "apt-get", RECORDS.format(code=100, policy=system_packages.POLICY))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert system_packages.main() == 0
    assert "apt-get install fish" in capfd.readouterr().out
    assert any("recommends fish " in line for line in (bare / "apt-get.log").read_text().splitlines())


@pytest.mark.parametrize(
    ("manager", "gcc"),
    [("apt-get", "apt-get install g++"), ("dnf", "dnf install gcc-c++"), ("apk", "apk add g++")],
)
def test_the_command_is_that_of_the_distribution(bare: Path, manager: str, gcc: str) -> None:
    program(bare / manager)
    assert system_packages.how(PROGRAMS["g++"]) == gcc
    assert bool(system_packages.how(PROGRAMS["systemd-analyze"])) == (manager != "apk")


def test_on_a_mac_it_is_homebrew_or_xcode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    names = ("fish", "g++", "slurmctld")
    assert [system_packages.how(PROGRAMS[name]) for name in names] == [
        "brew install fish",
        "xcode-select --install",
        "",
    ]


def test_clang_is_a_package_only_where_there_is_no_wheel(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "clang" not in system_packages.missing()
    monkeypatch.setattr(system_packages.platform, "machine", lambda: "aarch64")
    assert "clang" in system_packages.missing()


def test_check_refuses_a_folder_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert system_packages.check() == 0
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert system_packages.check() == 1
    assert str(tmp_path) in capsys.readouterr().err


def test_check_names_the_package_of_ensurepip(
    bare: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    program(bare / "apt-get")
    assert system_packages.check() == 1
    assert f"hint: apt-get install python3.{sys.version_info[1]}-venv" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize(
    ("target", "installs", "extras"),
    [
        ("demo", False, ["train"]),
        ("fast", False, ["train", "test,lint"]),
        ("lint", False, ["train", "test,lint"]),
        ("docs", False, ["train", "test,lint"]),
        ("test", True, ["train", "test,lint", "mlx,tinygrad,jax,transformers,lightning,opcheck,images", "docs"]),
    ],
)
def test_only_make_test_installs_on_the_system(target: str, installs: bool, extras: list[str]) -> None:
    command = ["make", "-n", "-B", target, f"PYTHON={sys.executable}"]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert any(line.endswith("-m tests.system_packages") for line in lines) == installs
    assert re.findall(r"\.\[(.+)\]", "\n".join(lines)) == extras
    if installs:
        first = next(line for line in lines if "-m " in line)
        assert first.endswith("-m tests.system_packages")
