"""The folder of one run, `runs/12.3/`: who writes which file, and how each is read.

The job writes its log and its events, the CLI the cancel request, and only the warden what is under warden/.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class RunDir:
    """Paths of one run's files."""

    path: Path

    @property
    def spec(self) -> Path:
        return self.path / "spec.json"

    @property
    def warden_program(self) -> Path:
        return self.path / "warden.py"

    @property
    def warden_lock(self) -> Path:
        return self.path / "warden.lock"

    @property
    def cancel(self) -> Path:
        return self.path / "cancel"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def stdout(self) -> Path:
        return self.path / "stdout.log"

    @property
    def stderr(self) -> Path:
        return self.path / "stderr.log"

    @property
    def out(self) -> Path:
        return self.path / "out"

    @property
    def warden_log(self) -> Path:
        return self.path / "warden" / "warden.log"

    @property
    def noted_pids(self) -> Path:
        return self.path / "warden" / "pids.jsonl"

    def started(self) -> dict[str, Any] | None:
        """The fence: there once the trainer may have been started. A fence that is torn counts as being there."""
        return self._read("started", torn={})

    def exit(self) -> dict[str, Any] | None:
        """The warden's word on how the run ended; None while there is none."""
        return self._read("exit.json", torn=None)

    def stop(self) -> dict[str, Any] | None:
        """Why the warden is ending the run; None while it is not."""
        return self._read("stop", torn=None)

    def noted(self) -> list[dict[str, Any]]:
        """Every process that the warden has seen below the trainer."""
        found = []
        try:
            lines = self.noted_pids.read_bytes().splitlines()
        except OSError:
            return []
        for line in lines:
            try:
                found.append(json.loads(line))
            except ValueError:
                continue  # the warden was killed in mid-line
        return found

    def request_cancel(self, who: str) -> None:
        """Leave the request that the warden looks for; nothing happens where the run has no folder yet.

        Raises: OSError when the disk refuses.
        """
        try:
            descriptor = os.open(self.cancel, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            return
        try:
            os.write(descriptor, who.encode())
        finally:
            os.close(descriptor)

    def _read(self, name: str, torn: dict[str, Any] | None) -> dict[str, Any] | None:
        try:
            data = json.loads((self.path / "warden" / name).read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            return torn
        return data if isinstance(data, dict) else torn


def read_end(path: Path, size: int = 4096) -> bytes:
    """The last `size` bytes of a file; nothing where it cannot be read."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - size))
            return stream.read(size)
    except OSError:
        return b""
