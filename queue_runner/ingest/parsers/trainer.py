"""The log of a Hugging Face Trainer (transformers 4 and 5), live or from a file: the dicts that it prints.

Such a log has no time of any single iteration. It ends with the seconds of the whole training, including evaluations,
checkpoints and the compilation of the first iteration; divided by the steps they are the metric `mean_step`, never an
`Iter`. A `loss` is the mean since the previous one printed, so it is a metric, too.

The dicts give the epoch, not the step, with four digits (transformers 5, whose values are texts) or two. Steps are
computed from these and the header, which is on stderr (`2>&1`; transformers 4 needs --log_level info for it). Without a
header, or with an IterableDataset, the steps follow from the seconds and steps per second of the last dict; earlier
dicts are held until then. Evaluations after the training are not dicts but the block that log_metrics("eval", ...)
prints.

The header rounds the number of epochs up. Steps per epoch are printed by transformers 5 only; else they follow from the
examples and the batch sizes.

transformers 4 divides by the planned steps, even if it stopped early or resumed from a checkpoint: the steps done are
those of the last epoch, according to the header, or to the progress bar if there is no header. A second training in a
log continues the numbering.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from queue_runner.events import Eval, Hello, LogEvent, Metric, Note
from queue_runner.ingest.log_parser import LogHeader, LogParser
from queue_runner.ingest.time_output import seconds

NAME = "trainer"
HELP = "a Hugging Face Trainer's dicts: losses, evaluations, the mean time per step, but no single iterations"
SIGN = re.compile(r"\{'(?:loss|eval_loss|train_runtime)': [^\r\n]{1,2000}?'epoch': ")

_MOST = 1e8
"""Largest plausible number of epochs, seconds, or steps per second."""
MAX_HELD = 5000
"""Number of dicts held until the steps are known; later ones are dropped."""
_NUMBER = r"[-+]?(?:\d{1,18}(?:\.\d{0,18})?(?:e[-+]?\d{1,3})?|nan|inf)"
_DICT = re.compile(r"\{'\w{1,60}': [^{}\r\n]{1,8000}\}")
_ITEM = re.compile(rf"'(\w{{1,60}})': '?({_NUMBER})'?(?=[,}}])")
_HEADER = {
    "params": re.compile(r"Number of trainable parameters = ([\d,]{1,20})"),
    "steps": re.compile(r"Total optimization steps = ([\d,]{1,15})"),
    "epochs": re.compile(r"Num Epochs = ([\d,]{1,30})"),
    "of_epoch": re.compile(r"Num update steps per epoch = ([\d,]{1,15})"),
    "examples": re.compile(r"Num examples = ([\d,]{1,20})"),
    "accumulation": re.compile(r"Gradient Accumulation steps = ([\d,]{1,12})"),
    "batch": re.compile(r"Total train batch size \(w\. parallel, distributed & accumulation\) = ([\d,]{1,12})"),
}
_BEGINS = "***** Running training *****"
_RESUMED = re.compile(
    r"(?:Resuming training from checkpoint with epoch \d{1,9} and|Continuing training from) "
    r"global step (\d{1,15})"
)
_BAR = re.compile(r"\| (\d{1,15})/(\d{1,15}) \[")
_MOST_BARS = 20
"""Number of progress bar totals kept: that of the training and those of evaluations."""
_BLOCK = re.compile(r"\*{5} (\w{1,40}) metrics \*{5}")
_ROW = re.compile(rf"\s{{2}}(\w{{1,60}})\s*=\s*({_NUMBER}|\d{{1,6}}:\d\d:\d\d(?:\.\d+)?)\s*")
_SPEEDS = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time")
_NO_TIMES = (
    "a Trainer's log has no times of single iterations; the whole training took {:.6g} s{}, with its evaluations. "
    "TrainerCallback of mpsq_report reports each"
)


class TrainerHeader(LogHeader):
    """What the Trainer prints before its first step; with `is_read` False, what follows from its last dict."""

    params: int | None = None
    steps: int | None = None
    epochs: float | None = None
    """rounded up; sys.maxsize for an IterableDataset"""
    of_epoch: int | None = None
    """steps per epoch"""
    examples: int | None = None
    accumulation: int | None = None
    batch: int | None = None
    resumed: int = 0
    is_read: bool = True

    def steps_of_epoch(self) -> float | None:
        steps, epochs = self.steps, self.epochs
        if not steps or not epochs or epochs > _MOST:
            return None
        possible, mean = self._possible(), steps / epochs
        if self.of_epoch or mean in possible:
            return self.of_epoch or mean
        return next((some for some in possible if (epochs - 1) * some < steps <= epochs * some), mean)

    def _possible(self) -> list[int]:
        """Return the steps per epoch that the examples allow: versions of transformers differ in the last, smaller
        update, and users in the last, smaller batch."""
        parts = self.accumulation or 1
        if not self.examples or not self.batch or self.batch < parts:
            return []
        size = self.batch // parts
        batches = (-(-self.examples // size), self.examples // size)
        return [max(1, some) for n in batches for some in (-(-n // parts), n // parts)]


class Parser(LogParser):
    """A parser that keeps the header, and the dicts read before the steps per epoch are known."""

    KEPT = (
        *("header", "started", "ended", "diverged", "held", "block", "rows", "block_at"),
        *("before", "reached", "epoch", "bars"),
    )

    def __init__(self, known: Mapping[str, object] | None = None) -> None:
        super().__init__(known)
        self.header = TrainerHeader.of_run(known)
        self.started = False
        self.ended = False
        self.diverged = False
        self.held: list[list[Any]] = []
        self.block = ""
        self.rows: dict[str, float] = {}
        self.block_at = 0
        self.before = 0
        """steps of previous trainings"""
        self.reached = 0
        """steps done, including `before`"""
        self.epoch = 0.0
        self.bars: dict[str, int] = {}
        """the furthest position of a progress bar, by its total"""

    def understand(self, text: str, offset: int) -> list[LogEvent]:
        if self.block:
            if match := _ROW.fullmatch(text):
                self.rows[match[1]] = seconds(match[2])
                # rows are sorted by name, with the speeds at the end
                return self._evaluated_after(match[1])
            self.block = ""
        if _BEGINS in text:
            self.header.examples = None  # those of an evaluation
            if self.started:
                self._begin()
        if "/" in text:
            self._read_bars(text)
        events: list[LogEvent] = []
        for match in _DICT.finditer(text) if "{'" in text else ():
            fields = {name: float(value) for name, value in _ITEM.findall(match[0])}
            if _sane(fields):
                events += self._dict(fields, offset + match.start())
        if match := _BLOCK.search(text):
            self.block, self.rows, self.block_at = match[1], {}, offset + match.start()
        elif not self.started:
            self._read_header(text)
        return events

    def _begin(self) -> None:
        """Begin another training in the same log."""
        self.header = TrainerHeader(device=self.header.device)
        self.started = self.ended = False
        self.held, self.bars, self.epoch, self.before = [], {}, 0.0, self.reached

    def _read_bars(self, text: str) -> None:
        for done, total in _BAR.findall(text):
            if total in self.bars or len(self.bars) < _MOST_BARS:
                self.bars[total] = max(self.bars.get(total, 0), int(done))

    def _read_header(self, text: str) -> None:
        if match := _RESUMED.search(text):
            self.header.resumed = int(match[1])
            if self.header.resumed >= self.before:  # continues the numbering of the previous training
                self.before = 0
        for key, pattern in _HEADER.items() if " = " in text else ():
            if key == "examples" and self.header.examples is not None:
                continue  # belongs to an evaluation
            if match := pattern.search(text):
                setattr(self.header, key, min(int(match[1].replace(",", "") or 0), 2**53))

    def _dict(self, fields: Mapping[str, float], at: int) -> list[LogEvent]:
        events: list[LogEvent] = []
        if self.ended and fields["epoch"] < self.epoch:
            self._begin()
        self.epoch = fields["epoch"]
        if not self.started:
            self.started = True
            events.append(self._hello(at))
        if "loss" in fields and not self.diverged and not math.isfinite(fields["loss"] + fields.get("grad_norm", 0.0)):
            self.diverged = True
            events.append(
                Note(at, None, "nan_loss", f"loss {fields['loss']}, gradient's norm {fields.get('grad_norm')}")
            )
        if "train_runtime" in fields:
            return events + self._end(fields, at)
        if self.header.steps_of_epoch() is not None:
            return events + self._report(fields, at)
        if len(self.held) < MAX_HELD:
            self.held.append([at, dict(fields)])
        return events

    def _report(self, fields: Mapping[str, float], at: int) -> list[LogEvent]:
        """Return the events of a dict whose step is known."""
        done = self.reached = self.before + self._done(fields["epoch"])
        if "loss" in fields:
            return [Metric(at, None, "loss_mean", fields["loss"], "nats", max(0, done - 1))]
        return _evaluation(fields, at, done)

    def _done(self, epoch: float) -> int:
        """Return the steps of this training at an epoch, which is rounded; all if it may be the last one."""
        of_epoch, steps = self.header.steps_of_epoch() or 0.0, self.header.steps or 0
        rounding = of_epoch * max(0.0 if self.header.of_epoch else 0.005, epoch * 0.0005) if self.ended else 0.0
        return steps if epoch * of_epoch + rounding + 0.5 >= steps else round(epoch * of_epoch)

    def _end(self, fields: Mapping[str, float], at: int) -> list[LogEvent]:
        header, epoch = self.header, fields["epoch"]
        rate, dur_s = fields.get("train_steps_per_second", 0.0), fields["train_runtime"]
        if header.steps and header.epochs and header.epochs > _MOST and epoch <= 1:  # the dataset was not repeated
            header.epochs = 1.0
        if header.steps_of_epoch() is None and rate * dur_s >= 0.5 and epoch > 0:
            counted = round(rate * dur_s)
            made = self.bars.get(str(counted)) or counted
            self.header = header = TrainerHeader(device=header.device, steps=made, epochs=epoch, is_read=False)
            rate *= made / counted
        events: list[LogEvent] = []
        if header.steps_of_epoch() is not None:
            for then, words in self.held:
                events += self._report(words, then)
        self.held = []
        self.ended = True
        if header.steps_of_epoch() is not None:
            done = self._done(epoch)
            self.reached = self.before + done
            if header.is_read and dur_s > 0 and done > header.resumed:  # with more digits than the one printed
                rate = (done - header.resumed) / dur_s
        events.append(Metric(at, None, "train_runtime", dur_s, "s"))
        if rate > 0:
            events.append(Metric(at + 1, None, "mean_step", 1 / rate, "s"))
        if "train_loss" in fields:
            events.append(Metric(at + 2, None, "train_loss", fields["train_loss"], "nats"))
        mean = f", {1e3 / rate:.4g} ms a step" if rate > 0 else ""
        return [*events, Note(at + 3, None, "no_iteration_times", _NO_TIMES.format(dur_s, mean))]

    def _evaluated_after(self, last: str) -> list[LogEvent]:
        """Return the evaluation after the training once the last row of its block is read."""
        if not self.ended or last != f"{self.block}_steps_per_second" or self.block == "train":
            return []
        return _evaluation(self.rows, self.block_at, self.reached)

    def _hello(self, at: int) -> Hello:
        header = self.header
        return Hello(
            at,
            None,
            framework="torch",
            device=header.device,
            params=header.params,
            samples_per_iter=float(header.batch) if header.batch else None,
            planned_iters=None if header.steps is None else self.before + header.steps,
            extra={"trainer": "transformers"},
        )


def _evaluation(fields: Mapping[str, float], at: int, done: int) -> list[LogEvent]:
    """Return {"eval_loss": 0.6, "eval_runtime": 1.0, ...} as an event; the Trainer's "eval" is renamed val."""
    prefix = next((name.removesuffix("_runtime") for name in fields if name.endswith("_runtime")), None)
    if prefix is None:
        return []
    measures = {
        name.removeprefix(f"{prefix}_"): value for name, value in fields.items() if name.startswith(f"{prefix}_")
    }
    measured = {name: value for name, value in measures.items() if name not in _SPEEDS}
    split = "val" if prefix == "eval" else prefix.removeprefix("eval_")
    dur_s = measures["runtime"]
    return [Eval(at, None, done, split, measured, dur_s if 0 <= dur_s < 1e9 else None)] if measured else []


def _sane(fields: Mapping[str, float]) -> bool:
    """Return whether it is a dict of the Trainer, with plausible numbers."""
    counts = ("epoch", "train_runtime", "train_steps_per_second")
    return "epoch" in fields and all(0 <= fields[name] < _MOST for name in counts if name in fields)
