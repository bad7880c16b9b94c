"""`make release`: build sdist and wheel, check them, and use the wheel in every Python that is here.

It publishes nothing. What is installed with it is what pip, pipx and uvx choose by themselves."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import queue_runner
from tests.queue_support import ANY_MACHINE

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
BIN = Path(sys.executable).parent
VERSIONS = ("3.11", "3.12", "3.13", "3.14")


class ReleaseError(Exception):
    """What has to be done before this can be released."""


def run(*words: str | Path, env: Mapping[str, str] | None = None, cwd: Path = ROOT) -> str:
    """Run a command and return its output. Raises ReleaseError with its last lines if it fails."""
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, env=env, capture_output=True, text=True, timeout=900, check=False
    )
    if done.returncode:
        output = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        raise ReleaseError(f"{' '.join(map(str, words))}\nended with {done.returncode}:\n{output}")
    return done.stdout


def changelog(root: Path = ROOT, version: str = queue_runner.__version__) -> None:
    """Raise ReleaseError unless the changelog's newest section is this version's and no change waits for a section."""
    waiting = sorted(path.name for path in (root / "changelog.d").glob("*.md") if path.name != "README.md")
    newest = re.search(r"^## (\S+)", (root / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    if waiting:
        raise ReleaseError(f"{len(waiting)} changes are not in CHANGELOG.md yet: make changelog puts them there")
    if newest is None or newest[1] != version:
        raise ReleaseError(f"the newest section of CHANGELOG.md is not that of {version}, queue_runner.__version__")


def build() -> Path:
    """The wheel, built from the sdist as an installer would, both with checked metadata."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(BIN / "validate-pyproject", "pyproject.toml")
    run(sys.executable, "-m", "build", "--outdir", DIST)
    made = sorted(DIST.iterdir())
    run(sys.executable, "-m", "twine", "check", "--strict", *made)
    (wheel,) = DIST.glob(f"mpsq-{queue_runner.__version__}-py3-none-any.whl")
    (_sdist,) = DIST.glob(f"mpsq-{queue_runner.__version__}.tar.gz")
    return wheel


def interpreters() -> dict[str, str]:
    """The interpreter of each version that mpsq runs on and that uv finds on this machine; uv downloads none."""
    interpreters_by_version = {}
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    places = [*map(str, sorted(pyenv.glob("versions/*/bin"))), os.environ["PATH"]]  # uv sees of pyenv the shims alone
    env = {**os.environ, "PATH": os.pathsep.join(places)}
    for version in VERSIONS:
        words = [str(BIN / "uv"), "python", "find", "--no-python-downloads", "--no-project", "--system", version]
        done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            interpreters_by_version[version] = done.stdout.strip()
    return interpreters_by_version


def submit_to_report(mpsq: Sequence[str | Path], folder: Path, env: Mapping[str, str]) -> None:
    """Two commands, four runs each, and their report, in a new home. Raises ReleaseError if one is missing in it."""
    home = folder / "home"
    home.mkdir(parents=True, mode=0o700)
    (home / "config.toml").write_text(ANY_MACHINE)
    env = {**env, "MPSQ_HOME": str(home), "MPSQ_LOCKS": str(folder / "locks")}

    def said(*words: str) -> str:
        return run(*mpsq, *words, env=env, cwd=folder)

    version = said("--version")
    if queue_runner.__version__ not in version:
        raise ReleaseError(f"{mpsq[0]} runs another mpsq: {version.strip()}")
    said("submit", "--name", "quick", "--set", "s=0.01,0.02", "--repeats", "4", "--", "sleep", "{s}")
    said("worker", "--until-idle")
    outcomes = [each["run"]["outcome"] for each in json.loads(said("show", "g1", "--json"))["runs"]]
    report = said("report", "@last", "--explain")
    if outcomes != ["SUCCEEDED"] * 8 or "0.01" not in report or "0.02" not in report:
        raise ReleaseError(f"eight runs were queued and are to be in the report, not {outcomes}:\n{report}")
    if "nanogpt" not in said("workloads"):
        raise ReleaseError("the wheel brings no workloads")


def by_hand(root: Path = ROOT) -> list[str]:
    """What remains to be done after this, in order."""
    version = queue_runner.__version__
    source = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Source"]
    placeholder = [f"write the repository's address for {source} into pyproject.toml"] if ".example/" in source else []
    return [*placeholder, f"git tag v{version}", "the upload"]


def tried(wheel: Path, folder: Path) -> list[str]:
    """Install and use the wheel in each Python with pip, and in this one with pipx and uvx. Returns what was done."""
    # no path and no setting of this checkout: what is found is what was installed
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MPSQ_", "VIRTUAL_ENV"))
    }
    env = {**clean, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    env |= {"PIPX_HOME": str(folder / "pipx"), "UV_TOOL_DIR": str(folder / "uv"), "UV_PYTHON_DOWNLOADS": "never"}
    there, done = interpreters(), []
    for version, python in there.items():
        place = folder / version
        run(python, "-m", "venv", place, env=env)
        run(place / "bin" / "python", "-m", "pip", "install", "--quiet", wheel, env=env)
        submit_to_report([place / "bin" / "mpsq"], folder / f"home-{version}", env)
        done.append(f"Python {version}: pip install, submit to report")
        print(done[-1], flush=True)
        shutil.rmtree(place)
    if not there:
        raise ReleaseError(f"none of Python {', '.join(VERSIONS)} is on this machine")
    newest = list(there.values())[-1]
    runners = {
        "pipx run": [BIN / "pipx", "run", "--python", newest, "--spec", wheel, "mpsq"],
        "uvx": [BIN / "uvx", "--python", newest, "--from", wheel, "mpsq"],
    }
    for name, words in runners.items():
        submit_to_report(words, folder / f"home-{name.replace(' ', '-')}", env)
        done.append(f"{name}, Python {list(there)[-1]}: submit to report")
        print(done[-1], flush=True)
    if missing := [version for version in VERSIONS if version not in there]:
        done.append(f"not on this machine, so not tried: Python {', '.join(missing)}")
        print(done[-1], flush=True)
    return done


def main() -> int:
    try:
        changelog()
        wheel = build()
        print(f"built and checked: {', '.join(sorted(path.name for path in DIST.iterdir()))}", flush=True)
        with tempfile.TemporaryDirectory(prefix="mpsq-release-") as folder:
            tried(wheel, Path(folder))
    except ReleaseError as error:
        print(f"not ready for a release: {error}", file=sys.stderr)
        return 1
    print(f"ready: mpsq {queue_runner.__version__}; by hand: {'; '.join(by_hand())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
