"""The code as it was at submit: jobs/ copied once per content, and the repository's commit and patch."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from queue_runner.vcs import Revision


@dataclass(frozen=True)
class Snapshot:
    """What is stored of the code. `kind` is workload (a folder under snapshots/) or tree (a revision only)."""

    hash: str
    kind: str
    revision: Revision | None


def of_workloads(jobs: Path, store: Path, revision: Revision | None) -> Snapshot:
    """Copy the workloads' source to `store`/<sha256>, unless that content is there already.

    Raises: OSError when the disk refuses; nothing half-copied is ever seen under its hash.
    """
    files = sorted(path for path in jobs.rglob("*.py") if "__pycache__" not in path.parts)
    digest = hashlib.sha256()
    contents = {}
    for path in files:
        name = path.relative_to(jobs).as_posix()
        contents[name] = path.read_bytes()
        digest.update(f"{name}\0{len(contents[name])}\0".encode() + contents[name])
    target = store / digest.hexdigest()
    if not target.is_dir():
        store.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=store))
        try:
            for name, content in contents.items():
                copy = partial / name
                copy.parent.mkdir(parents=True, exist_ok=True)
                with copy.open("wb") as stream:
                    stream.write(content)
                    os.fsync(stream.fileno())
            partial.rename(target)
        except OSError:
            if not target.is_dir():  # else another submitter copied the same content first
                raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return Snapshot(digest.hexdigest(), "workload", revision)


def of_tree(revision: Revision | None) -> Snapshot | None:
    """The revision in which a command is submitted; None outside of a repository."""
    if revision is None:
        return None
    content = f"{revision.commit}\0{revision.diff if revision.diff is not None else 'too large'}"
    return Snapshot(hashlib.sha256(content.encode()).hexdigest(), "tree", revision)
