"""torch's switches for Apple's GPU: parsing of `--mps fallback=on,high_watermark=0.0`, and the resulting variables.

torch reads these variables on import or first use, some of them only once: they belong in the environment of the
computing process and nowhere else. A job stores the request in words (`fallback=on`); the variables are derived when it
starts.

Source: the libraries of torch 2.9 to 2.15 for macOS (docs/macos.md). The fallback is parsed as a number, so that "true"
makes the import fail; the default low watermark is above some high ones, so that setting only one can make the first
use of the device fail: here both are always set.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from msgspec import Struct

from queue_runner.errors import UsageError
from queue_runner.units import BOOLEANS

HIGHEST_RATIO = 2.0
"""torch rejects a watermark above this multiple of Metal's recommended size; a high one of 0 means no limit."""
DEFAULT_HIGH, DEFAULT_LOW = 1.7, 1.4
NONE = "default"
"""Word for no settings in a sweep: `--mps default --mps fast_math=on`."""


class Switch(Struct, frozen=True):
    """A setting. `on` and `off` are values of the variable, None if it must be unset; a watermark has neither: its
    value is a number."""

    variable: str
    help: str
    on: str | None = None
    off: str | None = None

    @property
    def is_ratio(self) -> bool:
        return self.on is None


SWITCHES: dict[str, Switch] = {
    "fallback": Switch(
        "PYTORCH_ENABLE_MPS_FALLBACK", "operators without a kernel run on the CPU instead of failing", "1", "0"
    ),
    "high_watermark": Switch("PYTORCH_MPS_HIGH_WATERMARK_RATIO", "most memory, a share of Metal's limit; 0: no limit"),
    "low_watermark": Switch("PYTORCH_MPS_LOW_WATERMARK_RATIO", "from this share on, unused memory is freed"),
    "fast_math": Switch("PYTORCH_MPS_FAST_MATH", "Metal kernels are compiled with fast math", "1"),
    "prefer_metal": Switch("PYTORCH_MPS_PREFER_METAL", "Metal kernels instead of MPSGraph where both exist", "1"),
    "layout_optimization": Switch(
        "TORCHINDUCTOR_LAYOUT_OPTIMIZATION", "torch.compile makes convolutions channels_last", "1", "0"
    ),
}
"""Switches by their name in `--mps`. `off` of fast_math and prefer_metal unsets the variable: presence may count."""

_OF_VARIABLE = {switch.variable: name for name, switch in SWITCHES.items()}


def parse(text: str) -> dict[str, str]:
    """Return the settings of one `--mps`, sorted and normalized, with both watermarks or none; {} for "default".

    Raises: UsageError for an unknown name or value, or watermarks that torch would reject.
    """
    if text.strip() == NONE:
        return {}
    values: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or name not in SWITCHES:
            raise UsageError(f'--mps cannot be "{part.strip()}"', f"it takes NAME=VALUE with {', '.join(SWITCHES)}")
        if name in values:
            raise UsageError(f"--mps sets {name} twice", "give each name once; several --mps options are swept")
        values[name] = _ratio(name, value) if SWITCHES[name].is_ratio else _switch(name, value)
    return dict(sorted(_with_pair(values).items()))


def _switch(name: str, value: str) -> str:
    if value.lower() not in BOOLEANS:
        raise UsageError(f'--mps {name} cannot be "{value}"', f"{name} is on or off: {SWITCHES[name].help}")
    return "on" if BOOLEANS[value.lower()] else "off"


def _ratio(name: str, value: str) -> str:
    number = float(value) if re.fullmatch(r"\d{1,9}(\.\d{0,9})?|\.\d{1,9}", value) else -1.0
    if not 0 <= number <= HIGHEST_RATIO:
        hint = f"{name} is a number from 0 to {HIGHEST_RATIO:g}: {SWITCHES[name].help}"
        raise UsageError(f'--mps {name} cannot be "{value}"', hint)
    return str(number)


def _with_pair(ratios: Mapping[str, str]) -> dict[str, str]:
    if not {"high_watermark", "low_watermark"} & set(ratios):
        return dict(ratios)
    high = float(ratios.get("high_watermark", DEFAULT_HIGH))
    low = float(ratios.get("low_watermark", min(DEFAULT_LOW, high or HIGHEST_RATIO)))
    if refused := _refused(high, low):
        hint = "lower low_watermark or raise high_watermark; high_watermark=0 removes the limit"
        raise UsageError(f"--mps: {refused}", hint)
    return {**ratios, "high_watermark": str(high), "low_watermark": str(low)}


def _refused(high: float, low: float) -> str | None:
    if not (0 <= high <= HIGHEST_RATIO and 0 <= low <= HIGHEST_RATIO):
        return f"watermarks are from 0 to {HIGHEST_RATIO:g}, not {high:g} and {low:g}"
    if low > (high or HIGHEST_RATIO):
        return f"low_watermark {low:g} is above high_watermark {high:g}, which torch refuses"
    return None


def environment(settings: Mapping[str, str], inherited: Mapping[str, str]) -> dict[str, str]:
    """Return `inherited` with the variables of the settings; a setting that is off may remove its variable."""
    changed = dict(inherited)
    for name, value in settings.items():
        switch = SWITCHES[name]
        setting = value if switch.is_ratio else switch.on if value == "on" else switch.off
        if setting is None:
            changed.pop(switch.variable, None)
        else:
            changed[switch.variable] = setting
    return changed


def memory_ratio(variables: Mapping[str, str]) -> float | None:
    """Return the most memory that torch takes, as a multiple of Metal's recommended size, where the variables say so;
    None where they do not. 0 means no limit: infinity."""
    try:
        return float(variables[SWITCHES["high_watermark"].variable]) or math.inf
    except (KeyError, ValueError):
        return None


def factor(variable: str, value: str) -> tuple[str, str]:
    """Return a variable as named in reports: `mps_fallback`, "on". Others are unchanged."""
    name = _OF_VARIABLE.get(variable)
    if name is None:
        return variable, value
    if SWITCHES[name].is_ratio:
        return f"mps_{name}", value
    return f"mps_{name}", {"1": "on", "0": "off"}.get(value, value)


def trouble(variables: Mapping[str, str]) -> tuple[str, str] | None:
    """Return what in an environment would make torch fail, and its fix; None if all is valid."""
    fallback = variables.get("PYTORCH_ENABLE_MPS_FALLBACK")
    if fallback is not None and not re.match(r"\s*[+-]?\d", fallback):
        return (
            f'PYTORCH_ENABLE_MPS_FALLBACK is "{fallback}", with which the import of torch fails',
            "export PYTORCH_ENABLE_MPS_FALLBACK=1, or unset it",
        )
    pair = [SWITCHES[name].variable for name in ("high_watermark", "low_watermark")]
    if not any(variable in variables for variable in pair):
        return None
    try:
        high, low = (float(variables.get(v, d)) for v, d in zip(pair, (DEFAULT_HIGH, DEFAULT_LOW), strict=True))
        refused = _refused(high, low)
    except ValueError:
        refused = f"{' or '.join(variable for variable in pair if variable in variables)} is not a number"
    return (f"{refused} ({', '.join(pair)})", f"set both or neither: {pair[1]} at most {pair[0]}") if refused else None
