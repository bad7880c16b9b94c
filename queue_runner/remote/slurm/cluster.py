"""Slurm as a target of --on, by its own commands.

The answer of a controller is not the truth about a run (docs/remote.md): it only decides how long to wait for a record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from queue_runner.checks import Check
from queue_runner.remote.slurm import cluster_checks, commands
from queue_runner.remote.slurm.newest import Newest
from queue_runner.remote.target import Seen, Target, Unreachable


class Slurm(Target):
    """The cluster that sbatch of this machine submits to. Its commands have time limits of their own."""

    def __init__(self, profile: Mapping[str, str], poll_s: float, grace_s: float) -> None:
        super().__init__("slurm", Path(profile["folder"]), poll_s, grace_s)
        self._profile = profile
        self.local = profile.get("local", "")
        self._newest = Newest(commands.blocks, poll_s / 2, Unreachable("squeue does not answer"))

    def send(self, token: str, options: Mapping[str, str]) -> str:
        """Submit a block whose folder is written; return its id. Raises: Unreachable, Refused, UsageError."""
        folder = self.folder(token)
        script = folder.path / "block.sh"
        script.write_text(commands.batch_script(self._profile, "queue_runner.remote", str(folder.path)))
        words = ["sbatch", "--parsable", "--exclusive", "--nodes=1", "--no-requeue"]
        words += [f"--comment={commands.PREFIX}{token}", f"--job-name=mpsq-{token[:8]}", "--open-mode=append"]
        words += [f"--output={folder.log}", f"--chdir={folder.path}"]
        try:
            answer = commands.call([*words, *commands.resources(self._profile, options), str(script)])
        finally:
            self._newest.forget()  # the last answer of squeue does not have this block
        return answer.strip().partition(";")[0]

    def look(self, token: str) -> Seen:
        """Return the state of a block, found by its token: one squeue answers for all. Raises: Unreachable."""
        return self._newest.answer().get(token, Seen("gone", "forgotten"))

    def end(self, token: str, *, hard: bool) -> None:
        """Ask the cluster to end a block: SIGTERM to its supervisor, or (hard) everything. Raises: Unreachable."""
        job = self.look(token).job
        if job:
            commands.call(["scancel", job] if hard else ["scancel", "--batch", "--signal=TERM", job])

    def checks(self, name: str, *, smoke: bool) -> Iterator[Check]:
        """Examine the requirements of blocks; `smoke` sends a job of a minute that examines its node."""
        return cluster_checks.of_cluster(name, self._profile, smoke=smoke)
