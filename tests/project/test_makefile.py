"""The Makefile finds an interpreter that mpsq runs on, or says what to do: with stand-ins on a PATH of their own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli_support import ROOT

MAKE = shutil.which("make")
pytestmark = [pytest.mark.process, pytest.mark.skipif(MAKE is None, reason="needs make")]

STAND_IN = """#!/bin/sh
case "$1" in
    --version) echo "Python {version}.6";;
    -c) exec {python} -c "import sys; sys.version_info = tuple(map(int, '{version}.6'.split('.'))){without}; $2";;
    *) echo "$0 $*" >> {log};;
esac
"""
"""An interpreter of another version: it answers what the Makefile asks, and notes all else."""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    return tmp_path / "log"


def interpreter(log: Path, name: str, version: str) -> None:
    path = log.parent / "bin" / name
    version, lacks, module = version.partition(" without ")
    without = f"; sys.modules['{module}'] = None" if lacks else ""
    path.write_text(STAND_IN.format(version=version, without=without, python=sys.executable, log=log))
    path.chmod(0o755)


def make(log: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": str(log.parent / "bin"), "HOME": str(log.parent), "LC_ALL": "C"}
    return subprocess.run(
        [str(MAKE), *words], cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize(
    ("there", "chosen"),
    [
        ({"python3": "3.12"}, "python3"),
        ({"python3": "3.12", "python3.14": "3.14"}, "python3.14"),
        ({"python3": "3.12", "python3.13": "3.13 without ensurepip"}, "python3"),
        ({"python3": "3.9", "python3.11": "3.11", "python3.13": "3.13"}, "python3.13"),
        ({"python3": "3.15", "python3.14": "3.14", "python3.13": "3.13"}, "python3.14"),
        ({"python3.12": "3.12"}, "python3.12"),
        (
            {"python3": "3.9", "python3.13": "3.9", "python3.12": "3.12"},
            "python3.12",
        ),  # a name that is not what it says
    ],
)
def test_the_newest_that_fits_is_taken(log: Path, there: dict[str, str], chosen: str) -> None:
    for name, version in there.items():
        interpreter(log, name, version)
    assert make(log, "system").returncode == 0
    (line,) = log.read_text().splitlines()
    assert Path(line.split()[0]).name == chosen


@pytest.mark.parametrize("target", ["demo", "test", "sizes"])
def test_every_target_takes_the_same(log: Path, target: str) -> None:
    for name, version in {"python3": "3.9", "python3.12": "3.12"}.items():
        interpreter(log, name, version)
    planned = make(log, "-n", "-B", target)
    assert planned.returncode == 0, planned
    lines = [line for line in planned.stdout.splitlines() if "tests.system_packages" in line or "sizes.py" in line]
    assert {line.split()[0].lstrip("@") for line in lines} == {"python3.12"}


@pytest.mark.parametrize("target", ["demo", "test"])
@pytest.mark.parametrize(
    ("there", "words"),
    [
        ({"python3": "3.9"}, []),
        ({"python3": "3.15"}, []),
        ({}, []),
        ({"python3": "3.12", "python3.9": "3.9"}, ["PYTHON=python3.9"]),
    ],
)
def test_no_fitting_interpreter_is_an_error_with_a_remedy(
    log: Path, target: str, there: dict[str, str], words: list[str]
) -> None:
    for name, version in there.items():
        interpreter(log, name, version)
    done = make(log, "-B", target, *words)
    assert done.returncode != 0 and not log.exists()
    assert "needs Python 3.11 to 3.14" in done.stderr, done
    assert f"make {target} PYTHON=python3.13" in done.stderr
    for version in there.values():
        assert f"{version}.6" in done.stderr or version == "3.12"
