"""Calls in a child process: one process for many calls, and an end for those that do not answer."""

from __future__ import annotations

import os
import signal
import time

import pytest

from queue_runner.host.child import Child, TookTooLong, call

LONG_S = 60.0


def test_calls_share_one_process() -> None:
    child = Child()
    try:
        pids = set()
        for _ in range(3):
            child.begin(os.getpid)
            assert child.wait(LONG_S)
            pids.add(child.answer())
        assert len(pids) == 1 and os.getpid() not in pids
    finally:
        child.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pids.pop(), 0)


def test_a_child_that_is_started_ahead_has_its_modules() -> None:
    child = Child("queue_runner.source.verify")
    try:
        child.start()
        child.begin(eval, "'queue_runner.source.verify' in __import__('sys').modules")
        assert child.wait(LONG_S) and child.answer()
    finally:
        child.close()


def test_an_exception_of_the_call_is_raised() -> None:
    with pytest.raises(FileNotFoundError):
        call(LONG_S, os.stat, "/no/such/file")


def test_an_answer_larger_than_a_pipe_arrives_whole() -> None:
    assert call(LONG_S, bytes, 3_000_000) == bytes(3_000_000)


def test_a_call_without_end_is_ended() -> None:
    with pytest.raises(TookTooLong):
        call(0.1, time.sleep, LONG_S)


def test_a_new_child_follows_one_that_was_killed() -> None:
    child = Child()
    try:
        child.begin(os.kill, 0, signal.SIGKILL)  # its process group
        assert child.wait(LONG_S)
        with pytest.raises(OSError, match="ended with -9"):
            child.answer()
        child.begin(os.getpid)
        assert child.wait(LONG_S) and child.answer() != os.getpid()
    finally:
        child.close()
