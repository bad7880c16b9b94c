"""The process that runs operators: one that crashes or hangs ends this process, not the sweep.

It reads JSON lines from its standard input and answers by JSON lines on the descriptor --answers. It ends with its
input, or with the process that started it.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

OnDevice = Callable[[str], contextlib.AbstractContextManager[Any]]
_PR_SET_PDEATHSIG = 1
"""prctl(2) on Linux: the signal that a process gets when its parent ends."""


def main(argv: Sequence[str] | None = None, on_device: OnDevice = contextlib.nullcontext) -> int:
    """Answer until the input ends. `on_device` is entered around work on the device: see check.Checker."""
    arguments = _parser().parse_args(argv)
    _end_with_parent(arguments.life)
    answers = os.fdopen(arguments.answers, "w", encoding="utf-8", buffering=1)
    import torch

    from harness.opcheck import check, messages, samples

    torch.set_num_threads(arguments.threads)
    if arguments.device.startswith("cuda"):
        torch.backends.cudnn.allow_tf32 = False  # fp32 is compared with fp32
        torch.cuda.set_device(torch.device(arguments.device).index or 0)
    ops = samples.table()
    device = torch.device(arguments.device)
    checker = check.Checker(
        device,
        mode=arguments.mode,
        most=arguments.samples,
        calls=arguments.calls,
        seed=arguments.seed,
        on_device=on_device,
    )

    def answer(**fields: Any) -> None:
        answers.write(json.dumps(fields) + "\n")

    answer(ready=True, ops={name: _takes(op, device.type, samples) for name, op in ops.items()})
    for line in sys.stdin:
        request = json.loads(line)
        op, dtype = ops[request["op"]], samples.TYPES[request["dtype"]]
        lost = False
        for direction in checker.directions(op, dtype):
            if direction not in request["directions"] or lost:
                continue
            answer(at=direction)
            log = _Log() if arguments.mode == "profile" else None
            verdict = checker.check(op, dtype, direction)
            names = messages.profiled(log.end()) if log is not None else []
            if verdict is not None:
                answer(**asdict(verdict), profiled=names)
                lost = verdict.lost
        answer(done=True, lost=lost)
        if lost:
            return 1
    return 0


def _takes(op: Any, device_type: str, samples: Any) -> list[str]:
    """Return the names of the dtypes that an operator accepts on the CPU or on the device."""
    known = samples.dtypes_of(op, device_type)
    return [name for name, dtype in samples.TYPES.items() if dtype in known]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Started by opcheck_torch.py, and of no use without it.")
    parser.add_argument("--answers", type=int, required=True)
    parser.add_argument("--life", type=int, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--mode", required=True, choices=("check", "fallback", "profile"))
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--calls", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    return parser


def _end_with_parent(life: int) -> None:
    """End this process when the parent is gone: then nobody holds the other end of `life`."""
    if sys.platform == "linux":  # works even if an operator hangs while holding the GIL
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def wait() -> None:
        with contextlib.suppress(OSError):
            os.read(life, 1)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


class _Log:
    """Captures what C code writes to stderr."""

    def __init__(self) -> None:
        sys.stderr.flush()
        self._kept, (self._read, write) = os.dup(2), os.pipe()
        os.dup2(write, 2)
        os.close(write)
        self._text: list[bytes] = []
        self._reader = threading.Thread(target=self._drain, daemon=True)
        self._reader.start()

    def _drain(self) -> None:
        while chunk := os.read(self._read, 1 << 16):
            self._text.append(chunk)

    def end(self) -> str:
        """Restore stderr and return everything captured."""
        sys.stderr.flush()
        os.dup2(self._kept, 2)  # closes the only writer of the pipe, which ends the reader
        os.close(self._kept)
        self._reader.join()
        os.close(self._read)
        return b"".join(self._text).decode("utf-8", "replace")


if __name__ == "__main__":
    sys.exit(main())
