"""Text generation in tinygrad: keys and values cached on the device, and the steps that use them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tinygrad import Device as devices
from tinygrad import Tensor, TinyJit, dtypes

from harness.array_device import Device
from harness.sampling import Sampling as AnySampling
from harness.sampling import Tokens
from harness.tinygrad_backend.device import why_not
from harness.tinygrad_backend.training import DTYPES


class Cache:
    """Keys and values by layer, (batch, heads, block, features), written in place, and the number of known positions:
    `at`, one number on the device."""

    def __init__(self, keys: list[Tensor], values: list[Tensor], at: Tensor, reads: bool) -> None:
        self._keys, self._values, self._at, self._reads = keys, values, at, reads

    def positions(self, table: Tensor, n: int) -> Tensor:
        """Return the rows of the positional embedding for the next n tokens."""
        return table[:n] if self._reads else table[self._at]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store the keys and values of new positions, and return their causal attention.

        All are (batch, heads, time, features): the whole prompt, or a single token.
        """
        keys, values = self._keys[layer], self._values[layer]
        block, n = int(keys.shape[2]), int(k.shape[2])
        if self._reads:
            for whole, new in ((keys, k), (values, v)):
                whole.assign(new.pad((None, None, (0, block - n), None)).contiguous())
            return q.scaled_dot_product_attention(k, v, is_causal=True)
        places = Tensor.arange(block)
        here = (places == self._at).reshape(1, 1, block, 1)
        for whole, new in ((keys, k), (values, v)):
            whole.assign(here.where(new, whole))
        known = (places <= self._at).reshape(1, 1, 1, block)
        return q.scaled_dot_product_attention(keys, values, attn_mask=known)


@dataclass(kw_only=True)
class Sampling(AnySampling):
    """harness.sampling.Sampling in tinygrad. `logits(tokens, cache)` returns those of the last position."""

    device: Device
    params: Mapping[str, Tensor]
    logits: Callable[[Tensor, Cache], Tensor]

    def __post_init__(self) -> None:
        s = self.options.settings
        shape = (s.batch_size, self.heads, s.block_size, self.width // self.heads)
        self._keys, self._values = (
            [self._zeros(shape, DTYPES[self.options.dtype]) for _ in range(self.layers)] for _ in range(2)
        )
        self._at = self._zeros((1,), dtypes.int32)
        self._token = self._zeros((s.batch_size, 1), dtypes.int32)
        self._written = self._zeros((s.batch_size, s.block_size + 1), dtypes.int32)
        self._numbers = self._zeros((s.batch_size, s.block_size + 1), dtypes.float32)
        compiles = self.options.compile
        self._read = TinyJit(self._first) if compiles else self._first
        self._write = TinyJit(self._next) if compiles else self._next

    def _zeros(self, shape: tuple[int, ...], dtype: Any) -> Tensor:
        return Tensor.zeros(*shape, dtype=dtype, device=self.device.handle).contiguous().realize()

    def _put(self, tokens: Tokens) -> Tensor:
        return Tensor(np.ascontiguousarray(tokens, np.int32), device=self.device.handle).realize()

    def n_params(self) -> int:
        return sum(int(value.numel()) for value in self.params.values())

    def _first(self, tokens: Tensor) -> Tensor:
        logits = self.logits(tokens, Cache(self._keys, self._values, self._at, True))[:, -1].contiguous()
        known = int(tokens.shape[1])
        self._at.assign(Tensor.full((1,), known, dtype=dtypes.int32).contiguous())
        return self._done(logits)

    def _next(self) -> Tensor:
        """Feed the token chosen last, and choose the next, in place."""
        logits = self.logits(self._token, Cache(self._keys, self._values, self._at, False))[:, -1].contiguous()
        logits.realize(*self._keys, *self._values)
        self._at.assign(self._at + 1)
        return self._done(logits)

    def _done(self, logits: Tensor) -> Tensor:
        """Choose a token, store it at its position, and realize everything."""
        here = Tensor.arange(self._written.shape[1]).reshape(1, -1) == self._at
        self._token.assign(self._chosen(logits, here).cast(dtypes.int32))
        self._written.assign(here.where(self._token, self._written))
        Tensor.realize(logits, self._token, self._written, self._at, *self._keys, *self._values)
        return logits

    def _chosen(self, logits: Tensor, here: Tensor) -> Tensor:
        """Return a token for each row of logits, (batch, 1): the likeliest, or the one whose span of the cumulative
        probabilities holds the random number of the position that is `here`."""
        s = self.options.settings
        if not s.temperature:
            return logits.argmax(axis=-1, keepdim=True)
        scaled = logits.float() / s.temperature
        if 0 < s.top_k < int(scaled.shape[-1]):
            scaled = (scaled < scaled.topk(s.top_k, dim=-1)[0][:, -1:]).where(-float("inf"), scaled)
        upto = scaled.softmax(axis=-1).cumsum(axis=-1)
        u = here.where(self._numbers, 0.0).sum(axis=-1, keepdim=True)
        return (upto <= u * upto[:, -1:]).sum(axis=-1, keepdim=True)

    def draw(self, numbers: NDArray[np.float32]) -> None:
        s = self.options.settings
        placed = np.zeros((s.batch_size, s.block_size + 1), np.float32)
        begun = self.prompt(0).shape[1]
        placed[:, begun : begun + numbers.shape[1]] = numbers
        self._numbers.assign(Tensor(placed, device=self.device.handle)).realize()

    def prefill(self, tokens: Tokens) -> Tensor:
        self._begun = tokens.shape[1]
        return self._read(self._put(tokens))

    def step(self, tokens: Tokens) -> Tensor:
        self._token.assign(self._put(tokens[:, None])).realize()
        return self._write()

    def write(self, logits: Tensor, n: int) -> Tensor:
        for _ in range(n):
            self._write()
        return self._written[:, self._begun : self._begun + n + 1].contiguous().realize()

    def wait(self, *values: Any) -> None:
        devices[self.device.handle].synchronize()

    def numpy(self, values: Tensor) -> NDArray[Any]:
        return (values.float() if dtypes.is_float(values.dtype) else values).numpy()


def logits_of(
    logits: Callable[[Mapping[str, Tensor], Tensor], Tensor], params: Mapping[str, np.ndarray]
) -> Callable[[Tokens], NDArray[Any]] | None:
    """Return `logits(params, tokens)` on the CPU; None if tinygrad has no CPU here. `params` are numpy arrays."""
    if why_not("cpu"):
        return None
    placed = {name: Tensor(value, device="CPU").realize() for name, value in params.items()}
    return lambda tokens: logits(placed, Tensor(tokens, device="CPU")).numpy()
