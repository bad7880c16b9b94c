"""The captured environments of jobs, each distinct one in a file that only this user can read, below HOME/secrets, and
in no backup (docs/security.md).

The database has a file's name and the variables: the values of those on a fixed list (redact.is_public), and a keyed
hash of each other value. Equal values make equal questions. Without the key nobody can try values.
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from queue_runner.atomic_file import replacing
from queue_runner.host import job_secrets, redact
from queue_runner.host.job_secrets import Missing
from queue_runner.host.run_dir import read_regular
from queue_runner.paths import Layout
from queue_runner.spec import JobSpec

_KEY = ".key"


class Saver:
    """Saves the environments of jobs that are about to be stored; one that many jobs share is written once.

    Use it in the transaction that stores the jobs: nothing removes a file in between.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._saved: dict[tuple[int, int], tuple[JobSpec, dict[str, object]]] = {}

    def stored(self, spec: JobSpec) -> JobSpec:
        """Return the spec as the database may have it. Raises: OSError when the file cannot be written."""
        shared = id(spec.env), id(spec.variables)
        if shared not in self._saved:
            values = {"env": public(self._layout, spec.env), "variables": public(self._layout, spec.variables)}
            name = save(self._layout, spec.env)
            self._saved[shared] = spec, {**values, "env_file": name}  # the spec keeps the two identities alive
        return spec.changed(**self._saved[shared][1])


def save(layout: Layout, env: Mapping[str, str]) -> str:
    """Write an environment to its file, unless it is there. Return the file's name. Raises: OSError."""
    data = json.dumps(env, sort_keys=True).encode()
    name = hmac.digest(_key(layout), data, "sha256").hex()[:32]
    path = layout.environments / name
    if not path.exists():
        _write(path, data)
    return name


def public(layout: Layout, env: Mapping[str, str]) -> dict[str, str]:
    """Return variables as the database may have them: values that are not public as keyed hashes. Raises: OSError."""
    return {**env, **dict(_hashes(_key(layout), tuple(env.items())))}


@lru_cache(maxsize=4)
def _hashes(key: bytes, env: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Return the hashes of the values that are not public. A program that submits many jobs has one environment."""
    return tuple((name, _hash(key, value)) for name, value in redact.private(dict(env)).items())


def load(layout: Layout, spec: JobSpec) -> dict[str, str]:
    """Return the environment that a stored job was submitted with. Raises: Missing when its file is gone."""
    return read(layout, spec.env_file) if spec.env_file else dict(spec.env)


def read(layout: Layout, name: str) -> dict[str, str]:
    """Return the environment in a file. Raises: Missing when it is gone."""
    try:
        env: dict[str, str] = json.loads(read_regular(layout.environments / name))
    except (OSError, ValueError) as error:
        raise Missing(
            "the file with its environment is gone, and backups do not contain it",
            "mpsq rerun uses the environment of your current shell",
        ) from error
    return env


def check(layout: Layout, spec: JobSpec, env: Mapping[str, str] | None = None) -> None:
    """Raise Missing if a secret of a stored job no longer exists, or its environment, unless it is to run in `env`."""
    job_secrets.reveal(layout, spec.argv, load(layout, spec) if env is None else env)
    job_secrets.named(layout, spec.secrets)


def files(layout: Layout) -> list[Path]:
    """Return the files of environments, complete or left by a write that was killed."""
    try:
        return [path for path in layout.environments.iterdir() if path.name != _KEY]
    except OSError:
        return []


def _hash(key: bytes, value: str) -> str:
    return "#" + hmac.digest(key, value.encode(errors="surrogateescape"), "sha256").hex()[:16]


def _key(layout: Layout) -> bytes:
    path = layout.environments / _KEY
    if not path.exists():
        layout.secrets.mkdir(mode=0o700, parents=True, exist_ok=True)  # else it has the umask's mode
        layout.environments.mkdir(mode=0o700, exist_ok=True)
        _write(path, os.urandom(32))
    return read_regular(path)


def _write(path: Path, data: bytes) -> None:
    with replacing(path, durable=True) as partial:
        partial.write_bytes(data)
