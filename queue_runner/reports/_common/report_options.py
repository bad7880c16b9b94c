"""Parsing of the options of a report: `device=mps,compile=on`, `2h` or a date, `10:50`."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from queue_runner import units
from queue_runner.errors import UsageError
from queue_runner.model import parse_selectors
from queue_runner.monitor.answers.run_query import Options
from queue_runner.spec import COMPILE_MODES, Aim, compared_by

_KEY = re.compile(r"[\w.-]+\s*=")
"""How a condition begins; a name with = in it is that of a command, which has spaces before it."""
_WINDOW = re.compile(r"(\d{1,12}):(\d{1,12})", re.ASCII)
_MODES = {"on": "1", "true": "1", "compiled": "1", "1": "1", "off": "0", "false": "0", "eager": "0", "0": "0"}
_MODES |= {mode: mode for mode in COMPILE_MODES} | {f"compiled({mode})": mode for mode in COMPILE_MODES}


def read_options(
    *,
    sides: Sequence[Options] = (),
    selectors: Sequence[str] = (),
    tags: Sequence[str] = (),
    where: Sequence[str] = (),
    since: str | None = None,
    vs: str | None = None,
    group_by: str | None = None,
    iters: str | None = None,
    include_invalid: bool = False,
    peak_tflops: Mapping[str, float] | None = None,
    peak: str = "sourced",
    same_within: str | None = None,
    by: str | None = None,
    newest: bool = False,
    now: float | None = None,
) -> Options:
    """Parse options. Column names are checked later, against the store.

    Raises: UsageError when a value cannot be parsed.
    """
    if peak not in ("sourced", "measured"):
        raise UsageError(f'--peak cannot be "{peak}"', "use sourced, or measured (mpsq submit matmul --config peak)")
    conditions: dict[str, tuple[str, ...]] = {}
    for text in where:
        for key, values in assignments(text, "--where").items():
            conditions[key] = (*conditions.get(key, ()), *values)
    against = assignments(vs, "--vs") if vs is not None else {}
    for key, values in against.items():
        if len(values) > 1:
            raise UsageError(f"--vs {key} has {len(values)} values", "name one row, as in device=cpu,compile=off")
    return Options(
        sides=sides,
        selectors=parse_selectors(selectors, tags),
        where=conditions,
        since=None if since is None else moment(since, time.time() if now is None else now),
        vs={key: values[0] for key, values in against.items()},
        group_by=_names(group_by) if group_by is not None else (),
        iters=None if iters is None else _window(iters),
        include_invalid=include_invalid,
        peak_tflops=dict(peak_tflops or {}),
        peak=peak,
        aim=Aim(
            None if by is None else compared_by(by), {} if same_within is None else units.parse_margins(same_within)
        ),
        newest=newest,
    )


def read_side(text: str) -> Options:
    """Parse one side of mpsq compare: `12`, `12.3`, `g4`, `@last`, `python a.py --lr=1` or `lr=1e-3,device=mps`.

    Raises: UsageError."""
    if _KEY.match(text):
        return replace(read_options(), where=assignments(text, "mpsq compare"))
    return read_options(selectors=[text])


def assignments(text: str, option: str) -> dict[str, tuple[str, ...]]:
    """Parse `device=cpu,mps,compile=off` into device: cpu, mps and compile: 0; a mode of torch.compile stays its name.

    Raises: UsageError when malformed.
    """
    parsed: dict[str, tuple[str, ...]] = {}
    key = ""
    for part in text.split(","):
        name, equals, value = part.partition("=")
        key = name.strip().replace("-", "_") if equals else key
        value = value.strip() if equals else part.strip()
        if not key or not value:
            raise UsageError(f'{option}: "{text}" is not KEY=VALUE', f"for example {option} device=cpu,compile=off")
        parsed[key] = (*parsed.get(key, ()), _mode(value, option) if key == "compile" else value)
    return parsed


def _mode(value: str, option: str) -> str:
    if value.lower() not in _MODES:
        raise UsageError(f'{option}: compile cannot be "{value}"', f"use compile=on, off, {', '.join(COMPILE_MODES)}")
    return _MODES[value.lower()]


def _names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip().replace("-", "_") for name in text.split(",")))
    if not all(names):
        raise UsageError(f'--group-by: "{text}" has an empty name', "for example --group-by device,dtype")
    return names


def _window(text: str) -> tuple[int, int]:
    match = _WINDOW.fullmatch(text.strip())
    if match is None or int(match[1]) > int(match[2]):
        raise UsageError(f'--iters: "{text}" is not FIRST:LAST', "for example --iters 10:50, both ends included")
    return int(match[1]), int(match[2])


def moment(text: str, now: float) -> float:
    """Return Unix seconds of a local date ("2026-11-20", "2026-11-20T08:30") or an age ("90m", "2h", "3d").

    Raises: UsageError when `text` is neither.
    """
    from datetime import datetime

    cleaned = text.strip()
    try:
        return datetime.fromisoformat(cleaned).timestamp() if re.match(r"\d{4}-\d", cleaned) else now - _ago(cleaned)
    except (ValueError, OverflowError, OSError):
        raise UsageError(f'--since: "{text}" is not a date', "use 2026-11-20, 2026-11-20T08:30, 2h or 3d") from None


def _ago(text: str) -> float:
    try:
        return units.parse_duration(text, "--since")
    except UsageError as error:
        raise UsageError(error.message, "use an age (90m, 2h, 3d) or a date (2026-11-20)") from None
