"""The limit of open files of a job. macOS allows a terminal's programs 256, too few for data loaders and caches of
many files, and a service the limit in its definition: jobs get the same from both."""

from __future__ import annotations

import resource
import sys

WANTED = 4096
"""The limit in the service's definition. macOS's own limit (OPEN_MAX, 10,240) is above it."""


def allow(platform: str = sys.platform) -> None:
    """Raise the limit of this process, which its children inherit, on macOS; elsewhere the default suffices."""
    if platform != "darwin":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft == resource.RLIM_INFINITY or soft >= limit:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    except (OSError, ValueError):
        return  # jobs keep the lower limit
