"""Where a developer's program is. On macOS some names in /usr/bin are no programs but ask for Apple's tools."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from functools import cache

from queue_runner.host.command import ask

_SHIMS = "/usr/bin"


def find(name: str, *, platform: str = sys.platform, installed: Callable[[], bool] | None = None) -> str | None:
    """The path of a compiler or of git; None where there is none, or where calling it would only open macOS's window
    that offers to install the command line tools. `installed` tells whether they are there.
    """
    found = shutil.which(name)
    if found is None or platform != "darwin" or os.path.dirname(found) != _SHIMS:  # noqa: PTH120 - a text
        return found
    return found if (installed or _tools_installed)() else None


@cache
def _tools_installed() -> bool:
    """xcode-select(1) -p prints where the tools are, and fails where there are none; it opens no window."""
    return ask(["/usr/bin/xcode-select", "-p"]) is not None
