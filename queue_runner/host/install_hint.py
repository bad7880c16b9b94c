"""The command with which a person installs a package of this system. Standard library only, for make."""

from __future__ import annotations

import shutil
import sys

XCODE = "xcode-select --install"


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
