"""What a job will lack, as far as that is known without running it: packages of its interpreter, and data that have
never been fetched on a machine without a network.

Each is a sentence of `mpsq submit`, never a refusal: it may be there when the job starts, and its preflight finds out.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import shlex
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from queue_runner.host.command import ask
from queue_runner.paths import Layout
from queue_runner.spec import JobSpec, Value
from queue_runner.workloads.manifest import Workload

_CONNECT_S = 3.0
"""Time for a host's name and a connection to it; a resolver without a network may take much longer to say so."""
_INTERPRETER_S = 10.0
_HEADER = re.compile(r"^# /// script$\s(?P<content>(?:^#(?:| .*)$\s)+)^# ///$", re.MULTILINE)
"""A script's inline metadata; https://packaging.python.org/en/latest/specifications/inline-script-metadata/"""
_REQUIREMENT = re.compile(r"([A-Za-z0-9][\w.-]*)[^;]*(?:;\s*sys_platform\s*==\s*'(\w+)'\s*)?$")
_PROXIES = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
_LACKING = """
import json, sys
from importlib import metadata
def lacks(name):
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return True
print(json.dumps([name for name in sys.argv[1:] if lacks(name)]))
"""


def sentences(
    layout: Layout, cells: Sequence[tuple[JobSpec, Workload]], reaches: Callable[[str], bool] | None = None
) -> list[str]:
    """Return what the jobs of a grid will lack, each once. `reaches` says whether a host can be connected to."""
    reaches = reaches or _reaches
    found: dict[str, None] = {}
    for spec, workload in cells:
        lacking = _lacking(spec.python, packages(spec, workload))
        if lacking:
            install = shlex.join([spec.python, "-m", "pip", "install", *lacking])
            which = " ".join(filter(None, (workload.name, workload.framework)))
            found[f"{which} needs {', '.join(lacking)}, which its interpreter lacks: {install}"] = None
        found |= dict.fromkeys(_unfetched(layout, spec, workload, reaches))
    return list(found)


def packages(spec: JobSpec, workload: Workload) -> tuple[str, ...]:
    """Return the packages that a job imports on this platform: those of the header of its script, but of those that
    only a value of a setting needs the ones it needs."""
    optional = {name for param in workload.deciding for names in param.needs.values() for name in names}
    needed = {
        name for param in workload.deciding for name in param.needs.get(str(_value(spec, workload, param.name)), ())
    }
    header = (name for name in _dependencies(workload.file) if name not in optional)
    return tuple(dict.fromkeys([*header, *sorted(needed)]))


def _value(spec: JobSpec, workload: Workload, key: str) -> Value | None:
    """Return the value of a setting: of --set, else of the preset, else its default."""
    preset: Mapping[str, Value] = workload.configs.get(spec.config or "", {})
    return spec.params.get(key, preset.get(key, workload.params[key].default))


@functools.cache
def _dependencies(script: Path) -> tuple[str, ...]:
    import tomllib

    found = _HEADER.search(script.read_text("utf-8"))
    if found is None:
        return ()
    content = "".join(line[2:] if line.startswith("# ") else line[1:] for line in found["content"].splitlines(True))
    try:
        listed = tomllib.loads(content).get("dependencies", [])
    except tomllib.TOMLDecodeError:
        return ()
    matches = [match for text in listed if (match := _REQUIREMENT.match(str(text)))]
    return tuple(match[1] for match in matches if match[2] in (None, sys.platform))


@functools.cache
def _lacking(python: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return which of these distributions an interpreter does not have; none where it cannot be asked."""
    if python == sys.executable:
        from importlib import metadata

        here = {re.sub(r"[-_.]+", "-", str(one.name)).lower() for one in metadata.distributions() if one.name}
        return tuple(name for name in names if re.sub(r"[-_.]+", "-", name).lower() not in here)
    answer = ask([python, "-I", "-c", _LACKING, *names], timeout_s=_INTERPRETER_S) if names else None
    try:
        return tuple(map(str, json.loads(answer or "[]")))
    except ValueError:
        return ()


def _unfetched(layout: Layout, spec: JobSpec, workload: Workload, reaches: Callable[[str], bool]) -> Iterator[str]:
    if any(spec.env.get(name) for name in _PROXIES):
        return  # a proxy may reach what this machine does not
    for param in workload.deciding:
        value = str(_value(spec, workload, param.name))
        if value not in param.fetched:
            continue
        url, place, variable = param.fetched[value]
        kept, host = layout.cache / place, urlsplit(url).hostname or ""
        if elsewhere := spec.env.get(variable):
            kept = Path(elsewhere) / kept.name
        if not kept.exists() and not reaches(host):
            yield f"{param.name}={value} is not on this machine, and {host} cannot be reached: put {url} at {kept}"


@functools.cache
def _reaches(host: str) -> bool:
    reached = threading.Event()

    def connect() -> None:
        with contextlib.suppress(OSError):
            socket.create_connection((host, 443), timeout=_CONNECT_S).close()
            reached.set()

    attempt = threading.Thread(target=connect, daemon=True)
    attempt.start()
    attempt.join(_CONNECT_S)
    return reached.is_set()
