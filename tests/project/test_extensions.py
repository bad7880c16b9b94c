"""The core works without the optional packages: each may be deleted, and nothing else misses it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from queue_runner import extensions

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
OPTIONAL = ("bundles", "export", "mcp", "pages", "referee", "remote", "web")
NEEDED_BY = {"referee": ["mcp"], "pages": ["web"], "export": ["bundles", "remote"], "bundles": ["remote"]}
"""Optional packages that use another one, and go with it."""
WITHOUT_FINDER = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in getattr(finder, "__module__", "")]
"""
"""Of an editable install, the finder leads to the modules of the checkout, also to those that the copy lacks."""

LONG = "MPSQ_CAMPAIGN" in os.environ
each = pytest.mark.skipif(not LONG, reason="one by one in make campaign")
TESTS_OF = {"mcp": "mcp_server"}
"""Where the folder of tests has another name: some tests put tests/ on sys.path, and the SDK's package is mcp."""
OF_THE_WHOLE = ("tests/project", "tests/faults")
"""Tests of the whole checkout: documents name what each package does, and bugs are planted in them."""
SUITES = [f"tests/{name}" for name in ("cli", "control", "monitor", "reports", "root", "submit")]
if LONG:
    SUITES = ["tests", *(f"--ignore={folder}" for folder in OF_THE_WHOLE)]
"""Whose fast tests run without the packages: of what looks them up in the registry. That nothing else of the core
imports them, test_layers reads in the code; `make campaign` runs all."""


def copy_without(packages: list[str], folder: Path) -> dict[str, str]:
    """Copy the checkout without these packages and their tests. Return the environment for programs in the copy."""
    for name in ("queue_runner", "mpsq", "jobs", "migrations", "tests", "docs", "examples", "changelog.d"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True)  # with what is compiled, which knows its source
    (folder / "var").mkdir()
    shutil.copy2(ROOT / "var" / "README.md", folder / "var" / "README.md")
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy2(path, folder / path.name)
    for command in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    for package in packages:
        shutil.rmtree(folder / "queue_runner" / package)
        shutil.rmtree(folder / "tests" / TESTS_OF.get(package, package))
    site = folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(WITHOUT_FINDER)
    return {**os.environ, "PYTHONPATH": f"{site}:{folder}", "MPSQ_HOME": str(folder / "home")}


def test_every_optional_package_is_installed() -> None:
    assert {point.value.split(":")[0] for point in extensions.entry_points()} >= {
        f"queue_runner.{name}" for name in OPTIONAL
    }
    assert len(extensions.installed()) >= len(OPTIONAL)


@pytest.mark.parametrize(
    "removed", [list(OPTIONAL), *(pytest.param([name, *NEEDED_BY.get(name, [])], marks=each) for name in OPTIONAL)]
)
def test_the_core_works_without(removed: list[str], tmp_path: Path) -> None:
    environment = copy_without(removed, tmp_path)

    def mpsq(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "queue_runner.cli", *words]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    overview = mpsq("--help")
    assert overview.returncode == 0, overview.stderr
    assert ("web " in overview.stdout) == ("web" not in removed)
    assert ("--html" in mpsq("report", "--help").stdout) == ("pages" not in removed)
    if "web" in removed:
        assert (mpsq("web").returncode, mpsq("web").stderr.split("\n")[0]) == (2, 'error: unknown command "web"')
    if "remote" in removed:
        answer = mpsq("submit", "--on", "box", "--", "true")
        assert answer.returncode == 2 and "hint: " in answer.stderr, answer.stderr
    for words in (["submit", "--", "true"], ["worker", "--until-idle"], ["status"], ["report"], ["show", "1"]):
        answer = mpsq(*words)
        assert answer.returncode == 0, f"mpsq {words}: {answer.stderr}"
    suite = subprocess.run(
        [sys.executable, "-m", "pytest", *SUITES, "-m", "fast", "-q"],
        cwd=tmp_path,
        env={name: value for name, value in environment.items() if not name.startswith(("MPSQ_", "PYTEST_"))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert suite.returncode == 0, suite.stdout[-8000:]
