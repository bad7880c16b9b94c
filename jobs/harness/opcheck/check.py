"""Check one operator in one dtype on a device: every sample forward and backward, compared with the CPU, and timed.

Three passes, each in its own process, since the environment is read when torch is loaded:

| pass | environment | what it finds |
|---|---|---|
| check | PYTORCH_ENABLE_MPS_FALLBACK=0 | what the device computes, does not, or gets wrong; times |
| fallback | PYTORCH_ENABLE_MPS_FALLBACK=1 | which of the missing operators fall back to the CPU; times |
| profile | the same, PYTORCH_MPS_LOG_PROFILE_INFO=4 | the names of the kernels that fell back; no times |

By default torch warns of the first fallback of a process only. So the warning always is on in the calls that are
checked, and not in those that are timed.
"""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch

from harness.opcheck import compare, messages
from harness.opcheck.messages import ERROR, FALLBACK, MISSING, NATIVE, UNCHECKED, WRONG
from harness.opcheck.samples import Side, has_backward, samples

FORWARD, BACKWARD = "forward", "backward"
_WORST = (WRONG, ERROR, MISSING, FALLBACK, UNCHECKED, NATIVE)
"""Verdicts from worst to best: an operator has the worst of its samples'."""
UNINITIALISED = (
    *("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"),
    *("resize_", "resize_as_"),
)
"""Operators whose results are uninitialised memory: only shapes are compared."""
POSITIONS = (
    *("argmax", "argmin", "argsort", "sort", "topk", "kthvalue", "median", "nanmedian", "mode", "max", "min"),
    *("cummax", "cummin", "nn.functional.max_pool1d", "nn.functional.max_pool2d", "nn.functional.max_pool3d"),
    *(f"nn.functional.adaptive_max_pool{n}d" for n in (1, 2, 3)),
)
"""Operators that return positions in their input: any of equal values is accepted."""
ON_CPU = ("tensor_split",)
"""Operators whose further tensor arguments stay on the CPU on every device."""
SAVED = ("native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update", "native_layer_norm")
"""Operators whose further results are saved for their own backward, in a shape and dtype chosen by each device."""
_SEEDS = (1, 2, 3, 4)
"""Offsets to every seed. An operator whose CPU result differs with one of them is random."""

Call = Callable[[], Any]


@dataclass(frozen=True)
class Verdict:
    """The result for one direction. `detail` is empty for native; `n_bad` of `n` samples had the verdict."""

    direction: str
    verdict: str
    detail: str
    n: int
    n_bad: int
    first_s: float | None = None
    times_s: list[float] = field(default_factory=list)
    random: bool = False
    lost: bool = False
    """whether the device may be unusable afterwards"""


class Checker:
    """Checks operators on one device. `mode` is check, fallback or profile; `calls` are timed after the first.

    `on_device(name)` is entered around the work of an operator on the device.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        mode: str = "check",
        most: int = 0,
        calls: int = 5,
        seed: int = 1337,
        on_device: Callable[[str], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> None:
        self.device, self.mode, self.most, self.calls, self.seed = device, mode, most, calls, seed
        self._there, self._here = Side(device), Side(torch.device("cpu"))
        self._exact = Side(torch.device("cpu"), wider=True)
        self._on_device = on_device

    def directions(self, op: Any, dtype: torch.dtype) -> list[str]:
        """Return forward, and backward if the operator has one in this dtype."""
        return [FORWARD, *([BACKWARD] if has_backward(op, dtype, self.device.type) else [])]

    def check(self, op: Any, dtype: torch.dtype, direction: str) -> Verdict | None:
        """Return the verdict over all samples; None if neither the CPU nor the device accepts any sample."""
        verdicts: list[tuple[str, str]] = []
        timed: tuple[Any, float] | None = None
        random = op.name in UNINITIALISED
        for sample in self._samples(op, dtype, direction):
            tried = _Trial(self, op, sample, direction, random)
            verdict = tried.run()
            random = tried.random
            if verdict is None:
                continue
            verdicts.append(verdict)
            if timed is None and verdict[0] in (NATIVE, FALLBACK, UNCHECKED):
                timed = sample, tried.dur_s
            if verdict[0] == ERROR and messages.device_lost(verdict[1]):
                return Verdict(direction, ERROR, verdict[1], len(verdicts), 1, lost=True)
        if not verdicts:
            return None
        worst = next(word for word in _WORST if any(word == verdict for verdict, _ in verdicts))
        details = [detail for verdict, detail in verdicts if verdict == worst]
        first_s, times_s = None, list[float]()
        if timed is not None and self.mode != "profile" and worst in (NATIVE, FALLBACK, UNCHECKED):
            first_s, times_s = timed[1], self._time(op, timed[0], direction)
        names = dict.fromkeys(name for detail in details for name in detail.split(", "))
        detail = ", ".join(names) if worst == FALLBACK else details[0]
        return Verdict(direction, worst, detail, len(verdicts), len(details), first_s, times_s, random)

    def _samples(self, op: Any, dtype: torch.dtype, direction: str) -> list[Any]:
        """Return all samples at once: they are drawn from the generator that each call seeds anew."""
        drawn: list[Any] = []
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a table that has no sample for this dtype ends here
            drawn.extend(samples(op, dtype, direction == BACKWARD, self.most, self.seed))
        return drawn

    def synchronize(self) -> None:
        """Return when the device is idle."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()

    def _time(self, op: Any, sample: Any, direction: str) -> list[float]:
        """Return the seconds of each call, from an idle device to an idle device, with warnings ignored."""
        times = []
        with warnings.catch_warnings(), self._on_device(op.name):
            warnings.simplefilter("ignore")
            call = self.call(op, sample, direction, self._there)
            for _ in range(self.calls):
                self.synchronize()
                begun = time.perf_counter()
                call()
                self.synchronize()
                times.append(time.perf_counter() - begun)
        return times

    def call(self, op: Any, sample: Any, direction: str, side: Side) -> Call:
        """Return the timed call: the operator, or its backward."""
        first, args, kwargs = side.take(sample, on_cpu=op.name in ON_CPU)
        if direction == FORWARD:
            return lambda: op(first, *args, **kwargs)
        inputs = [x for _, x in compare.leaves([first, args, kwargs]) if isinstance(x, torch.Tensor)]
        inputs = list({id(x): x for x in inputs if x.requires_grad}.values())
        result = sample.output_process_fn_grad(op(first, *args, **kwargs))
        outputs = [x for _, x in compare.leaves(result) if isinstance(x, torch.Tensor) and x.requires_grad]
        if not inputs or not outputs:
            raise _NothingToDo
        given = [side.tensor(_direction(x)) for x in outputs]
        return lambda: torch.autograd.grad(outputs, inputs, given, retain_graph=True, allow_unused=True)

    def result(self, op: Any, sample: Any, direction: str, side: Side) -> Any:
        """Return the compared result; a forward's as output_process_fn_grad of torch's tables normalises it (signs of
        svd)."""
        torch.manual_seed(self.seed)
        output = self.call(op, sample, direction, side)()
        if direction == FORWARD and op.name in SAVED:
            return output[0]
        return sample.output_process_fn_grad(output) if direction == FORWARD else output


class _NothingToDo(Exception):
    """A sample without gradients."""


def _direction(output: torch.Tensor) -> torch.Tensor:
    """Return a gradient for an output, on the CPU: the same numbers on every side, none of them special."""
    values = torch.arange(output.numel(), dtype=torch.float64).add_(1.0).mul_(math.pi).sin_().add_(1.5)
    values = values.mul_(0.5).reshape(output.shape)
    return values.to(torch.float64 if not output.is_complex() else torch.complex128).to(output.dtype)


class _Trial:
    """One sample on the device and on the CPU."""

    def __init__(self, checker: Checker, op: Any, sample: Any, direction: str, random: bool) -> None:
        self._checker, self._op, self._sample, self._direction = checker, op, sample, direction
        self.random, self.dur_s = random, 0.0

    def run(self) -> tuple[str, str] | None:
        """Return verdict and detail; None if CPU and device both refuse, or there is nothing to differentiate."""
        try:
            there, names = self._device()
            there = compare.on_cpu(there)  # a result that cannot be read is the device's error, not the CPU's
        except _NothingToDo:
            return None
        except Exception as error:
            verdict = messages.read_error(_kinds(error), str(error))
            return verdict if self._cpu_computes() else None
        try:
            here = self._on(self._checker._here)
        except _NothingToDo:
            return WRONG, "it has a gradient that the CPU has not"
        except Exception as error:
            if not self._is_float64s(there):
                return UNCHECKED, f"the CPU has none: {messages.first_line(str(error))}"
            return self._right(names)
        points_into = self._sample.input if self._op.name in POSITIONS else None
        difference = compare.differs(there, here, lambda: self._on(self._checker._exact), not self.random, points_into)
        if difference is not None and self._op.name in POSITIONS and self._direction == BACKWARD:
            # any of equal values may have the gradient
            difference = compare.differs(_sorted(there), _sorted(here), None)
        if difference is not None and self._op.name == "mode" and self._direction == FORWARD:
            difference = None if compare.are_modes(self._sample.input, there, here) else difference
        if difference is not None and not self.random and self._is_random(here):
            self.random, difference = True, compare.differs(there, here, None, values=False)
        if difference is not None:
            return WRONG, difference
        return self._right(names)

    def _right(self, names: list[str]) -> tuple[str, str]:
        return (FALLBACK, ", ".join(names)) if names else (NATIVE, "")

    def _is_float64s(self, there: Any) -> bool:
        """Return whether a result that the CPU cannot compute in this dtype is its float64 result, rounded."""
        try:
            exact = [value for _, value in compare.leaves(self._on(self._checker._exact))]
        except Exception:  # no kernel for float64 either
            return False
        values = [value for _, value in compare.leaves(there)]
        return compare.differs(values, compare.rounded(exact, values), lambda: exact) is None

    def _device(self) -> tuple[Any, list[str]]:
        checker, names = self._checker, dict[str, None]()
        always = torch.is_warn_always_enabled()
        torch.set_warn_always(True)
        try:
            with warnings.catch_warnings(record=True) as caught, checker._on_device(self._op.name):
                warnings.simplefilter("always")
                checker.synchronize()
                begun = time.perf_counter()
                output = checker.result(self._op, self._sample, self._direction, checker._there)
                checker.synchronize()
                self.dur_s = time.perf_counter() - begun
        finally:
            torch.set_warn_always(always)
        for warning in caught:
            if name := messages.fallen_back(str(warning.message)):
                names[name] = None
        return output, list(names)

    def _on(self, side: Side) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self._checker.result(self._op, self._sample, self._direction, side)

    def _cpu_computes(self) -> bool:
        try:
            self._on(self._checker._here)
        except Exception:
            return False
        return True

    def _is_random(self, here: Any) -> bool:
        """Return whether the CPU's own result changes with the seed, that set by torch's tables included."""
        plain = torch.manual_seed
        for other in _SEEDS:
            with mock.patch.object(torch, "manual_seed", lambda seed, other=other: plain(seed + other)):
                if compare.differs(self._on(self._checker._here), here, None) is not None:
                    return True
        return False


def _sorted(result: Any) -> list[Any]:
    values = [value for _, value in compare.leaves(result)]
    return [value.flatten().sort().values if isinstance(value, torch.Tensor) else value for value in values]


def _kinds(error: BaseException) -> str:
    return " ".join(kind.__name__ for kind in type(error).__mro__)
