"""A signal handler may end a wait at any moment of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.patience import patience

pytestmark = [pytest.mark.process]

PROGRAM = """
import signal, sys
from {module} import {name} as Stop

def handle(*_):
    sys.setprofile(None)
    stop.set()

def interrupt(frame, event, argument):
    global left
    if event.startswith("c_"):
        left -= 1
        if left == 0:
            signal.raise_signal(signal.SIGALRM)

signal.signal(signal.SIGALRM, handle)
for number in range(1, 12):
    stop, left = Stop(), number
    sys.setprofile(interrupt)
    stop.wait(1e-3)
    sys.setprofile(None)
    assert stop.is_set() == (left <= 0)
assert stop.wait(1e-3) or not stop.is_set()
"""


def test_a_signal_handler_may_set_it_at_any_moment_of_a_wait() -> None:
    """With a threading.Event, SIGTERM could leave a worker that never ends."""
    program = PROGRAM.format(module="queue_runner.host.stop_signal", name="StopSignal")
    ended = subprocess.run([sys.executable, "-c", program], timeout=patience(20), capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_that_signal_would_stop_an_event_for_ever() -> None:
    """Otherwise the test above proves nothing."""
    program = PROGRAM.format(module="threading", name="Event")
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([sys.executable, "-c", program], timeout=patience(3), capture_output=True)
