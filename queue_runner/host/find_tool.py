"""Lookup of developer tools, and the command that installs one. Standard library only, for make.

On macOS some names in /usr/bin are stubs that prompt to install Apple's tools.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from functools import cache

from queue_runner.host.command import ask

XCODE = "xcode-select --install"
_SHIMS = "/usr/bin"


def find(name: str, *, platform: str = sys.platform, installed: Callable[[], bool] | None = None) -> str | None:
    """Return the path of a compiler or of git; None where there is none, or where calling it would only open macOS's
    prompt to install the command line tools. `installed` returns whether they are installed.
    """
    path = shutil.which(name)
    if path is None or platform != "darwin" or os.path.dirname(path) != _SHIMS:  # noqa: PTH120 - a string
        return path
    return path if (installed or _tools_installed)() else None


@cache
def _tools_installed() -> bool:
    """Return whether xcode-select(1) -p finds the tools; it fails where there are none and opens no window."""
    return ask(["/usr/bin/xcode-select", "-p"]) is not None


def install_hint(apt: str = "", dnf: str = "", apk: str = "", brew: str = "") -> str:
    """Return the command that installs the package, named as each package manager names it.

    Without an argument for this system's manager the text is empty. `brew` may be a whole command, such as `XCODE`.
    """
    if sys.platform == "darwin":
        return brew if " " in brew or not brew else f"brew install {brew}"
    for command, package in (("apt-get install", apt), ("dnf install", dnf), ("apk add", apk)):
        if shutil.which(command.split()[0]):
            return f"{command} {package}" if package else ""
    return f"install the package that Debian calls {apt}" if apt else ""
