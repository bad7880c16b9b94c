"""Ten planted bugs: small replacements in the source of the product, each of which breaks one promise.

A replacement whose text is not there exactly once is an error: whoever changes that code changes this page, too.
"""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Replacement:
    """A text of a module and what stands there instead."""

    module: str
    before: str
    after: str


@dataclass(frozen=True)
class Bug:
    """A planted bug. The `world` in which it shows is that of queues or of blocks."""

    name: str
    replacements: tuple[Replacement, ...]
    world: str = "queues"


FIRST = {
    **{"block-order": 16, "lock-order": 41, "lost-wake-up": 13, "no-sweep": 319, "rerun": 117, "restore-link": 164},
    **{"rmtree": 402, "second-ingest": 185},
}
"""Seeds with which `make test` begins its search; `make faults` begins with the first one."""


class NotThere(Exception):
    """The text to be replaced is not in the module exactly once."""


BUGS: dict[str, Bug] = {
    bug.name: bug
    for bug in (
        Bug(
            "lock-order",  # the records are read before the lane is taken: they may be older than the free lane
            (
                Replacement(
                    "queue_runner.worker.read_now",
                    "            exit_ = exit_ or folder.exit()\n",
                    "",
                ),
            ),
        ),
        Bug(
            "no-sweep",
            (
                Replacement(
                    "queue_runner.worker.supervisor",
                    "        if spare_daemons and run.claimed.spec.allow_daemons:\n",
                    "        if True:\n",
                ),
            ),
        ),
        Bug(
            "second-ingest",  # how far a file was read is stored in a transaction of its own
            (
                Replacement(
                    "queue_runner.ingest.ingest",
                    "            results.save_events(connection, self._run_id, chunk.events)\n",
                    "            results.save_events(connection, self._run_id, chunk.events)\n"
                    "        with writing(self._engine) as connection:\n",
                ),
            ),
        ),
        Bug(
            "rerun",  # a run that has ended is queued again if its fence is not read
            (
                Replacement(
                    "queue_runner.worker.supervisor",
                    "        if run.exit is None and run.fence is None and not run.was_started:\n",
                    "        if run.exit is None:\n",
                ),
            ),
        ),
        Bug(
            "rmtree",
            (Replacement("queue_runner.worker.launch", "    if folder.has_run():\n", "    if False:\n"),),
        ),
        Bug(
            "lost-fence",
            (
                Replacement(
                    "queue_runner.warden.supervise",
                    '            self.publish_started()\n            reach("warden.started")\n',
                    "",
                ),
                Replacement(
                    "queue_runner.warden.supervise",
                    '                self.begin(lane)\n                reach("warden.spawned")\n',
                    "                self.begin(lane)\n                self.publish_started()\n",
                ),
            ),
        ),
        Bug(
            "lost-wake-up",  # the worker is rung before there is something to see
            (
                Replacement(
                    "queue_runner.submit.plan",
                    '        failpoints.reach("submit.planned")\n',
                    "        wakeup.ring(layout.fifo)\n",
                ),
                Replacement(
                    "queue_runner.submit.plan",
                    "    wakeup.ring(layout.fifo)\n    shared = ",
                    "    shared = ",
                ),
            ),
        ),
        Bug(
            "restore-link",  # the old database is kept by a link, and its log moved, whatever a reader has open
            (
                Replacement(
                    "queue_runner.store.restore",
                    "        if exists and not write_back(layout.db):\n",
                    "        if exists and not write_back(layout.db) and False:\n",
                ),
            ),
        ),
        Bug(
            "block-order",  # a block is sent before its runs are marked
            (
                Replacement(
                    "queue_runner.remote.dispatcher",
                    "                with writing(self._engine) as connection:\n"
                    "                    if block_store.mark_sent(connection, ids, token) != len(ids):\n",
                    "                target.send(token, options)\n"
                    "                with writing(self._engine) as connection:\n"
                    "                    if block_store.mark_sent(connection, ids, token) != len(ids):\n",
                ),
                Replacement(
                    "queue_runner.remote.dispatcher",
                    "            job = target.send(token, options)\n",
                    "            job = token\n",
                ),
            ),
            "blocks",
        ),
        Bug(
            "no-fsync",
            (
                Replacement(
                    "queue_runner.warden.files",
                    "                os.ftruncate(fd, len(text))\n                sync(fd)\n",
                    "                os.ftruncate(fd, len(text))\n",
                ),
            ),
        ),
    )
}


class _Loader(importlib.machinery.SourceFileLoader):
    replacements: Sequence[Replacement] = ()

    def get_code(self, fullname: str) -> Any:
        source = self.get_source(fullname) or ""
        return compile(changed(source, self.replacements), self.path, "exec", dont_inherit=True)


def changed(source: str, replacements: Sequence[Replacement]) -> str:
    """Return the source of a module with these replacements. Raises: NotThere."""
    for replacement in replacements:
        if (n := source.count(replacement.before)) != 1:
            raise NotThere(f"{replacement.module} has {n} times:\n{replacement.before}")
        source = source.replace(replacement.before, replacement.after)
    return source


class _Finder(MetaPathFinder):
    def __init__(self, bug: Bug) -> None:
        self._bug = bug

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        replacements = [each for each in self._bug.replacements if each.module == fullname]
        if not replacements:
            return None
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(fullname, path, target)) is not None:
                assert spec.origin is not None
                loader = _Loader(fullname, spec.origin)
                loader.replacements = replacements
                spec.loader = loader
                return spec
        return None


def plant(name: str) -> None:
    """Let the modules of a bug be imported with it. They must not be imported yet. Raises: KeyError, NotThere."""
    bug = BUGS[name]
    if loaded := [each.module for each in bug.replacements if each.module in sys.modules]:
        raise RuntimeError(f"{', '.join(loaded)} is imported already")
    sys.meta_path.insert(0, _Finder(bug))
