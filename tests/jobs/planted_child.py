"""A child of opcheck over the stand-in device: tan is wrong, cos has no kernel, exp crashes. Run by test_opcheck.py.

Its operators are made by hand: torch's own tables take three seconds to import, which each child would spend.
"""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "jobs"), str(ROOT)]

import torch  # noqa: E402 - the paths come first

from harness.opcheck import child, samples  # noqa: E402
from tests.jobs.planted_device import Planted, falls_back, raises  # noqa: E402
from tests.mps_texts import NO_KERNEL  # noqa: E402


@dataclass(frozen=True)
class Sample:
    """What an OpInfo's samples have, as far as it is used."""

    input: torch.Tensor
    args: tuple[Any, ...] = ()

    @property
    def kwargs(self) -> dict[str, Any]:
        return {}

    def output_process_fn_grad(self, result: Any) -> Any:
        return result


@dataclass(frozen=True)
class Op:
    name: str
    function: Callable[[torch.Tensor], torch.Tensor]
    supports_autograd = True

    @property
    def formatted_name(self) -> str:
        return self.name

    def supported_dtypes(self, device_type: str) -> set[torch.dtype]:
        return {torch.float32}

    supported_backward_dtypes = supported_dtypes

    def sample_inputs(self, device: str, dtype: torch.dtype, requires_grad: bool) -> Iterator[Sample]:
        for n in (3, 4):
            yield Sample(torch.rand(n, dtype=dtype, requires_grad=requires_grad))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def crash(x: Any) -> Any:
    os.kill(os.getpid(), signal.SIGSEGV)


if __name__ == "__main__":
    samples.table = lambda: {op.name: op for op in (Op("cos", torch.cos), Op("tan", torch.tan), Op("exp", torch.exp))}
    if os.environ["PYTORCH_ENABLE_MPS_FALLBACK"] == "1":
        profiled = os.environ.get("PYTORCH_MPS_LOG_PROFILE_INFO") == "4"
        name = "aten::cos.profiled" if profiled else "aten::cos.out"
        cos = falls_back(name, lambda x: torch.sin(x + math.pi / 2))
    else:
        cos = raises(NotImplementedError, NO_KERNEL.format("aten::cos.out"))
    sys.exit(child.main(on_device=Planted(cos=cos, tan=torch.sin, exp=crash)))
