"""The log of karpathy/nanoGPT's train.py, live or from a file, whole or elided.

Its clock does not wait for the device (`synced` is False), shows only every log_interval-th iteration, and includes an
evaluation in the time of its iteration: `step N:` before `iter N:` makes that iteration an `eval_iter`, never
`measure`. The first iteration of the process includes compilation and the first evaluation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from queue_runner.events import Eval, Hello, Iter, LogEvent, Metric
from queue_runner.ingest.log_parser import DTYPES, NUMBER, LogHeader, LogParser
from queue_runner.units import whole

NAME = "nanogpt"
HELP = "train.py of karpathy/nanoGPT: iterations, evaluations, the header, the printed mfu"
SIGN = re.compile(r"iter \d{1,12}: loss [^\s,]{1,40}, time |step \d{1,12}: train loss ")

_EVENT = re.compile(
    rf"iter (?P<iter>\d{{1,12}}): loss (?P<loss>{NUMBER}), time (?P<ms>{NUMBER})ms(?:, mfu (?P<mfu>{NUMBER})%)?"
    rf"|step (?P<step>\d{{1,12}}): train loss (?P<train>{NUMBER}), val loss (?P<val>{NUMBER})"
)
_INTEGERS = {
    "tokens_per_iter": re.compile(r"tokens per iteration will be: ([\d,]{1,20})"),
    "vocab_size": re.compile(r"found vocab_size = (\d{1,12})"),
    "decayed": re.compile(r"num decayed parameter tensors: \d+, with ([\d,]{1,20}) parameters"),
    "not_decayed": re.compile(r"num non-decayed parameter tensors: \d+, with ([\d,]{1,20}) parameters"),
}
_MILLIONS = re.compile(r"number of parameters: (\d{1,9}\.\d{1,6})M")
_FUSED = re.compile(r"using fused AdamW: (True|False)")
_CONFIG = re.compile(r"Overriding config with (?:\S*/)?(\w{1,100})\.py:")
_SETTING = re.compile(r"(?:Overriding: )?([a-z_]{1,40}) = (\S{1,200})(?:\s+#.*)?\s*")
_COUNTS = ("max_iters", "eval_interval", "log_interval", "batch_size", "block_size")
_SIZES = ("vocab_size", "batch_size", "block_size", "eval_interval", "log_interval", "params_without_positions")
_NO_MFU = -100.0
"""Placeholder that train.py prints until it has five iterations."""


class NanoGptHeader(LogHeader):
    """What train.py prints before its first iteration."""

    config: str | None = None
    fused: bool | None = None
    resumed: bool = False
    params_without_positions: int | None = None
    tokens_per_iter: int | None = None
    decayed: int | None = None
    not_decayed: int | None = None
    vocab_size: int | None = None
    batch_size: int | None = None
    block_size: int | None = None
    eval_interval: int | None = None
    log_interval: int | None = None
    max_iters: int | None = None


class Parser(LogParser):
    """Parser whose state is the header, whether the first iteration has passed, and the last one with an evaluation."""

    KEPT = ("header", "started", "iterated", "eval_at")

    def __init__(self, known: Mapping[str, object] | None = None) -> None:
        super().__init__(known)
        self.header = NanoGptHeader.of_run(known)
        self.started = False
        self.iterated = False
        self.eval_at: int | None = None

    def understand(self, text: str, offset: int) -> list[LogEvent]:
        events: list[LogEvent] = []
        for match in _EVENT.finditer(text) if ": " in text else ():
            if not self.started:
                self.started = True
                events.append(self._hello(offset))
            events += self._iteration(match, offset) if match["iter"] else self._evaluation(match, offset)
        if not self.started:
            self._read_header(text)
        return events

    def _iteration(self, match: re.Match[str], offset: int) -> list[LogEvent]:
        i, loss, time_ms, mfu = int(match["iter"]), float(match["loss"]), float(match["ms"]), match["mfu"]
        at = offset + match.start()
        phase = self._phase(i)
        if not 0 <= time_ms < 1e12:  # nan compares false
            return []
        events: list[LogEvent] = [Iter(at, None, i, time_ms / 1e3, loss, synced=False, phase=phase)]
        if mfu is not None and float(mfu) != _NO_MFU:
            events.append(Metric(at, None, "mfu_printed", float(mfu), "%", i))
        return events

    def _phase(self, i: int) -> str:
        is_first = not self.iterated and (i == 0 or self.header.resumed)
        self.iterated = True
        if is_first:
            return "compile" if self.header.compile else "warmup"
        return "eval_iter" if i == self.eval_at else "measure"

    def _evaluation(self, match: re.Match[str], offset: int) -> list[LogEvent]:
        self.eval_at = int(match["step"])
        return [
            Eval(offset + match.start(split), None, self.eval_at, split, {"loss": float(match[split])})
            for split in ("train", "val")
        ]

    def _read_header(self, text: str) -> None:
        header = self.header
        for key, pattern in _INTEGERS.items():
            if match := pattern.search(text):
                setattr(header, key, int(match[1].replace(",", "") or 0))
        if match := _MILLIONS.search(text):
            header.params_without_positions = round(float(match[1]) * 1e6)
        elif match := _FUSED.search(text):
            header.fused = match[1] == "True"
            header.compile = bool(header.compile)  # the line about compilation, if any, follows this one
        elif "compiling the model..." in text:
            header.compile = True
        elif match := _CONFIG.search(text):
            header.config = match[1]
        elif "Resuming training from" in text:
            header.resumed = True
        elif match := _SETTING.fullmatch(text):
            name, value = match[1], match[2].strip("'\"")
            if name in ("device", "dtype"):
                setattr(header, name, value)
            elif name in _COUNTS:
                setattr(header, name, whole(value))

    def _hello(self, offset: int) -> Hello:
        """Return the entire header. max_iters is inclusive: 5000 plans 5,001 iterations."""
        header = self.header
        decayed, not_decayed = header.decayed, header.not_decayed
        dtype = None
        if header.device is not None:  # train.py casts on CUDA only and uses fp32 elsewhere, whatever its setting
            dtype = DTYPES.get(header.dtype or "") if "cuda" in header.device else "fp32"
        return Hello(
            offset,
            None,
            workload="nanogpt",
            framework="torch",
            device=header.device,
            dtype=dtype,
            params=decayed + not_decayed if decayed and not_decayed else None,
            tokens_per_iter=float(header.tokens_per_iter) if header.tokens_per_iter else None,
            optimizer=None if header.fused is None else "AdamW(fused)" if header.fused else "AdamW",
            compile=header.compile,
            planned_iters=None if header.max_iters is None else header.max_iters + 1,
            config=header.config,
            extra={name: value for name in _SIZES if (value := getattr(header, name)) is not None},
        )
