"""What only a system package gives: how it is named, installed, and missed by a test."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import system_packages
from tests.cli_support import ROOT

RECORDS = """#!/bin/sh
echo "$*" >> "$0.log"
case "$*" in *update*) exit 0;; esac
exit {code}
"""


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it, on Linux."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(system_packages.platform, "machine", lambda: "x86_64")
    monkeypatch.delenv("CI", raising=False)
    return tmp_path


def program(path: Path, text: str = "#!/bin/sh\n") -> None:
    path.write_text(text)
    path.chmod(0o755)


def test_a_test_without_its_program_is_skipped_with_the_command(bare: Path) -> None:
    with pytest.raises(pytest.skip.Exception, match=r"needs g\+\+: .*apt-get install g\+\+"):
        system_packages.require("g++")
    program(bare / "g++")
    system_packages.require("g++")


def test_in_ci_it_fails(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    for ci, said in (("", "1 skipped"), ("true", "CI is set")):
        env["CI"] = ci
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert said in done.stdout and "RuntimeError" not in done.stdout, done.stdout


def test_root_installs_what_is_missing_and_a_user_is_told(
    bare: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(system_packages, "_of_python", lambda: {"venv": "makes .venv"})
    program(bare / "apt-get", RECORDS.format(code=0))
    program(bare / "git")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert system_packages.main() == 0
    said = capfd.readouterr().out.splitlines()
    remote = ["slurmctld", "munged", "sshd"]
    assert [line.split()[0] for line in said] == ["g++", "zsh", "fish", *remote, "chromium", "systemd-analyze", "venv"]
    assert said[0].endswith("install it with: apt-get install g++") and not (bare / "apt-get.log").exists()

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert system_packages.main() == 0
    calls = (bare / "apt-get.log").read_text().splitlines()
    venv = f"python3.{sys.version_info[1]}-venv"
    assert len(calls) == 2 and calls[1].endswith(f"g++ zsh fish slurm-wlm munge openssh-server chromium systemd {venv}")


def test_what_cannot_be_installed_does_not_keep_the_rest_from_it(
    bare: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    program(bare / "apt-get", RECORDS.format(code=100))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert system_packages.main() == 0
    assert "fish could not be installed: apt-get install fish" in capfd.readouterr().out
    assert any(line.endswith("recommends fish") for line in (bare / "apt-get.log").read_text().splitlines())


def test_clang_is_a_package_only_where_there_is_no_wheel(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "clang" not in system_packages.missing()
    monkeypatch.setattr(system_packages.platform, "machine", lambda: "aarch64")
    assert "clang" in system_packages.missing()


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("target", ["demo", "test"])
def test_the_commands_of_the_readme_begin_with_the_packages(target: str) -> None:
    command = ["make", "-n", "-B", target, f"PYTHON={sys.executable}"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert said.index("tests.system_packages") < said.index("-m venv")
