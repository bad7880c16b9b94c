"""On a box without mpsq: `python -c SOURCE FOLDER VERSION` makes an environment in FOLDER, of wheels that come as a tar
archive on standard input, and with the packages of this Python. The answer is as that of box.py.

The box has only this file: nothing of mpsq is imported.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path

MARK = "mpsq-answer-1"
_MOST_LINES = 3


def main(folder: Path, version: str) -> dict[str, str]:
    """Make the environment, if it is not there; return its interpreter, or the error."""
    python = folder / "bin" / "python"
    if _has_mpsq(python, version):
        return {"python": str(python)}
    shutil.rmtree(folder, ignore_errors=True)
    try:
        wheels = folder / "wheels"
        wheels.mkdir(mode=0o700, parents=True)
        with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
            for member in archive:
                if member.isfile() and "/" not in member.name:
                    archive.extract(member, wheels)
        venv.create(folder, system_site_packages=True, with_pip=True)
        if sys.prefix != sys.base_prefix:  # an environment itself, whose packages are none of the system
            packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
            base = sysconfig.get_path("purelib")  # with what its own .pth files add, as one of an older mpsq
            (packages / "mpsq_base.pth").write_text(f"import site; site.addsitedir({base!a})\n")
        error = _install(python, wheels, version)
        shutil.rmtree(wheels)
    except (OSError, subprocess.CalledProcessError, tarfile.TarError) as problem:
        error = str(problem)
    if not error and not _has_mpsq(python, version):
        error = f"{python} does not find mpsq {version}"
    if error:
        shutil.rmtree(folder, ignore_errors=True)
        return {"error": error}
    return {"python": str(python)}


def _install(python: Path, wheels: Path, version: str) -> str:
    """Install mpsq from the wheels; what they have for another platform alone comes from the index of pip. Return the
    error, "" if there is none."""
    for source in (["--no-index"], []):
        done = subprocess.run(
            [
                *(str(python), "-P", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *source),
                *("--find-links", str(wheels), "--constraint", str(wheels / "constraints.txt"), f"mpsq=={version}"),
            ],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode == 0:
            return ""
    lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return "pip: " + " ".join(lines[-_MOST_LINES:])


def _has_mpsq(python: Path, version: str) -> bool:
    """Return whether an interpreter has this version of mpsq, as its metadata say."""
    code = "import importlib.metadata as m, queue_runner; print(m.version('mpsq'))"
    try:
        done = subprocess.run(
            [str(python), "-I", "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    except OSError:
        return False
    return done.stdout.strip() == version


if __name__ == "__main__":
    try:
        answer = main(Path(sys.argv[1]).expanduser(), sys.argv[2])
    except RuntimeError:
        answer = {"error": f"{sys.argv[1]} begins with the home of a user that does not exist"}
    print(f"\n{MARK}\n{json.dumps(answer)}", flush=True)
