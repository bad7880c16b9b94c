"""torch.compile in the mode of --compile, and the state of its caches, on which the meaning of compile time depends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from harness.command_line import Options
from harness.errors import UsageError

_HITS = (("inductor", "fxgraph_cache_hit"), ("aot_autograd", "autograd_cache_hit"))
_MISSES = (
    ("inductor", "fxgraph_cache_miss"),
    ("inductor", "fxgraph_cache_bypass"),
    ("aot_autograd", "autograd_cache_miss"),
    ("aot_autograd", "autograd_cache_bypass"),
)
_MODES = {"no-cudagraphs": "max-autotune-no-cudagraphs"}
"""torch's names of the modes of --compile that have another here."""
_compiled_in: set[str] = set()


def compiled(function: Any, options: Options, **more: Any) -> Any:
    """Return a module or function as --compile asks: itself, or torch.compile of it in that mode. `more` are further
    arguments of torch.compile."""
    if not options.compile:
        return function
    _compiled_in.add(options.compile_mode)
    return torch.compile(function, mode=torch_mode(options), **more)


def named_mode(options: Options) -> str | None:
    """Return the mode for a trainer that calls torch.compile itself with it; None for its default."""
    _compiled_in.add(options.compile_mode)
    return torch_mode(options)


def torch_mode(options: Options) -> str | None:
    """Return `mode` as torch.compile takes it; None for its default."""
    return _MODES.get(options.compile_mode, options.compile_mode) or None


def refuse_unused_mode(options: Options) -> None:
    """Raise UsageError if a mode was requested and nothing was compiled in it: the run would be the default's, under
    the mode's name."""
    if options.compile_mode and options.compile_mode not in _compiled_in:
        raise UsageError(
            f"--compile {options.compile_mode}: this workload calls torch.compile itself, without the mode",
            "from harness.torch_backend.compiling import compiled, and write compiled(model, options) in its place;"
            " or --compile on",
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
