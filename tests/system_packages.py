"""Programs that only a package of the system gives. `make system` installs them as root, and else says how.

A test that needs one of them is marked needs_program("git"), or calls require("git"): without the program it is
skipped, and where CI is set it fails. This runs before there is an environment: standard library only.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

XCODE = "xcode-select --install"
OLDEST = (3, 11)


@dataclass(frozen=True)
class Program:
    """Who gives a program; an empty text where nothing does on that system."""

    purpose: str
    apt: str
    mac: str


PROGRAMS = {
    "g++": Program("compiles for torch.compile and for MLX on Linux", "g++", XCODE),
    "git": Program("keeps the code of a job", "git", XCODE),
    "clang": Program("compiles for tinygrad's CPU", "clang", XCODE),
    "zsh": Program("the tests of completion run it", "zsh", "brew install zsh"),
    "fish": Program("the tests of completion run it", "fish", "brew install fish"),
    "slurmctld": Program("the tests of --on slurm start a cluster of their own", "slurm-wlm", ""),
    "munged": Program("authenticates within that cluster", "munge", ""),
    "sshd": Program("the tests of --on ssh:HOST start one of their own", "openssh-server", ""),
    "chromium": Program("the tests of pages open them in it", "chromium", ""),
    "systemd-analyze": Program("the tests of the service run it", "systemd", ""),
}


def how(program: str) -> str:
    """The command that installs a program here; empty where there is none on this system."""
    known = PROGRAMS[program]
    if sys.platform == "darwin":
        return known.mac
    return f"apt-get install {known.apt}" if sys.platform == "linux" else ""


def require(program: str) -> None:
    """Skip the test that calls this when the program is missing; fail it where CI is set and a package has it."""
    import pytest

    if there(program):
        return
    command = how(program)
    reason = f"needs {program}: {command} (or, as root, make system)" if command else f"this system has no {program}"
    if command and os.environ.get("CI", "").lower() not in ("", "0", "false"):
        pytest.fail(f"{reason} (CI is set: nothing is skipped for want of a package)", pytrace=False)
    pytest.skip(reason)


def there(program: str) -> bool:
    """On a Mac without Apple's tools git and g++ are names that only offer to install them."""
    found = shutil.which(program)
    if sys.platform != "darwin" or PROGRAMS[program].mac != XCODE or not (found or "").startswith("/usr/bin/"):
        return found is not None
    return subprocess.run(["/usr/bin/xcode-select", "-p"], capture_output=True, check=False).returncode == 0


def missing() -> dict[str, str]:
    """What `make system` has to install, and what for."""
    wheel = sys.platform == "linux" and platform.machine() == "x86_64"  # pip installs clang there
    absent = [name for name in PROGRAMS if how(name) and not (name == "clang" and wheel) and not there(name)]
    found = {name: PROGRAMS[name].purpose for name in absent}
    if sys.platform == "linux" and sys.version_info >= OLDEST:
        found |= _of_python()
    return found


def _of_python() -> dict[str, str]:
    """Debian's own Python comes in pieces."""
    found = {}
    try:
        import ensurepip  # noqa: F401
    except ImportError:
        found["venv"] = "makes the environment .venv"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        found["Python.h"] = "compiled code of torch.compile includes it"
    return found


def _package(name: str) -> str:
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    return {"venv": f"{version}-venv", "Python.h": f"{version}-dev"}.get(name) or PROGRAMS[name].apt


def _command(name: str) -> str:
    return how(name) if name in PROGRAMS else f"apt-get install {_package(name)}"


def main() -> int:
    """Install what is missing, where this is root on a Debian; else name it. Never an error: what needs it says so."""
    absent = missing()
    root = os.geteuid() == 0 and sys.platform == "linux" and shutil.which("apt-get") is not None
    course = "installing: " if root else "install it with: "
    for name, purpose in absent.items():
        print(f"{name} is missing ({purpose}); {course}{_command(name)}", flush=True)
    if root and absent and not _install([_package(name) for name in absent]):
        for name in missing():
            print(f"{name} could not be installed: {_command(name)}", flush=True)
    return 0


def _install(packages: Sequence[str]) -> bool:
    def apt_get(*words: str) -> bool:
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        return (
            subprocess.run(["apt-get", "-qq", *words], env=env, stdout=subprocess.DEVNULL, check=False).returncode == 0
        )

    apt_get("update")
    if apt_get("install", "-y", "--no-install-recommends", *packages):
        return True
    return all([apt_get("install", "-y", "--no-install-recommends", package) for package in packages])


if __name__ == "__main__":
    sys.exit(main())
