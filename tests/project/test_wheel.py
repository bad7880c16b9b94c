"""The wheel, installed where there is no checkout: commands, workloads and migrations are all in it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
REPORTS = {path.name for path in (ROOT / "jobs").glob("mpsq_report*.py")}
"""What users import: each is a module of its own besides its place among the jobs."""


SHIPPED = (".py", ".sql", ".j2", ".css", ".js", ".typed")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # built from a copy: a build leaves folders behind
    files = ["pyproject.toml", "setup.py", "README.md", "LICENSE", "requirements.txt"]
    for name in files:
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    for name in ("queue_runner", "jobs", "migrations", "mpsq"):
        for path in (ROOT / name).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                target = source / path.relative_to(ROOT)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(path.read_bytes())
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
        str(source),
    ]
    subprocess.run(build, check=True, timeout=120)
    (made,) = folder.glob("mpsq-*.whl")
    return made


def test_every_file_is_in_it_under_a_name_that_collides_with_nobody(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for path in [*(ROOT / "jobs").rglob("*.py"), *(ROOT / "migrations").rglob("*.py")]:
        if "__pycache__" not in path.parts:
            assert f"queue_runner/_{path.relative_to(ROOT)}" in names
    assert {
        str(path.relative_to(ROOT)) for path in (ROOT / "queue_runner").rglob("*") if path.suffix in SHIPPED
    } <= names
    assert {*REPORTS, "queue_runner/py.typed", "mpsq/__init__.py", "mpsq/py.typed"} <= names
    assert not [name for name in names if "egg-info" in name]
    assert {name.split("/")[0] for name in names if "dist-info" not in name} == {"mpsq", "queue_runner", *REPORTS}


def metadata(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        return archive.read(name).decode()


def test_links_of_its_description_are_absolute(wheel: Path) -> None:
    targets = re.findall(r"\]\(([^)]+)\)|src(?:set)?=\"([^\"]+)\"", metadata(wheel).partition("\n\n")[2])
    assert len(targets) >= 20
    assert not [target for pair in targets for target in pair if target and not target.startswith(("http", "#"))]


def test_requirements_txt_is_all_that_mpsq_imports_without_its_main_job(wheel: Path) -> None:
    lines = re.findall(r"^Requires-Dist: (.+)$", metadata(wheel), re.MULTILINE)
    required = {re.match(r"[\w-]+", line)[0].lower(): line for line in lines if "extra ==" not in line}  # type: ignore[index]
    trains = {"torch", "tiktoken", "numpy"}
    (torch,) = (line for line in lines if line.startswith("torch") and 'extra == "train"' in line)
    assert "platform_machine" in torch  # a Python under Rosetta can install mpsq, whose doctor names it
    needing_torch = {re.search(r'extra == "(\w+)"', line)[1] for line in lines if line.startswith("torch")}  # type: ignore[index]
    assert needing_torch == {"train", "transformers", "lightning", "opcheck"}
    listed = (ROOT / "requirements.txt").read_text("utf-8").splitlines()
    assert {match[0] for line in listed if (match := re.match(r"[\w-]+", line))} == required.keys()
    program = (
        "import importlib, pkgutil, sys\n"
        "import queue_runner\n"
        "for module in pkgutil.walk_packages(queue_runner.__path__, 'queue_runner.'):\n"
        "    if not module.name.startswith('queue_runner._') and not module.name.endswith('.__main__'):\n"
        "        importlib.import_module(module.name)\n"
        f"print(sorted({trains!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_submit_worker_report_in_a_clean_environment(wheel: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    paths = json.loads(
        subprocess.check_output([python, "-c", "import sysconfig, json; print(json.dumps(sysconfig.get_paths()))"])
    )
    site = Path(paths["purelib"])
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    # the dependencies are this environment's, but not its editable mpsq: a .pth in a folder named by a .pth is not read
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    env = {**os.environ, "MPSQ_HOME": str(tmp_path / "home"), "MPSQ_LOCKS": str(tmp_path / "locks")}

    def mpsq(*arguments: str) -> str:
        command = [str(python), "-m", "queue_runner.cli.main", *arguments]
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "nanogpt" in mpsq("workloads")
    offered = [str(python), "-m", "queue_runner.cli.__main__", "__complete", "fish", "mpsq submit nano"]
    assert "nanogpt" in subprocess.check_output(offered, env=env, cwd=tmp_path, text=True)
    assert mpsq("db", "path").strip() == str(tmp_path / "home" / "mpsq.db")
    mpsq("submit", "--name", "hello", "--", sys.executable, "-c", "pass")
    mpsq("worker", "--until-idle")
    (job,) = json.loads(mpsq("list", "--json"))["jobs"]
    assert job["name"] == "hello"
    assert "hello" in mpsq("report", "time")
    subprocess.run(
        [
            python,
            "-c",
            "import mpsq, mpsq_report; mpsq.Client(); assert '_jobs' not in mpsq_report.__file__",
        ],
        check=True,
        cwd=tmp_path,
    )
