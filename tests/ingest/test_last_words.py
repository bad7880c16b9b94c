"""How an imported log ends decides what its run counts as."""

from __future__ import annotations

import pytest

from queue_runner.ingest import last_words, parsers
from queue_runner.model import Ending, Outcome

ITERATIONS = "".join(f"iter {i}: loss 3.{i}, time 20.00ms, mfu 1.00%\n" for i in range(5))
TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 12, in <module>
    step()
"""
TIME = "real 1.2\nuser 1.0\nsys 0.1\n"


def ending(text: str) -> Ending | None:
    data = text.encode()
    return last_words.ending(data, parsers.read_log("nanogpt", data))


@pytest.mark.parametrize(
    ("tail", "outcome", "reason"),
    [
        (TRACEBACK + "ValueError: bad shape\n", Outcome.LOST, "the log ends in a traceback: ValueError: bad shape"),
        (
            TRACEBACK + "ValueError: bad shape\n" + TIME,
            Outcome.LOST,
            "the log ends in a traceback: ValueError: bad shape",
        ),
        (TRACEBACK, Outcome.LOST, "the log ends in a traceback: it is cut off"),
        (
            TRACEBACK + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n",
            Outcome.OUT_OF_MEMORY,
            "CUDA out of memory. Tried to allocate 2.00 GiB",
        ),
        (TRACEBACK + "MemoryError\n" + TIME, Outcome.OUT_OF_MEMORY, "MemoryError"),
        (
            TRACEBACK + "OSError: [Errno 28] No space left on device\n",
            Outcome.DISK_FULL,
            "OSError: [Errno 28] No space",
        ),
        (
            TRACEBACK + "KeyError: 'x'\nCommand exited with non-zero status 1\n",
            Outcome.FAILED,
            "KeyError: 'x'",
        ),
        ("Command terminated by signal 9\n", Outcome.KILLED, "Command terminated by signal 9"),
        ("run.sh: line 3:  4711 Killed                  python train.py\n", Outcome.LOST, "the log ends in: run.sh"),
        ("zsh: killed     python train.py\n", Outcome.LOST, "the log ends in: zsh: killed"),
        ("Segmentation fault (core dumped)\n", Outcome.LOST, "the log ends in: Segmentation fault (core dumped)"),
    ],
)
def test_a_log_that_ends_in_an_error_did_not_succeed(tail: str, outcome: Outcome, reason: str) -> None:
    found = ending(ITERATIONS + tail)
    assert found is not None and found.outcome is outcome and found.reason.startswith(reason)
    if outcome is Outcome.FAILED:
        assert found.exit_code == 1
    if outcome is Outcome.KILLED:
        assert found.signal == 9


@pytest.mark.parametrize(
    "text",
    [
        ITERATIONS,
        ITERATIONS + TIME,
        TRACEBACK + "OSError: no tensorboard\n" + ITERATIONS,  # before the training, and caught
        "CUDA out of memory: trying a smaller batch\n" + ITERATIONS,
        ITERATIONS + "Exception ignored in: <function f at 0x1>\n" + TRACEBACK + "TypeError: 'NoneType'\n",
        ITERATIONS + "Command exited with non-zero status 0\n",
        ITERATIONS + "killed 3 workers, all done\n",
    ],
)
def test_other_logs_may_have_succeeded(text: str) -> None:
    assert ending(text) is None
