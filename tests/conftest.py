"""Fixtures of all tests: a queue and locks for each test, its time limit, and the signals that its processes inherit.

A test that starts workers, wardens, commands or servers, or takes tenths of a second, is marked `process`, one that
trains is marked `slow`; all others are `fast`. `@pytest.mark.timeout(300)` gives a test another limit than `LIMITS_S`.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from queue_runner.paths import Layout
from tests import system_packages
from tests.browser_support import chromium
from tests.cli_support import Cli, empty_queue
from tests.patience import patience
from tests.process_support import WITHOUT_PROC, WardenRun, hide_proc
from tests.queue_support import Queue

if TYPE_CHECKING:
    from playwright.sync_api import Browser

LIMITS_S = {"fast": 120, "process": 120, "slow": 600}
"""How long a test of each marker may take on a quiet machine, with its fixtures."""

CAMPAIGN_S = 7200
LONG = os.environ.get("MPSQ_CAMPAIGN") == "long"

if WITHOUT_PROC:
    hide_proc()
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")  # how long an example takes says nothing on a busy one


def pytest_configure() -> None:
    """Start processes with default dispositions: a background job of a shell, nohup and some CI ignore signals."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@pytest.hookimpl(tryfirst=True, wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Set the test's time limit, before pytest-timeout reads it."""
    mark = item.get_closest_marker("timeout")
    limit_s = mark.args[0] if mark else max(LIMITS_S[name] for name in LIMITS_S if item.get_closest_marker(name))
    if LONG:
        limit_s = CAMPAIGN_S
    item.add_marker(pytest.mark.timeout(patience(limit_s)), append=False)
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture of the test."""
    for mark in item.iter_markers("needs_program"):
        for program in mark.args:
            system_packages.require(program)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no module whose tests the marker expression leaves out: the frameworks take longer than all fast tests."""
    marker = config.option.markexpr
    if marker not in LIMITS_S or collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    text = collection_path.read_text()
    if marker == "fast":
        return re.search(r"^pytestmark = \[?pytest\.mark\.(process|slow)\b", text, re.MULTILINE) is not None or None
    return f"pytest.mark.{marker}" not in text or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long faults to `make campaign`."""
    if not LONG:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("campaign")])
        items[:] = [item for item in items if not item.get_closest_marker("campaign")]


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark as fast what is not marked otherwise."""
    if not any(item.get_closest_marker(name) for name in LIMITS_S):
        item.add_marker("fast")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An MPSQ_HOME that does not exist yet."""
    monkeypatch.setenv("MPSQ_LOCKS", str(tmp_path / "locks"))
    monkeypatch.setenv("MPSQ_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def mpsq(capsys: pytest.CaptureFixture[str]) -> Cli:
    """The commands, run in this process."""
    return Cli(capsys)


@pytest.fixture
def layout(home: Path) -> Layout:
    """A home with an empty database."""
    return empty_queue(home)


@pytest.fixture(autouse=True)
def locks_of_its_own(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the locks of this machine, and of other tests, out of a test that starts processes."""
    if request.node.get_closest_marker("process"):
        folder: Path = request.getfixturevalue("tmp_path") / "locks"
        folder.mkdir(mode=0o700)
        monkeypatch.setenv("MPSQ_LOCKS", str(folder))
        monkeypatch.delenv("MPSQ_STOP_AT", raising=False)


@pytest.fixture
def warden_run(tmp_path: Path, locks_of_its_own: None) -> Iterator[Callable[..., WardenRun]]:
    """Makes a run under a warden; what it left is ended after the test."""
    made: list[WardenRun] = []

    def make(argv: list[str], **changes: object) -> WardenRun:
        folder = tmp_path / f"run{len(made)}"
        folder.mkdir()
        made.append(WardenRun(folder, argv, **changes))
        return made[-1]

    yield make
    for run in made:
        assert run.clean_up() == []


@pytest.fixture
def queue(layout: Layout, tmp_path: Path) -> Iterator[Queue]:
    """A queue of its own, and nothing left of it afterwards."""
    queue = Queue(layout, tmp_path)
    yield queue
    queue.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium for all tests of a module."""
    with chromium() as started:
        yield started
