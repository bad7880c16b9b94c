"""torch.compile: what its caches said. The state of the cache decides what "compile time" means."""

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
    """cold (nothing was found), warm (nothing was missing) or mixed, and the counts of this process that say so."""
    from torch._dynamo.utils import counters

    return classify(counters)


def classify(counters: Mapping[str, Mapping[str, Any]]) -> tuple[str, dict[str, int]]:
    """The state, from inductor's own counters: {"inductor": {"fxgraph_cache_hit": 2}, ...}."""
    counts = {name: int(counters.get(group, {}).get(name, 0)) for group, name in (*_HITS, *_MISSES)}
    hits = sum(counts[name] for _, name in _HITS)
    misses = sum(counts[name] for _, name in _MISSES)
    state = "cold" if hits == 0 else "warm" if misses == 0 else "mixed"
    return state, {name: count for name, count in counts.items() if count}
