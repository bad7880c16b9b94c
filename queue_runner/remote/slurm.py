"""Slurm as a target of --on, by its own commands.

What a controller says is not the truth about a run (docs/remote.md): it only decides how long to wait for a record.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from queue_runner.checks import Check
from queue_runner.remote import slurm_checks, slurm_commands, slurm_script
from queue_runner.remote.answers import Down, Seen, Unreachable
from queue_runner.remote.block import Folder
from queue_runner.remote.fence import has_started, make_void
from queue_runner.remote.newest import Newest


class Slurm:
    """The cluster that sbatch of this machine submits to."""

    kind = "slurm"
    down: Down | None = None  # its commands are asked in a thread

    def __init__(self, profile: Mapping[str, str], poll_s: float, grace_s: float) -> None:
        self._profile = profile
        self.poll_s = poll_s
        self.grace_s = grace_s
        self.told: dict[str, Any] = {"local": profile.get("local", "")}
        self._newest = Newest(slurm_commands.blocks, poll_s / 2, Unreachable("squeue does not answer"))

    def folder(self, token: str) -> Folder:
        """Return the block's folder, which the front and the nodes share."""
        return Folder(Path(self._profile["folder"]) / token)

    def send(self, token: str, options: Mapping[str, str]) -> str:
        """Submit a block whose folder is written; return its id. Raises: Unreachable, Refused, UsageError."""
        folder = self.folder(token)
        script = folder.path / "block.sh"
        script.write_text(slurm_script.batch_script(self._profile, "queue_runner.remote", str(folder.path)))
        words = ["sbatch", "--parsable", "--exclusive", "--nodes=1", "--no-requeue"]
        words += [f"--comment={slurm_commands.PREFIX}{token}", f"--job-name=mpsq-{token[:8]}", "--open-mode=append"]
        words += [f"--output={folder.log}", f"--chdir={folder.path}"]
        try:
            told = slurm_commands.call([*words, *slurm_commands.resources(self._profile, options), str(script)])
        finally:
            self._newest.forget()  # what squeue said before does not know this block
        return told.strip().partition(";")[0]

    def look(self, token: str) -> Seen:
        """Return the state of a block, found by its token: one squeue answers for all. Raises: Unreachable."""
        return self._newest.answer().get(token, Seen("gone", "forgotten"))

    def end(self, token: str, *, hard: bool) -> None:
        """Ask the cluster to end a block: SIGTERM to its supervisor, or (hard) everything. Raises: Unreachable."""
        job = self.look(token).job
        if job:
            slurm_commands.call(["scancel", job] if hard else ["scancel", "--batch", "--signal=TERM", job])

    def fetch(self, token: str) -> None:
        """Do nothing: the folder is shared."""

    def has_started(self, token: str) -> bool:
        """Return whether the block was started."""
        return has_started(self.folder(token).fence)

    def void(self, token: str) -> bool:
        """Make a block void; False when it was started before. Raises: OSError."""
        return make_void(self.folder(token).fence)

    def request(self, token: str, name: str) -> None:
        """Leave a request for the node. Raises: OSError."""
        (self.folder(token).path / name).touch()

    def remove(self, token: str) -> None:
        """Remove the folder of a block that is over."""
        shutil.rmtree(self.folder(token).path, ignore_errors=True)

    def abort(self) -> None:
        """Do nothing: a command of Slurm has its time limit."""

    def checks(self, name: str, *, smoke: bool) -> Iterator[Check]:
        """Examine what blocks need here; `smoke` sends a job of a minute that examines its node."""
        return slurm_checks.of_cluster(name, self._profile, smoke=smoke)
