"""The log of a Lightning Trainer (lightning 2.6, pytorch_lightning), live or from a file: its progress bar.

Such a log has no single iterations. The tqdm bar shows the mean speed since the epoch began, so that two of its lines
give the mean duration of the batches between them. That mean becomes an `Iter` with the number of the last batch if the
digits shown determine it to 2 %, else it is merged with the batches that follow. The bar counts batches, not updates:
with accumulate_grad_batches there are fewer updates. Its clock does not wait for the device (`synced` is False), losses
have three digits, and whether the first batches include compilation is unknown. A mean with a validation between its
two lines is dropped; a checkpoint is not visible and is included. A mean that includes the first batch of the process
is the metric `mean_step`.

The rich bar, the default if rich is installed, writes a single line into a file, at the end: the speed of the last 30 s
or less. That is one `Iter`.

metrics.csv of CSVLogger has no times and is not read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from queue_runner.events import Eval, Hello, Iter, LogEvent, Metric
from queue_runner.ingest.log_parser import NUMBER, LogHeader, LogParser
from queue_runner.ingest.time_output import seconds

NAME = "lightning"
HELP = "a Lightning Trainer's progress bar: mean times between its lines, losses, validations"
SIGN = re.compile(r"Epoch \d{1,9}: [^\r\n]{0,200}?\d/[\d?]{1,12} \[\d|Epoch \d{1,9}/[-\d]{1,9} +[━╸╺]")

CERTAIN_SHARE = 0.02
"""Largest relative error of a mean that the digits omitted by the bar may cause."""
_RICH_SPEED_S = 30
"""Window, in seconds, from which rich estimates a speed."""

_CLOCK = r"(?:\d{1,9}:)?\d{1,2}:\d{2}"
_TQDM = re.compile(
    rf"Epoch (?P<epoch>\d{{1,9}}): [^|\r\n]{{0,20}}\|[^|\r\n]{{0,300}}\| (?P<n>\d{{1,12}})/(?P<total>\d{{1,12}}|\?) "
    rf"\[{_CLOCK}<(?:{_CLOCK}|\?), *(?P<rate>\d{{1,9}}\.\d\d)(?P<unit>it/s|s/it)(?P<shown>[^\]\r\n]{{0,2000}})\]"
)
_RICH = re.compile(
    r"Epoch (?P<epoch>\d{1,9})/(?P<last>-?\d{1,9})\s{1,9}[━╸╺]{1,500} (?P<n>\d{1,12})/(?P<total>\d{1,12}|-{1,9})\s"
    rf"(?P<clock>{_CLOCK}) • (?:{_CLOCK}|-:--:--)\s+(?P<rate>\d{{1,9}}\.\d\d)it/s(?P<shown>[^\r\n]{{0,2000}})"
)
_SHOWN = re.compile(rf"([A-Za-z][\w/.-]{{0,80}})(?:=|: )({NUMBER})(?![\w.])")
_VALIDATED = re.compile(r"Validation DataLoader \d{1,6}: +\d")
_GPU = re.compile(r"GPU available: (?:True|False)(?: \((\w{1,10})\))?, used: (True|False)")
_PRECISION = re.compile(r"Using (16bit|bfloat16) Automatic Mixed Precision")


class Parser(LogParser):
    """Parser whose state is the header; the start of the batches not yet in an `Iter`; the batch of the last line."""

    KEPT = (
        *("header", "started", "begins", "epoch", "first_epoch", "n", "base", "now"),
        *("mean", "torn", "validated", "rich"),
    )

    def __init__(self, known: Mapping[str, object] | None = None) -> None:
        super().__init__(known)
        self.header = LogHeader.of_run(known)
        self.started = False
        self.begins: int | None = None
        """the number of the epoch's first batch; None before the first epoch"""
        self.epoch = self.first_epoch = -1
        self.n = 0
        self.base = [0.0, 0.0, 0.0]
        """batches, seconds and error of the seconds, for the part of the epoch already in an Iter or dropped"""
        self.now = [0.0, 0.0]
        """seconds at the end of batch `n`, and their error"""
        self.mean: float | None = None
        """mean seconds per batch since `base`, until the line with the loss"""
        self.torn = False
        """whether there was a validation since `base`"""
        self.validated = False
        self.rich: int | None = None
        """batch count of rich's last line, as long as its metrics may follow"""

    def understand(self, text: str, offset: int) -> list[LogEvent]:
        events: list[LogEvent] = []
        if _VALIDATED.search(text):
            self.validated = self.torn = True
        if "Epoch " in text:
            for match in _TQDM.finditer(text):
                events += self._started(offset, match, None) + self._line(match, offset + match.start())
            if whole := _RICH.search(text):
                events += self._started(offset, whole, int(whole["last"])) + self._whole(whole, offset + whole.start())
        elif self.rich is not None:
            events += self._shown_by_rich(text, offset)
        elif not self.started:
            self._read_header(text)
        return events

    def _line(self, match: re.Match[str], at: int) -> list[LogEvent]:
        """Read a line of the tqdm bar. Each batch has at least two: one at its end, one with its metrics."""
        epoch, n, rate = int(match["epoch"]), int(match["n"]), float(match["rate"])
        if rate <= 0:
            return []
        fast = match["unit"] == "it/s"
        now = (n / rate, n * 0.005 / rate**2) if fast else (n * rate, n * 0.005)
        if epoch != self.epoch or n < self.n:
            self._new_epoch(epoch, match["total"])
        shown = _measures(match["shown"])
        if n > self.n:
            self._forward(n, *now)
            return []
        events: list[LogEvent] = []
        if self.mean is not None:
            events.append(self._iter(at, self.mean, _loss(shown)))
        if self.validated and (val := _of_validation(shown)):
            self.validated = False
            events.append(Eval(at, None, (self.begins or 0) + n, "val", val))
        return events

    def _new_epoch(self, epoch: int, total: str) -> None:
        if self.begins is None:
            self.begins = epoch * int(total) if total.isdecimal() else 0
            self.first_epoch = epoch
        else:
            self.begins += self.n
        self.epoch, self.n, self.mean, self.torn = epoch, 0, None, False
        self.base, self.now = [0.0, 0.0, 0.0], [0.0, 0.0]

    def _forward(self, n: int, seconds: float, error: float) -> None:
        """Advance to batch `n` and compute the mean of the batches since `base` if its error is small enough."""
        self.n, self.now = n, [seconds, error]
        if self.torn:
            self.base, self.mean, self.torn = [float(n), seconds, error], None, False
            return
        spent = seconds - self.base[1]
        certain = spent > 0 and error + self.base[2] <= CERTAIN_SHARE * spent
        self.mean = spent / (n - self.base[0]) if certain else None

    def _iter(self, at: int, mean: float, loss: float | None) -> Iter | Metric:
        """Return the mean of the batches since `base`: a Metric if the process's first batch is mixed with others."""
        i, is_first = (self.begins or 0) + self.n - 1, self.base[0] == 0 and self.epoch == self.first_epoch
        self.mean, self.base = None, [float(self.n), *self.now]
        if is_first and self.n > 1:
            return Metric(at, None, "mean_step", mean, "s", i)
        phase = "measure" if not is_first else "compile" if self.header.compile else "warmup"
        return Iter(at, None, i, mean, loss, synced=False, phase=phase)

    def _whole(self, match: re.Match[str], at: int) -> list[LogEvent]:
        """Return the events of the final line of rich."""
        epoch, n, rate = int(match["epoch"]), int(match["n"]), float(match["rate"])
        if rate <= 0:
            return []
        total = int(match["total"]) if match["total"].isdecimal() else n
        self.rich = epoch * total + n
        shown = _measures(match["shown"])
        events: list[LogEvent] = [Iter(at, None, self.rich - 1, 1 / rate, _loss(shown), synced=False)]
        if epoch == 0 and seconds(match["clock"]) <= _RICH_SPEED_S:  # includes the first batch of the process
            events = [Metric(at, None, "mean_step", 1 / rate, "s", self.rich - 1)]
        if val := _of_validation(shown):
            events.append(Eval(at, None, self.rich, "val", val))
        return events

    def _shown_by_rich(self, text: str, offset: int) -> list[LogEvent]:
        """Return the events of a line below the rich bar, with a metric that did not fit into the bar."""
        match = _SHOWN.fullmatch(text.strip())
        if match is None or self.rich is None:
            self.rich = None
            return []
        if val := _of_validation({match[1]: float(match[2])}):
            return [Eval(offset, None, self.rich, "val", val)]
        return [] if match[1] == "v_num" else [Metric(offset, None, match[1], float(match[2]), "", self.rich - 1)]

    def _read_header(self, text: str) -> None:
        if match := _GPU.search(text):
            self.header.device = self.header.device or (match[1] if match[2] == "True" else "cpu")
        elif match := _PRECISION.search(text):
            self.header.dtype = "fp16" if match[1] == "16bit" else "bf16"

    def _started(self, offset: int, match: re.Match[str], last_epoch: int | None) -> list[LogEvent]:
        """Return hello, once, before the first event."""
        if self.started:
            return []
        self.started = True
        total = match["total"]
        planned = (last_epoch + 1) * int(total) if last_epoch is not None and total.isdecimal() else None
        hello = Hello(
            offset,
            None,
            workload="lightning",
            framework="torch",
            device=self.header.device,
            dtype=self.header.dtype,
            compile=self.header.compile,
            planned_iters=planned if planned and planned > 0 else None,
            extra={"batches_per_epoch": int(total)} if total.isdecimal() else {},
        )
        return [hello]


def _measures(text: str) -> dict[str, float]:
    return {match[1]: float(match[2]) for match in _SHOWN.finditer(text)}


def _loss(shown: Mapping[str, float]) -> float | None:
    """Return the training loss, whichever name it has."""
    names = [name for name in shown if "loss" in name.lower() and not name.lower().startswith(("val", "test"))]
    return shown[names[0]] if names else None


def _of_validation(shown: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of the split val: val_loss and val/loss become loss."""
    return {name[4:]: value for name, value in shown.items() if re.match(r"val[_/.-]\w", name)}
