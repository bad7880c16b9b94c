"""Environments by name: a venv below MPSQ_HOME/envs with a record of its contents.

The record is written last: a folder without one is incomplete and not an environment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import asdict

from queue_runner.errors import MpsqError, UsageError, did_you_mean
from queue_runner.paths import Layout

RECORD = "mpsq-env.json"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Venv(Struct, frozen=True):
    """An environment. `pip` holds the arguments of `uv pip install`, without passwords; `packages` the versions by name
    at creation; `created_at` is in Unix seconds."""

    name: str
    folder: Path
    python_version: str = ""
    pip: tuple[str, ...] = ()
    packages: Mapping[str, str] = field(default_factory=dict)
    created_at: float = 0.0

    @property
    def python(self) -> Path:
        """Path of its interpreter."""
        return self.folder / "bin" / "python"

    def record(self) -> str:
        """Return its record, as JSON."""
        return json.dumps({k: v for k, v in asdict(self).items() if k not in ("name", "folder")}, indent=1)

    def activated(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return variables with its programs first in PATH, as its `activate` script sets them."""
        inherited = {name: value for name, value in variables.items() if name != "PYTHONHOME"}
        path = ":".join(filter(None, (str(self.folder / "bin"), inherited.get("PATH"))))
        return {**inherited, "PATH": path, "VIRTUAL_ENV": str(self.folder)}


def every(layout: Layout) -> list[Venv]:
    """Return all environments, sorted by name. Raises: MpsqError for a record that cannot be read."""
    return [_read(path.parent) for path in sorted(layout.envs.glob(f"[!.]*/{RECORD}"))]


def find(layout: Layout, name: str) -> Venv:
    """Return the environment of this name. Raises: UsageError when there is none, with similar names."""
    if not NAME.fullmatch(name) or not (layout.envs / name / RECORD).is_file():
        otherwise = "mpsq env list shows them; mpsq env create adds one"
        raise UsageError(
            f'unknown environment "{name}"', did_you_mean(name, [venv.name for venv in every(layout)], otherwise)
        )
    return _read(layout.envs / name)


def _read(folder: Path) -> Venv:
    try:
        data = json.loads((folder / RECORD).read_text("utf-8"))
        fields = (data["python_version"], tuple(data["pip"]), data["packages"], data["created_at"])
        return Venv(folder.name, folder, *fields)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MpsqError(
            f'the record of environment "{folder.name}" cannot be read: {error}',
            f"mpsq env remove {folder.name}, then create it again",
        ) from error
