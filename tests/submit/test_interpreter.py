"""The interpreter of a command: uv's or a venv's, never mpsq's own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from queue_runner.paths import Layout
from queue_runner.submit.interpreter import of_command, torch_of
from tests.cli_support import Cli

pytestmark = pytest.mark.fast


def venv(folder: Path) -> str:
    """A folder that looks like a venv with torch in it."""
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    (folder / "lib" / "python3.12" / "site-packages" / "torch-2.9.1+cpu.dist-info").mkdir(parents=True)
    return str(python)


def of(folder: Path, *words: str, **env: str) -> str | None:
    return of_command(words, str(folder), {"PATH": f"{folder}/.venv/bin:/usr/bin:/bin", **env}, {})


def test_uv_run_names_the_venv_of_its_folder_or_project(tmp_path: Path) -> None:
    python = venv(tmp_path / ".venv")
    inner = tmp_path / "src"
    inner.mkdir()
    assert of(tmp_path, "uv", "run", "train.py", "--device=mps") == python
    assert of(inner, "uv", "run", "--quiet", "python", "train.py") == python, "uv looks above, too"
    other = venv(tmp_path / "other")
    assert of(tmp_path, "uv", "run", "train.py", VIRTUAL_ENV=str(tmp_path / "other")) == other
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    assert of(inner, "uv", "run", "train.py", VIRTUAL_ENV=str(tmp_path / "other")) == python, (
        "the project's comes first"
    )
    assert of(inner, "uv", "run", "train.py", UV_PROJECT_ENVIRONMENT="other") == other
    assert torch_of(python) == "2.9.1+cpu" and torch_of(sys.executable + "/nowhere") is None


@pytest.mark.parametrize("option", ["--with", "--isolated", "--no-project", "--python", "-p", "--with=torch"])
def test_an_environment_of_its_own_is_unknown(tmp_path: Path, option: str) -> None:
    venv(tmp_path / ".venv")
    assert of(tmp_path, "uv", "run", option, "train.py") is None
    (tmp_path / "train.py").write_text("# /// script\n# dependencies = []\n# ///\n")
    assert of(tmp_path, "uv", "run", "train.py") is None


def test_time_before_it_a_python_and_a_script_of_a_venv(tmp_path: Path) -> None:
    python = venv(tmp_path / ".venv")
    for before in (["time"], ["/usr/bin/time", "-l"], ["caffeinate", "-i"], ["env", "T=1", "B="]):
        assert of(tmp_path, *before, "uv", "run", "train.py") == python
    assert of(tmp_path, "env", "PATH=/bin", "python", "train.py") is None
    assert of(tmp_path, "python", "train.py") == python == of(tmp_path, ".venv/bin/python", "train.py")
    torchrun = tmp_path / ".venv" / "bin" / "torchrun"
    torchrun.write_text(f"#!{python}\n")
    torchrun.chmod(0o755)
    assert of(tmp_path, "torchrun", "train.py") == python
    assert of(tmp_path, "sh", "-c", "python train.py") is None is of(tmp_path, "nowhere")


def test_show_names_it_and_not_mpsqs_own(
    mpsq: Cli, layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = venv(tmp_path / "project" / ".venv")
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setattr("queue_runner.submit.environment_axis.check_program", lambda *_: None)  # uv need not be here
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    mpsq.ok("submit", "--", "uv", "run", "train.py")
    said = " ".join(mpsq.ok("show", "1").out.split())
    assert f"python {python} " in said and "torch 2.9.1+cpu" in said
    mpsq.ok("submit", "--", "sh", "-c", "true")
    assert "no Python interpreter" in mpsq.ok("show", "2").out


def test_real_uv_runs_what_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed")
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    (tmp_path / "train.py").write_text("import sys; print(sys.executable)")
    subprocess.run([uv, "venv", "--offline", "--python", sys.executable], cwd=tmp_path, check=True, capture_output=True)
    done = subprocess.run(
        [uv, "run", "--offline", "train.py"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    named = of(tmp_path, "uv", "run", "--offline", "train.py")
    assert named is not None and Path(done.stdout.strip()).parent == Path(named).parent
