"""What mpsq web holds while nobody asks it for anything."""

from __future__ import annotations

import sys
import urllib.request
from pathlib import Path

import psutil
import pytest

from tests.bench_web import fill
from tests.cli_support import full_queue
from tests.queue_support import until
from tests.web.server_support import served

pytestmark = [pytest.mark.process]

MB = 1e6
PAGES = (
    "",
    "history",
    "job/1",
    "job/2",
    "job/5",
    "log/1.1",
    "compare",
    "compare?id=g1",
    "compare?id=g1&report=breakdown",
)
linux = pytest.mark.skipif(sys.platform != "linux", reason="on macOS the kernel takes freed memory when it needs it")


def own_mb(pid: int) -> float:
    """Its memory without what it shares with other programs: the libraries of Python, 10 to 13 MB of its RSS."""
    return float(psutil.Process(pid).memory_full_info().uss / MB)


def opened(address: str) -> bytes:
    with urllib.request.urlopen(address) as answer:
        return bytes(answer.read())


@linux
def test_it_holds_little_at_rest_and_after_every_page_was_opened(home: Path) -> None:
    """28 MB in all at its start, 19 of its own; 27 of its own once everything is loaded that pages need."""
    full_queue(home)
    with served(home) as server:
        assert psutil.Process(server.process.pid).memory_info().rss / MB < 33
        for page in PAGES:
            assert b"</html>" in opened(f"{server.base}/{page}")
        until(lambda: own_mb(server.process.pid) < 30, "rest", 10)


@linux
def test_a_page_of_many_jobs_is_given_back(home: Path) -> None:
    """glibc keeps what it freed below what is in use: 10,000 jobs on one page left 140 MB where 40 had been."""
    fill(home, 3000)
    with served(home) as server:
        assert len(opened(f"{server.base}/history?n=3000")) > 2e5
        until(lambda: own_mb(server.process.pid) < 40, "rest", 10)
