"""Slurm as a target of --on, by its own commands.

The answer of a controller is not the truth about a run (docs/remote.md): it only decides how long to wait for a record.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial

from queue_runner.model import Ending
from queue_runner.remote.fence import FenceHolder
from queue_runner.remote.json_files import read_struct
from queue_runner.remote.profile import Profile
from queue_runner.remote.slurm import commands
from queue_runner.remote.target import Seen, Target, Unreachable, ending_of

_PATIENCE_S = 2.0
"""How long a caller waits for a fresh answer: squeue of a healthy controller takes some hundredths of a second."""


class Slurm(Target):
    """The cluster that sbatch of this machine submits to. Its commands have time limits of their own."""

    def __init__(self, profile: Profile) -> None:
        super().__init__("slurm", profile.shared_folder(), profile)
        self._newest: Future[dict[str, Seen]] | None = None
        self._due = 0.0

    def send(self, token: str, options: Mapping[str, str]) -> str:
        """Submit a block whose folder is written; return its id. Raises: Unreachable, Refused, UsageError."""
        folder = self.folder(token)
        script = folder.path / "block.sh"
        profile = self.profile.for_block(options)
        script.write_text(commands.batch_script(profile, "queue_runner.remote", str(folder.path)))
        words = ["sbatch", *commands.resources(profile), *commands.OURS, "--parsable"]
        words += [f"--job-name={commands.PREFIX}{token}", "--open-mode=append"]
        words += [f"--output={folder.log}", f"--chdir={folder.path}"]
        try:
            answer = commands.call(profile, [*words, str(script)])
        finally:
            self._newest = None  # the last answer of squeue does not have this block
        return answer.strip().partition(";")[0]

    def look(self, token: str) -> Seen:
        """Return the state of a block, found by its token: one squeue, which may hang, answers for all. Raises:
        Unreachable."""
        patience_s = 0.0
        if self._newest is None or (self._newest.done() and time.monotonic() >= self._due):
            self._newest, patience_s = Future(), _PATIENCE_S
            threading.Thread(target=self._ask, args=[self._newest], daemon=True).start()
        try:
            return self._newest.result(patience_s).get(token, Seen("gone", "forgotten"))
        except TimeoutError:
            raise Unreachable("squeue does not answer") from None
        except Exception as error:
            raise error.with_traceback(None) from None  # else it grows by a frame each time

    def _ask(self, answer: Future[dict[str, Seen]]) -> None:
        try:
            store = partial(answer.set_result, commands.blocks(self.profile))
        except Exception as error:
            store = partial(answer.set_exception, error)
        self._due = time.monotonic() + self.profile.poll_s  # first: squeue may take longer than that
        store()

    def ending(self, token: str, *, signalled: bool) -> Ending | None:
        """Return how Slurm ended a block; None before that. Raises: Unreachable."""
        block = self.look(token)
        fence = read_struct(self.folder(token).fence, FenceHolder)
        job = block.job or (fence and fence.job)
        if block.state != "gone":
            return None
        return ending_of(self.kind, commands.end_of(self.profile, job, signalled=signalled) if job else block.words)

    def end(self, token: str, *, hard: bool) -> None:
        """Ask the cluster to end a block: SIGTERM to its supervisor, or (hard) everything. Raises: Unreachable."""
        job = self.look(token).job
        if job:
            how = () if hard else ("--batch", "--signal=TERM")
            commands.call(self.profile, ["scancel", *how, job])
