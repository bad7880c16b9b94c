"""Text generation in MLX: keys and values cached on the device, and the steps that use them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten
from numpy.typing import NDArray

from harness.array_device import Device
from harness.mlx_backend.training import DTYPES
from harness.sampling import Sampling as AnySampling
from harness.sampling import Tokens


class Cache:
    """Keys and values by layer, (batch, heads, block, features), and the number of known positions: `at`, one number on
    the device, None before the prompt."""

    def __init__(self, keys: list[mx.array], values: list[mx.array], at: mx.array | None) -> None:
        self.keys, self.values, self._at = list(keys), list(values), at

    def positions(self, n: int) -> mx.array:
        """Return the positions of the next n tokens."""
        return mx.arange(n) if self._at is None else self._at

    def attend(self, layer: int, q: mx.array, k: mx.array, v: mx.array, scale: float) -> mx.array:
        """Store the keys and values of new positions, and return their causal attention.

        All are (batch, heads, time, features): the whole prompt, or a single token.
        """
        start = mx.array([0]) if self._at is None else self._at
        keys = self.keys[layer] = mx.slice_update(self.keys[layer], k, start, (2,))
        values = self.values[layer] = mx.slice_update(self.values[layer], v, start, (2,))
        if self._at is None:
            return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask="causal")
        known = mx.arange(keys.shape[2]) <= self._at
        return mx.fast.scaled_dot_product_attention(q, keys, values, scale=scale, mask=known[None, None, None])


@dataclass(kw_only=True)
class Sampling(AnySampling):
    """harness.sampling.Sampling in MLX. `logits(tokens, cache)` returns those of the last position, in its dtype."""

    device: Device
    model: nn.Module
    logits: Callable[[mx.array, Cache], mx.array]

    def __post_init__(self) -> None:
        self._keys: list[mx.array] = []
        self._values: list[mx.array] = []
        self._at = mx.array([0])
        self._numbers: mx.array | None = None
        self._read, self._write = self._first, self._next
        if self.options.compile:
            self._read = mx.compile(self._first, inputs=self.model.state)
            self._write = mx.compile(self._next, inputs=self.model.state)

    def n_params(self) -> int:
        return sum(value.size for _, value in tree_flatten(self.model.parameters()))

    def _first(self, tokens: mx.array) -> tuple[mx.array, list[mx.array], list[mx.array]]:
        shape = (tokens.shape[0], self.heads, self.options.settings.block_size, self.width // self.heads)
        empty = [mx.zeros(shape, DTYPES[self.options.dtype]) for _ in range(self.layers)]
        cache = Cache(empty, empty, None)
        return self.logits(tokens, cache)[:, -1], cache.keys, cache.values

    def _next(
        self, tokens: mx.array, at: mx.array, keys: list[mx.array], values: list[mx.array], *u: mx.array
    ) -> tuple[mx.array, mx.array, mx.array, list[mx.array], list[mx.array]]:
        """Append `tokens`, (batch,)."""
        cache = Cache(keys, values, at)
        logits = self.logits(tokens[:, None], cache)[:, -1]
        return logits, self._chosen(logits, *u), at + 1, cache.keys, cache.values

    def prefill(self, tokens: Tokens) -> mx.array:
        logits, self._keys, self._values = self._read(mx.array(tokens))
        self._at = mx.array([tokens.shape[1]])
        return logits

    def step(self, tokens: Tokens) -> mx.array:
        return self._go_on(mx.array(tokens))[0]

    def draw(self, numbers: NDArray[np.float32]) -> None:
        self._numbers = mx.array(numbers)

    def write(self, logits: mx.array, n: int) -> mx.array:
        drawn = [() if self._numbers is None else (self._numbers[:, k],) for k in range(n + 1)]
        written = [self._chosen(logits, *drawn[0])]
        for u in drawn[1:]:
            token = self._go_on(written[-1], *u)[1]
            mx.async_eval(token, self._keys, self._values)  # the device starts while the next step's graph is built
            written.append(token)
        return mx.stack(written, axis=1)

    def _go_on(self, tokens: mx.array, *u: mx.array) -> tuple[mx.array, mx.array]:
        if not u and self._numbers is not None:  # step(), whose choice is not used: one program for both
            u = (self._numbers[:, 0],)
        logits, token, self._at, self._keys, self._values = self._write(tokens, self._at, self._keys, self._values, *u)
        return logits, token

    def _chosen(self, logits: mx.array, *u: mx.array) -> mx.array:
        """Return a token for each row of logits, (batch,): the likeliest, or the one whose span of the cumulative
        probabilities holds the random number `u`, (batch,)."""
        if not u:
            return mx.argmax(logits, axis=-1)
        s = self.options.settings
        scaled = logits.astype(mx.float32) / s.temperature
        if 0 < s.top_k < scaled.shape[-1]:
            least = mx.topk(scaled, s.top_k, axis=-1).min(axis=-1, keepdims=True)
            scaled = mx.where(scaled < least, -mx.inf, scaled)
        upto = mx.cumsum(mx.softmax(scaled, axis=-1), axis=-1)
        return (upto <= u[0][:, None] * upto[:, -1:]).sum(axis=-1)

    def wait(self, *values: Any) -> None:
        mx.eval(*values, self._at, self._keys, self._values)
        mx.synchronize()

    def numpy(self, values: mx.array) -> NDArray[Any]:
        return np.array(values.astype(mx.float32) if mx.issubdtype(values.dtype, mx.floating) else values)


def logits_of(logits: Callable[[mx.array], mx.array]) -> Callable[[Tokens], NDArray[Any]]:
    """Return a function from tokens to the training's own `logits`, computed on the CPU."""

    def found(tokens: Tokens) -> NDArray[Any]:
        with mx.stream(mx.cpu):  # memory is shared on Apple silicon; elsewhere MLX copies
            return np.array(logits(mx.array(tokens)))

    return found
