"""Settings in HOME/config.toml: one table of keys, each with a default, a unit and a sentence of help.

`load` returns a frozen Config; `set_value` changes one key and keeps the rest of the file, comments included.
"""

from __future__ import annotations

import dataclasses
import fcntl
import math
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from queue_runner import lanes
from queue_runner.atomic_file import replacing
from queue_runner.errors import ConfigError, MpsqError, UsageError, did_you_mean
from queue_runner.paths import DEFAULT_LABEL
from queue_runner.units import BOOLEANS, parse_duration, parse_size

Kind = Literal["duration", "size", "count", "number", "bool", "text", "numbers", "profiles"]
Value = bool | int | float | str
_WORDS = {
    "duration": "a time in seconds",
    "size": "a size in bytes",
    "count": "a whole number",
    "number": "a number",
    "bool": "true or false",
    "text": "a text",
    "numbers": "a table of numbers",
    "profiles": "a table of profiles",
}


@dataclass(frozen=True)
class Key:
    """A key of the file: its kind, unit, bounds and purpose."""

    name: str
    kind: Kind
    unit: str
    help: str
    least: float = 0.0
    most: float = math.inf
    pattern: str = ""
    example: str = ""

    @property
    def default(self) -> Any:
        """Return the value used when the file does not set the key."""
        return getattr(_DEFAULTS, self.name)


def _key(default: Any, kind: Kind, help: str, unit: str = "", **bounds: Any) -> Any:
    """Return a field of Config, whose metadata are the arguments of its Key."""
    unit = {"duration": "s", "size": "bytes"}.get(kind, unit)
    return field(default_factory=lambda: default, metadata={"kind": kind, "help": help, "unit": unit, **bounds})


_DAY_S = 86400.0
_OTHERWISE = "move it away to use the defaults"
_LINE = r"[^\x00-\x1f\x7f]*"
_COMMAND: dict[str, Any] = {"pattern": _LINE, "example": "one line, such as 'say done'; \"\" for none"}
_PATTERNS: dict[str, Any] = {"pattern": _LINE, "example": "patterns such as '*.md notes/*'; \"\" for none"}


@dataclass(frozen=True)
class Config:
    """All settings, typed: each with its default, kind, unit, purpose and bounds."""

    grace_int_s: float = _key(5.0, "duration", "between SIGINT, which asks a run to stop, and SIGTERM", most=_DAY_S)
    grace_term_s: float = _key(5.0, "duration", "between SIGTERM and SIGKILL", most=_DAY_S)
    poll_s: float = _key(5.0, "duration", "how often an idle worker polls the queue", least=0.1, most=3600)
    sample_s: float = _key(5.0, "duration", "how often load, power and temperature are sampled", least=1, most=3600)
    cooldown_s: float = _key(0.0, "duration", "pause between two runs", most=_DAY_S)
    lanes: str = _key(
        "serial", "text", "what runs side by side: serial, auto (a lane for each GPU), UUIDs, or cpu:0-3,..."
    )
    gate_timeout_s: float = _key(120.0, "duration", "how long a submission waits for a quiet machine", most=_DAY_S)
    gate_cpu_share: float = _key(0.1, "number", "a start waits while others use more of all processors", most=1)
    gate_gpu_share: float = _key(0.1, "number", "a start that may use the GPU waits while it is busier", most=1)
    gate_gpu_temperature_c: float = _key(
        80.0, "number", "such a start waits while the GPU is hotter", "degrees C", most=1000
    )
    gate_memory_bytes: int = _key(2**30, "size", "a start waits while less memory is available")
    gate_battery: bool = _key(True, "bool", "a start waits while the machine runs on battery or saves power")
    output_limit_bytes: int = _key(2 * 2**30, "size", "a run that writes more is stopped", least=4096)
    min_free_bytes: int = _key(2**30, "size", "a run is stopped when less disk space is free")
    hold_after_failures: int = _key(
        3, "count", "a group whose runs fail at once so many times is held; 0 never", "runs"
    )
    keep_log_bytes: int = _key(64 * 2**20, "size", "a longer log is cut to its head and tail after the run", least=4096)
    keep_worker_log_bytes: int = _key(16 * 2**20, "size", "a longer worker log is trimmed", least=65536)
    keep_backups: int = _key(10, "count", "number of database backups to keep", least=1, most=10_000)
    backup_every_s: float = _key(
        86400.0,
        "duration",
        "how often the worker makes a backup, while nothing is measured; 0: never",
        most=366 * _DAY_S,
    )
    not_code: str = _key(
        "*.md *.rst *.adoc *.tex *.ipynb LICENSE* .gitignore .*_cache/* .idea/* .vscode/*"
        " outputs/* multirun/* wandb/* mlruns/* lightning_logs/*",
        "text",
        "names of files whose changes do not matter to a command",
        **_PATTERNS,
    )
    keep_awake: bool = _key(True, "bool", "prevent idle sleep during a run")
    service_label: str = _key(
        DEFAULT_LABEL,
        "text",
        "the service's name for launchd and systemd",
        pattern=r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)+",
        example='a name such as "dev.mpsq.worker"',
    )
    hook_done: str = _key("", "text", "shell command to run when a run has succeeded", **_COMMAND)
    hook_failed: str = _key("", "text", "shell command to run when a run has failed (not: cancelled)", **_COMMAND)
    hook_idle: str = _key("", "text", "shell command to run when the queue becomes idle", **_COMMAND)
    hook_timeout_s: float = _key(60.0, "duration", "a hook that takes longer is terminated", least=0.1, most=3600)
    peak_tflops: Mapping[str, float] = _key(
        {}, "numbers", "peak of a device by its name (cpu, mps, cuda:0), for MFU", "TFLOP/s", most=1e9
    )
    on: Mapping[str, Mapping[str, str]] = _key(
        {}, "profiles", "where --on NAME sends jobs, such as on.slurm.folder, a folder that the nodes share"
    )


_DEFAULTS = Config()
KEYS: dict[str, Key] = {setting.name: Key(setting.name, **setting.metadata) for setting in dataclasses.fields(Config)}

REMOVED = {
    "canary": "nothing measures the device's speed before a run any more",
    "notify": "the settings hook_done, hook_failed and hook_idle can show notifications (docs/hooks.md)",
}
"""Keys of earlier versions, and why each is gone; a file may still have them."""

SLURM = (
    *("account", "constraint", "cpus-per-task", "exclude", "gres", "mem", "mem-per-cpu", "nodelist", "partition"),
    *("qos", "reservation"),
)
"""Keys of a profile of Slurm that are options of sbatch, passed on as they are."""
PROFILE = (
    *("kind", "folder", "python", "poll", "grace"),  # of every target
    *("local", "gpus", "time", "nodes-at-once", "sbatch", "env", "setup", "wrapper"),  # of Slurm
    *("host", "ssh"),  # of a box
    *SLURM,
)
"""Keys of a profile, each a text."""
WORDS = ("sbatch", "ssh", "env", "wrapper")
"""Those that are words for a command."""


def split(text: str, name: str) -> list[str]:
    """Return the words of a text as a shell splits it. Raises: UsageError for a quote without its end."""
    import shlex

    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"{name} cannot be split into words: {_shown(text)}", "close each quote, or escape it"
        ) from error


def load(path: Path) -> Config:
    """Return the settings of a file, with defaults where it, or a key in it, is missing.

    Raises: ConfigError (unreadable, bad TOML with its line, unknown key, bad value) naming the file.
    """
    return to_config(read(path), path)


def removed(path: Path) -> list[str]:
    """Return a sentence for each key of a file that mpsq ignores. Raises: ConfigError as `read`."""
    keys = [name for name in read(path) if name in REMOVED]
    return [f"{path}: the setting {name} was removed and is ignored: {REMOVED[name]}" for name in keys]


def set_value(path: Path, name: str, text: str) -> Value:
    """Set a key, or an entry (`peak_tflops.mps`), to a value as typed. Return it as stored.

    Raises: UsageError (unknown key, bad value), MpsqError (the file is broken or cannot be written).
    """
    import tomlkit

    value = from_text(name, text)
    first, dot, entry = name.partition(".")
    try:
        # a separate lock file: the rename would leave the next writer holding a lock on the replaced file
        with path.with_name(path.name + ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            old = _text(path)
            parse(old, path)  # tomllib's errors, as everywhere
            document = tomlkit.parse(old)
            if dot:
                *tables, entry = entry.split(".", 1) if KEYS[first].kind == "profiles" else [entry]
                place = document.setdefault(first, tomlkit.table())
                for table in tables:
                    place = place.setdefault(table, tomlkit.table())
                place[entry] = value
            else:
                document[first] = value
            edited = tomlkit.dumps(document)
            to_config(parse(edited, path), path)
            with replacing(path.resolve(), durable=True) as partial:
                partial.write_bytes(edited.encode())
    except OSError as error:
        hint = "fix its permissions, or free some space"
        raise MpsqError(f"{path} cannot be written: {error.strerror}", hint) from error
    return value


def read(path: Path) -> dict[str, Any]:
    """Return the unchecked content of the file, {} when missing. Raises: ConfigError when it cannot be read as TOML."""
    return parse(_text(path), path)


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text", f"save it as UTF-8, or {_OTHERWISE}") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", f"fix it, or {_OTHERWISE}") from error


def parse(text: str, path: Path) -> dict[str, Any]:
    """Parse TOML. Raises: ConfigError with the line and its content."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        match = re.search(r"\(at line (\d+)", str(error))
        lines = text.splitlines()
        number = int(match[1]) if match else len(lines)
        shown = lines[number - 1].strip()[:80] if 0 < number <= len(lines) else ""
        what = re.sub(r"\s*\(at .*\)$", "", str(error))
        content = f": {shown}" if shown else ""
        hint = 'write each line as key = value, with strings in "quotes"'
        raise ConfigError(f"{path}, line {number}: {what}{content}", hint) from error


def to_config(data: Mapping[str, Any], path: Path) -> Config:
    """Validate the content of a file. Raises: ConfigError naming the file, the key and its valid values."""
    values: dict[str, Any] = {}
    for name, value in data.items():
        if name in REMOVED:
            continue
        try:
            key = find(name)
            values[name] = _CHECKS[key.kind](key, name, value)
        except UsageError as error:
            raise ConfigError(f"{path}: {error.message}", error.hint) from error
    return dataclasses.replace(_DEFAULTS, **values)


def find(name: str) -> Key:
    """Return the key of that name, or of the table that holds the entry. Raises: UsageError with the nearest name."""
    first, dot, entry = name.partition(".")
    if name in REMOVED:
        raise UsageError(f"the setting {name} was removed: {REMOVED[name]}", "leave it out")
    key = KEYS.get(first)
    if key is None or (dot and (key.kind not in ("numbers", "profiles") or not entry)):
        raise UsageError(f'unknown setting "{name}"', did_you_mean(name, KEYS, "mpsq config list shows all keys"))
    return key


def from_text(name: str, text: str) -> Value:
    """Parse a value as typed on the command line: `30s`, `2GiB`, `true`, a number, a string.

    Raises: UsageError for an unknown key, a value of the wrong kind, or one out of bounds.
    """
    key = find(name)
    if key.kind == "profiles":
        _, profile, entry = ([*name.split("."), "", ""])[:3]
        return str(_check_profiles(key, name, {profile: {entry: text.strip()}})[profile][entry])
    if key.kind == "numbers" and "." not in name:
        raise UsageError(f'"{name}" is a table of numbers', f"name the entry: mpsq config set {name}.mps 10.6")
    return _check(key, name, _typed(key, name, text.strip()))


def _typed(key: Key, name: str, text: str) -> Any:
    if key.kind == "bool":
        return BOOLEANS.get(text.lower(), text)
    if key.kind == "text":
        return text
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    if key.kind == "duration":
        return parse_duration(text, name)
    if key.kind == "size":
        return parse_size(text, name)
    return text


def _check(key: Key, name: str, value: Any) -> Value:
    """Return the value in its Python type. Raises: UsageError for a wrong kind or one out of bounds."""
    if key.name == "lanes" and type(value) in (str, int):
        lanes.parse(str(value))
        return str(value)
    types = {"bool": (bool,), "text": (str,), "size": (int,), "count": (int,)}.get(key.kind, (int, float))
    if type(value) not in types:  # true is not a number, although bool is a kind of int
        expected = _WORDS["number" if key.kind == "numbers" else key.kind]
        raise UsageError(f"{name} takes {expected}, not {_shown(value)}", key.help)
    if isinstance(value, str) and not re.fullmatch(key.pattern, value):
        raise UsageError(f'{name} cannot be "{value}"', key.example)
    most = min(key.most, 2**63 - 1)  # the limit of SQLite and of file offsets
    if not isinstance(value, bool | str) and not key.least <= value <= most:  # also rejects nan
        unit = f" {key.unit}" if key.unit else ""
        limits = f"at least {key.least:g}" if math.isinf(key.most) else f"between {key.least:g} and {key.most:g}"
        raise UsageError(f"{name} cannot be {value}{unit}: {limits}", key.help)
    checked: Value = types[-1](value)
    return checked


def _check_profiles(key: Key, name: str, value: Any) -> dict[str, dict[str, str]]:
    """Return profiles of texts. Raises: UsageError for another key or kind."""
    hint = f"write on.slurm.folder; the keys of a profile are {', '.join(PROFILE)}"
    if not isinstance(value, dict) or not all(isinstance(one, dict) for one in value.values()):
        raise UsageError(f"{name} takes {_WORDS[key.kind]}, not {_shown(value)}", hint)
    for profile, entries in value.items():
        for entry, text in entries.items():
            if not profile or entry not in PROFILE:
                raise UsageError(f'unknown setting "on.{profile}.{entry}"', did_you_mean(entry, PROFILE, hint))
            if not isinstance(text, str) or re.search(r"[\x00-\x1f\x7f]", text):
                raise UsageError(f"on.{profile}.{entry} takes a text of one line, not {_shown(text)}", hint)
            if entry in WORDS:
                split(text, f"on.{profile}.{entry}")
    return value


def _check_table(key: Key, _name: str, value: Any) -> dict[str, float]:
    if not isinstance(value, dict):
        raise UsageError(
            f"{key.name} takes {_WORDS[key.kind]}, not {_shown(value)}", f"name the device, as in {key.name}.mps = 10.6"
        )
    return {entry: float(_check(key, f"{key.name}.{entry}", number)) for entry, number in value.items()}


def _shown(value: Any) -> str:
    text = f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 60 else text[:59] + "…"


_CHECKS: dict[str, Callable[[Key, str, Any], Any]] = {
    **dict.fromkeys(_WORDS, _check),
    "numbers": _check_table,
    "profiles": _check_profiles,
}
