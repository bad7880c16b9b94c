"""How many files a job may have open. macOS gives a terminal's programs 256, which data loaders and caches of many
files go beyond, and a service what its definition says: jobs get the same from both."""

from __future__ import annotations

import resource
import sys

WANTED = 4096
"""As the service's definition has it. macOS's own limit (OPEN_MAX, 10,240) is above it."""


def allow(platform: str = sys.platform) -> None:
    """Raise the limit of this process, which its children inherit, on macOS; elsewhere it is enough as it is."""
    if platform != "darwin":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        return  # jobs have fewer, then
