"""torch's own tables of operators with their samples, and the transfer of a sample to a device."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

TYPES = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp64": torch.float64,
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
    "complex64": torch.complex64,
}
_WIDER = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}


def table() -> dict[str, Any]:
    """Return every OpInfo of torch's own tests by name, in their order: add, div_floor_rounding, ...

    Raises: ModuleNotFoundError without expecttest.
    """
    from torch.testing._internal.common_methods_invocations import op_db

    return {op.formatted_name: op for op in op_db}


def dtypes_of(op: Any, device_type: str) -> set[torch.dtype]:
    """Return the dtypes that an operator accepts on the CPU or on the device, according to torch's tables."""
    return set(op.supported_dtypes("cpu")) | set(op.supported_dtypes(device_type))


def has_backward(op: Any, dtype: torch.dtype, device_type: str) -> bool:
    """Return whether an operator has a backward in `dtype` on the CPU or on the device."""
    if not op.supports_autograd or not (dtype.is_floating_point or dtype.is_complex):
        return False
    return dtype in op.supported_backward_dtypes("cpu") | op.supported_backward_dtypes(device_type)


def samples(op: Any, dtype: torch.dtype, grad: bool, most: int, seed: int) -> Iterator[Any]:
    """Yield inputs on the CPU, the same in every process, at most `most`; 0: all."""
    torch.manual_seed(seed ^ zlib.crc32(op.formatted_name.encode()))
    for n, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=grad)):
        if most and n >= most:
            return
        yield sample


class Side:
    """Where a sample is computed: on a device, or on the CPU in a wider dtype."""

    def __init__(self, device: torch.device, wider: bool = False) -> None:
        self.device, self.wider = device, wider

    def take(self, sample: Any, on_cpu: bool = False) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """Return input, arguments and keywords of a sample on this side; tensors are copies with the same strides.

        `on_cpu`: everything but the input stays on the CPU.
        """
        copies: dict[int, torch.Tensor] = {}
        first = self._move(sample.input, copies)
        if on_cpu:
            return first, sample.args, sample.kwargs
        return (
            first,
            tuple(self._move(arg, copies) for arg in sample.args),
            {key: self._move(value, copies, key) for key, value in sample.kwargs.items()},
        )

    def _move(self, value: Any, copies: dict[int, torch.Tensor], key: str = "") -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) not in copies:
                copies[id(value)] = self.tensor(value)
            return copies[id(value)]
        if isinstance(value, torch.device) or (key == "device" and isinstance(value, str)):
            return self.device
        if isinstance(value, torch.dtype):
            return _WIDER.get(value, value) if self.wider else value
        if isinstance(value, torch.Generator) and self.device.type != "cpu":
            return torch.Generator(self.device).manual_seed(value.initial_seed())
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(self._move(item, copies) for item in value))
        if type(value) in (list, tuple):
            return type(value)(self._move(item, copies) for item in value)
        if isinstance(value, Mapping):
            return {name: self._move(item, copies, str(name)) for name, item in value.items()}
        return value

    def tensor(self, value: torch.Tensor) -> torch.Tensor:
        """Return a copy on this side, a leaf of its own if the original requires gradients."""
        there = _with_strides(value.detach(), self.device)
        if self.wider and there.dtype in _WIDER:
            there = there.to(_WIDER[there.dtype])
        return there.requires_grad_(value.requires_grad)


def _with_strides(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a copy with the same strides and offset: kernels tend to fail on non-contiguous tensors first."""
    plain = value.layout == torch.strided and not (value.is_nested or value.is_conj() or value.is_neg())
    if not plain or (value.is_contiguous() and value.storage_offset() == 0):
        return value.to(device, copy=True)
    stored = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage())
    return stored.to(device, copy=True).as_strided(value.shape, value.stride(), value.storage_offset())
