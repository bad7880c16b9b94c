"""Programs that only a system package provides. `make system` installs them as root on Debian, and else says how.

A test that needs one is marked needs_program("git"), or calls require("git"): without the program it is skipped, and
where CI is set it fails. This module runs before there is an environment: standard library only.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from queue_runner.host.find_tool import XCODE, install_hint

OLDEST = (3, 11)
POLICY = Path("/usr/sbin/policy-rc.d")
"""Debian starts the service of a package that it installs, unless this program ends with 101."""


@dataclass(frozen=True)
class Program:
    """The packages that provide a program; an empty text where a system has none."""

    purpose: str
    apt: str
    dnf: str
    apk: str
    brew: str


PROGRAMS = {
    "g++": Program("compiles for torch.compile and for MLX on Linux", "g++", "gcc-c++", "g++", XCODE),
    "git": Program("stores the code of a job", "git", "git", "git", XCODE),
    "clang": Program("compiles for tinygrad's CPU", "clang", "clang", "clang", XCODE),
    "zsh": Program("the tests of completion run it", "zsh", "zsh", "zsh", "zsh"),
    "fish": Program("the tests of completion run it", "fish", "fish", "fish", "fish"),
    "slurmctld": Program("the tests of --on slurm start a cluster", "slurm-wlm", "slurm-slurmctld", "slurm", ""),
    "munged": Program("authenticates within that cluster", "munge", "munge", "munge", ""),
    "sshd": Program("the tests of --on ssh:HOST start it", "openssh-server", "openssh-server", "openssh-server", ""),
    "chromium": Program("the tests of pages open them in it", "chromium", "chromium", "chromium", ""),
    "systemd-analyze": Program("the tests of the service run it", "systemd", "systemd", "", ""),
}


def _of_python() -> dict[str, Program]:
    """Return the parts of this Python that are missing: a distribution may package them apart."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    parts = {}
    try:
        import ensurepip  # noqa: F401
    except ImportError:
        parts["venv"] = Program("makes the environment .venv", f"{version}-venv", "python3-libs", "python3", "python")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        purpose = "compiled code of torch.compile includes it"
        parts["Python.h"] = Program(purpose, f"{version}-dev", "python3-devel", "python3-dev", "python")
    return parts


def how(program: Program) -> str:
    """Return the command that installs a program here; empty where no package has it."""
    return install_hint(program.apt, program.dnf, program.apk, program.brew)


def require(name: str) -> None:
    """Skip the test that calls this when the program is missing; fail it where CI is set and a package has it."""
    import pytest

    if is_installed(name):
        return
    command = how(PROGRAMS[name])
    reason = f"needs {name}: {command} (or, as root, make system)" if command else f"this system has no {name}"
    if command and os.environ.get("CI", "").lower() not in ("", "0", "false"):
        pytest.fail(f"{reason} (CI is set: nothing is skipped for want of a package)", pytrace=False)
    pytest.skip(reason)


def is_installed(name: str) -> bool:
    """Return whether the program works. On a Mac without Apple's tools git and g++ only offer to install them."""
    path = shutil.which(name)
    if sys.platform != "darwin" or PROGRAMS[name].brew != XCODE or not (path or "").startswith("/usr/bin/"):
        return path is not None
    return subprocess.run(["/usr/bin/xcode-select", "-p"], capture_output=True, check=False).returncode == 0


def missing() -> dict[str, Program]:
    """Return the programs that the tests need and this system lacks."""
    wheel = sys.platform == "linux" and platform.machine() == "x86_64"  # pip installs clang there
    absent = {
        name: program
        for name, program in PROGRAMS.items()
        if how(program) and not (name == "clang" and wheel) and not is_installed(name)
    }
    return absent | (_of_python() if sys.platform == "linux" and sys.version_info >= OLDEST else {})


def main() -> int:
    """Name what is missing, and install it where this is root on Debian. Return 0: what needs a program says so."""
    absent = missing()
    root = os.geteuid() == 0 and sys.platform == "linux" and shutil.which("apt-get") is not None
    for name, program in absent.items():
        print(f"{name} is missing ({program.purpose}); {'installing' if root else 'to install it'}: {how(program)}")
    sys.stdout.flush()
    if root and absent and not _install([program.apt for program in absent.values()]):
        for name, program in missing().items():
            print(f"{name} could not be installed: {how(program)}", flush=True)
    return 0


def check() -> int:
    """Say why .venv cannot be made here, for the targets that install nothing. Return 1 in that case."""
    if not os.access(".", os.W_OK):
        print(f"error: {Path.cwd()} cannot be written, and make puts .venv and var into it", file=sys.stderr)
        print("\nhint: copy the folder to a place that you can write", file=sys.stderr)
        return 1
    if venv := _of_python().get("venv"):
        print(f"error: this Python cannot make an environment: {sys.executable} has no ensurepip", file=sys.stderr)
        print(f"\nhint: {how(venv)}, or name another: make PYTHON=python3.13 ...", file=sys.stderr)
        return 1
    return 0


def _install(packages: Sequence[str]) -> bool:
    def apt_get(*words: str) -> bool:
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        return (
            subprocess.run(["apt-get", "-qq", *words], env=env, stdout=subprocess.DEVNULL, check=False).returncode == 0
        )

    with _no_services():
        apt_get("update")
        if apt_get("install", "-y", "--no-install-recommends", *packages):
            return True
        return all([apt_get("install", "-y", "--no-install-recommends", package) for package in packages])


@contextmanager
def _no_services() -> Iterator[None]:
    """Keep the installed packages, such as sshd's, from starting their services. A policy that is there stays."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink()


if __name__ == "__main__":
    sys.exit(check() if "--check" in sys.argv else main())
