"""The question of a job in a bundle: the fields of the specification that travel, and a check of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from queue_runner.bundles.parts import KINDS, Check, digest, flag, number, one_of, prose, whole, word
from queue_runner.events import MAX_INT
from queue_runner.ingest.storable import BadLine, storable
from queue_runner.spec import COMPILE_MODES

_MOST = 1000
"""Settings, packages or words of one job."""


def _or(otherwise: Any, check: Check) -> Check:
    def checked(value: Any, key: str) -> Any:
        return value if value == otherwise and type(value) is type(otherwise) else check(value, key)

    return checked


def _mapping(check: Check) -> Check:
    def checked(value: Any, key: str) -> Any:
        if type(value) is not dict or len(value) > _MOST:
            raise BadLine(f"{key} is not an object of at most {_MOST} values")
        for name, item in value.items():
            _NAME(name, key)
            check(item, f"{key}.{name}")
        return value

    return checked


def _texts(value: Any, key: str) -> Any:
    if type(value) is not list or len(value) > _MOST:
        raise BadLine(f"{key} is not a list of at most {_MOST} words")
    return [_PROSE(item, key) for item in value]


def _setting(value: Any, key: str) -> Any:
    storable(value)
    if type(value) is str:
        return _PROSE(value, key)
    if type(value) not in (int, float, bool) or abs(value) > MAX_INT:
        raise BadLine(f"{key} is not a setting")
    return value


_NAME, _PROSE = word(), prose()
_WORD, _HASH, _LIMIT = _or(None, _NAME), _or("", digest), _or(None, number(0, 1e12))

FIELDS: Mapping[str, Check] = {
    "kind": one_of(*KINDS),
    "name": _NAME,
    **dict.fromkeys(("workload", "framework", "device", "dtype", "config", "parser"), _WORD),
    "compile": _or(None, flag),
    "compile_mode": one_of("", *COMPILE_MODES),
    "seed": _or(None, whole(-MAX_INT)),
    "params": _mapping(_setting),
    "argv": _texts,
    "template": _texts,
    "find_max": _PROSE,
    "snapshot": _or(None, digest),
    "tree": _HASH,
    "code": _HASH,
    "env_name": word(),
    "packages": _mapping(_NAME),
    "mps": _mapping(_NAME),
    "variables": _mapping(_NAME),
    "gpus": whole(1, 4096),
    "cores": whole(0, 1 << 20),
    "threads": whole(0, 1 << 20),
    "warmup": whole(0, 1 << 20),
    "prepare": _PROSE,
    "timeout_s": _LIMIT,
    "gate_s": _LIMIT,
    **dict.fromkeys(("resume", "gate", "seed_by_round"), flag),
}
"""The question and the code."""
_REMOVED = {"pairing", "until_valid", "layout_seed", "randomize"}
"""Fields that earlier versions of mpsq wrote; they are read and dropped."""
ADDED = {"seed_by_round"}
"""Fields that earlier versions did not write: they may be missing, and no stored hash counts them."""
LEFT = frozenset(
    [
        *("cwd", "env", "env_file", "python", "script", "copy", "allow_changed", "allow_daemons", "stall_s", "root"),
        *("inside", "secrets", "preflight", "metrics", "on", "merged", "lane", "affinity"),
    ]
)
"""The place, the environment, and what only matters before a run: in no bundle."""


def check(data: Mapping[str, Any]) -> None:
    """Check the question of a job. Raises: BadLine for a field or a value that no job has."""
    if odd := sorted((data.keys() - _REMOVED | ADDED) ^ FIELDS.keys()):
        raise BadLine(f"a job has the wrong fields ({odd[0][:40]!a})")
    for name in FIELDS.keys() & data.keys():
        FIELDS[name](data[name], name)
