"""Text generation in JAX: keys and values cached on the device, and the steps that use them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from harness.array_device import Device
from harness.jax_backend.device import cpu as cpu_device
from harness.jax_backend.training import DTYPES, Params
from harness.sampling import Sampling as AnySampling
from harness.sampling import Tokens

Kept = dict[str, Any]
"""keys, values: lists by layer of (batch, block, heads, features); at: the number of known positions"""


class Cache:
    """Keys and values of the tokens read: each layer's attend() replaces those in `kept`."""

    def __init__(self, state: Kept, reads: bool) -> None:
        self.kept, self._reads = state, reads

    def positions(self, n: int) -> jax.Array:
        """Return the positions of the next n tokens."""
        return jnp.arange(n) if self._reads else self.kept["at"][None]

    def attend(self, layer: int, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        """Store the keys and values of new positions, and return their causal attention.

        All are (batch, time, heads, features): the whole prompt, or a single token.
        """
        start = (0, 0 if self._reads else self.kept["at"], 0, 0)
        for name, new in (("keys", k), ("values", v)):
            self.kept[name][layer] = jax.lax.dynamic_update_slice(self.kept[name][layer], new, start)
        if self._reads:
            return jax.nn.dot_product_attention(q, k, v, is_causal=True)
        keys, values = self.kept["keys"][layer], self.kept["values"][layer]
        known = jnp.arange(keys.shape[1]) <= self.kept["at"]
        return jax.nn.dot_product_attention(q, keys, values, mask=known[None, None, None])


@dataclass(kw_only=True)
class Sampling(AnySampling):
    """harness.sampling.Sampling in JAX. `logits(params, tokens, cache=Cache)` returns those of the last position."""

    device: Device
    params: Params
    logits: Callable[..., jax.Array]

    def __post_init__(self) -> None:
        self._kept: Kept = {}
        self._numbers: jax.Array | None = None
        self._read, self._write, self._loop = self._first, self._next, self._more
        if self.options.compile:  # the old cache's memory is reused for the new one
            self._read = jax.jit(self._first)
            self._write = jax.jit(self._next, donate_argnums=1)
            self._loop = jax.jit(self._more, donate_argnums=1, static_argnums=3)

    def n_params(self) -> int:
        return sum(value.size for value in self.params.values())

    def _first(self, params: Params, tokens: jax.Array) -> tuple[jax.Array, Kept]:
        rows, n = tokens.shape
        shape = (rows, self.options.settings.block_size, self.heads, self.width // self.heads)
        empty = [jnp.zeros(shape, DTYPES[self.options.dtype]) for _ in range(self.layers)]
        cache = Cache({"keys": list(empty), "values": list(empty)}, True)
        logits = self.logits(params, tokens, cache=cache)[:, -1]
        return logits, {**cache.kept, "at": jnp.int32(n)}

    def _next(self, params: Params, cached: Kept, tokens: jax.Array) -> tuple[jax.Array, Kept]:
        """Append `tokens`, (batch,)."""
        cache = Cache({**cached, "keys": list(cached["keys"]), "values": list(cached["values"])}, False)
        logits = self.logits(params, tokens[:, None], cache=cache)[:, -1]
        return logits, {**cache.kept, "at": cached["at"] + 1}

    def _more(
        self, params: Params, cached: Kept, logits: jax.Array, n: int, numbers: jax.Array | None
    ) -> tuple[jax.Array, Kept]:
        """Return the chosen token, and n more: (batch, n + 1). One program on the device if compiled. `numbers` are
        random, (n + 1, batch)."""
        s = self.options.settings

        def one(state: tuple[Kept, jax.Array], u: jax.Array | None) -> tuple[tuple[Kept, jax.Array], jax.Array]:
            cached, token = state
            logits, cached = self._next(params, cached, token)
            token = chosen(logits, u, s.temperature, s.top_k)
            return (cached, token), token

        first = chosen(logits, None if numbers is None else numbers[0], s.temperature, s.top_k)
        if self.options.compile:
            drawn = None if numbers is None else numbers[1:]
            (cached, _), more = jax.lax.scan(one, (cached, first), drawn, length=n)
            return jnp.concatenate([first[None], more]).T, cached
        state, written = (cached, first), [first]
        for k in range(n):
            state, token = one(state, None if numbers is None else numbers[k + 1])
            written.append(token)
        return jnp.stack(written, axis=1), state[0]

    def prefill(self, tokens: Tokens) -> jax.Array:
        logits, self._kept = self._read(self.params, jax.device_put(tokens, self.device.handle))
        return logits

    def step(self, tokens: Tokens) -> jax.Array:
        logits, self._kept = self._write(self.params, self._kept, jax.device_put(tokens, self.device.handle))
        return logits

    def draw(self, numbers: NDArray[np.float32]) -> None:
        self._numbers = jax.device_put(numbers.T, self.device.handle)

    def write(self, logits: jax.Array, n: int) -> jax.Array:
        tokens, self._kept = self._loop(self.params, self._kept, logits, n, self._numbers)
        return tokens

    def wait(self, *values: Any) -> None:
        jax.block_until_ready((values, self._kept))

    def numpy(self, values: jax.Array) -> NDArray[Any]:
        return np.asarray(values.astype(jnp.float32) if jnp.issubdtype(values.dtype, jnp.floating) else values)


def chosen(logits: jax.Array, u: jax.Array | None, temperature: float, top_k: int) -> jax.Array:
    """Return a token for each row of logits, (batch,): the likeliest, or the one whose span of the cumulative
    probabilities holds the random number `u`, (batch,)."""
    if u is None:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    scaled = logits.astype(jnp.float32) / temperature
    if 0 < top_k < scaled.shape[-1]:
        scaled = jnp.where(scaled < jax.lax.top_k(scaled, top_k)[0][:, -1:], -jnp.inf, scaled)
    upto = jnp.cumsum(jax.nn.softmax(scaled, axis=-1), axis=-1)
    return (upto <= u[:, None] * upto[:, -1:]).sum(axis=-1).astype(jnp.int32)


def logits_of(
    logits: Callable[..., jax.Array], params: dict[str, np.ndarray]
) -> Callable[[Tokens], NDArray[Any]] | None:
    """Return `logits(params, tokens)` in fp32 on the CPU; None if JAX has no CPU here. `params` are numpy arrays."""
    there = cpu_device()
    if there is None:
        return None
    placed = jax.device_put(params, there)

    def found(tokens: Tokens) -> NDArray[Any]:
        with jax.default_device(there):
            return np.asarray(logits(placed, jax.device_put(tokens, there)))

    return found
