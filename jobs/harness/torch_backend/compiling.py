"""The state of torch.compile's caches, on which the meaning of compile time depends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_HITS = (("inductor", "fxgraph_cache_hit"), ("aot_autograd", "autograd_cache_hit"))
_MISSES = (
    ("inductor", "fxgraph_cache_miss"),
    ("inductor", "fxgraph_cache_bypass"),
    ("aot_autograd", "autograd_cache_miss"),
    ("aot_autograd", "autograd_cache_bypass"),
)


def cache_state() -> tuple[str, dict[str, int]]:
    """Return cold (no hits), warm (no misses) or mixed, and the counts of this process behind it."""
    from torch._dynamo.utils import counters

    return classify(counters)


def classify(counters: Mapping[str, Mapping[str, Any]]) -> tuple[str, dict[str, int]]:
    """Return the state by inductor's own counters: {"inductor": {"fxgraph_cache_hit": 2}, ...}."""
    counts = {name: int(counters.get(group, {}).get(name, 0)) for group, name in (*_HITS, *_MISSES)}
    hits = sum(counts[name] for _, name in _HITS)
    misses = sum(counts[name] for _, name in _MISSES)
    state = "cold" if hits == 0 else "warm" if misses == 0 else "mixed"
    return state, {name: count for name, count in counts.items() if count}
