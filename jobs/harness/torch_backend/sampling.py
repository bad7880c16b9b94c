"""Text generation in torch: keys and values cached on the device, and the steps that use them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

from harness.sampling import Sampling as AnySampling
from harness.sampling import Tokens
from harness.torch_backend.compiling import compiled
from harness.torch_backend.device import DTYPES, Device


class LayerCache:
    """Keys and values of one layer: (batch, heads, block, features), of which the first positions are known."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, at: torch.Tensor, reads: bool) -> None:
        self.keys, self.values, self.at, self.reads = keys, values, at, reads

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Store the keys and values of new positions, and return their causal attention.

        All are (batch, heads, time, features): the whole prompt, or a single token.
        """
        if self.reads:
            self.keys[:, :, : k.shape[2]] = k
            self.values[:, :, : v.shape[2]] = v
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        self.keys.index_copy_(2, self.at, k)
        self.values.index_copy_(2, self.at, v)
        known = torch.arange(self.keys.shape[2], device=self.at.device) <= self.at
        return F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=known[None, None, None])


class Cache:
    """Keys and values of all layers, and the number of known positions: `at`, one number on the device."""

    def __init__(self, layers: list[tuple[torch.Tensor, torch.Tensor]], at: torch.Tensor, reads: bool) -> None:
        self._kept, self._at, self._reads = layers, at, reads

    def positions(self, n: int) -> torch.Tensor:
        """Return the positions of the next n tokens."""
        return torch.arange(n, device=self._at.device) if self._reads else self._at

    def layer(self, n: int) -> LayerCache:
        """Return the cache of layer n."""
        return LayerCache(*self._kept[n], self._at, self._reads)


@dataclass(kw_only=True)
class Sampling(AnySampling):
    """harness.sampling.Sampling in torch. `forward(tokens, cache=Cache)` returns the logits of the last position."""

    device: Device
    model: nn.Module
    forward: Callable[..., torch.Tensor]

    def __post_init__(self) -> None:
        s, there = self.options.settings, self.device.handle
        shape = (s.batch_size, self.heads, s.block_size, self.width // self.heads)
        dtype = DTYPES[self.options.dtype]
        layers = [
            (torch.zeros(shape, dtype=dtype, device=there), torch.zeros(shape, dtype=dtype, device=there))
            for _ in range(self.layers)
        ]
        self._at = torch.zeros(1, dtype=torch.long, device=there)
        self._numbers: torch.Tensor | None = None
        reading, writing = Cache(layers, self._at, True), Cache(layers, self._at, False)

        def read(tokens: torch.Tensor) -> torch.Tensor:
            return self.forward(tokens, cache=reading)[:, -1]

        def write(tokens: torch.Tensor, u: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
            logits = self.forward(tokens, cache=writing)[:, -1]
            return logits, chosen(logits, u, s.temperature, s.top_k)

        self._read = compiled(read, self.options, dynamic=False)
        self._write = compiled(write, self.options, dynamic=False)

    def n_params(self) -> int:
        return sum(p.numel() for p in self.model.parameters())

    @torch.no_grad()
    def prefill(self, tokens: Tokens) -> torch.Tensor:
        prompt = torch.from_numpy(np.ascontiguousarray(tokens)).long().to(self.device.handle)
        with self.device.autocast(self.options.dtype):
            logits = self._read(prompt)
        self._at.fill_(prompt.shape[1])
        return logits

    @torch.no_grad()
    def step(self, tokens: Tokens) -> torch.Tensor:
        token = torch.from_numpy(np.ascontiguousarray(tokens[:, None])).long().to(self.device.handle)
        with self.device.autocast(self.options.dtype):
            logits, _ = self._write(token)
        self._at += 1
        return logits

    def draw(self, numbers: NDArray[np.float32]) -> None:
        self._numbers = torch.from_numpy(numbers).to(self.device.handle)

    @torch.no_grad()
    def write(self, logits: torch.Tensor, n: int) -> torch.Tensor:
        s = self.options.settings
        drawn = [None] * (n + 1) if self._numbers is None else list(self._numbers.split(1, dim=1))
        written = [chosen(logits, drawn[0], s.temperature, s.top_k)]
        with self.device.autocast(self.options.dtype):
            for u in drawn[1:]:
                written.append(self._write(written[-1], u)[1])
                self._at += 1
        return torch.cat(written, dim=1)

    def wait(self, *values: Any) -> None:
        self.device.synchronize()

    def numpy(self, values: torch.Tensor) -> NDArray[Any]:
        return (values.float() if values.is_floating_point() else values).cpu().numpy()


def chosen(logits: torch.Tensor, u: torch.Tensor | None, temperature: float, top_k: int) -> torch.Tensor:
    """Return a token for each row of logits, (batch, 1): the likeliest, or the one whose span of the cumulative
    probabilities holds the random number `u`, (batch, 1)."""
    if u is None:
        return logits.argmax(dim=-1, keepdim=True)
    scaled = logits.float() / temperature
    if 0 < top_k < scaled.shape[-1]:
        scaled = scaled.masked_fill(scaled < scaled.topk(top_k, dim=-1).values[:, -1:], -torch.inf)
    upto = torch.softmax(scaled, dim=-1).cumsum(dim=-1)
    return (upto <= u * upto[:, -1:]).sum(dim=-1, keepdim=True)


@torch.no_grad()
def logits_of(model: nn.Module) -> Callable[[Tokens], NDArray[Any]]:
    """Return a function from tokens to logits, by the training's forward without dropout."""

    @torch.no_grad()
    def logits(tokens: Tokens) -> NDArray[Any]:
        return model.eval()(torch.from_numpy(tokens).long()).float().numpy()

    return logits
