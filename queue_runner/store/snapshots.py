"""The code that jobs run: its snapshots, and whether the whole tree of each is stored."""

from __future__ import annotations

import json
import time

from sqlalchemy import Connection, update
from sqlalchemy.dialects.sqlite import insert as upsert

from queue_runner.source.snapshot import Snapshot
from queue_runner.store import schema


def save(connection: Connection, taken: Snapshot) -> None:
    """Store a snapshot; the same content is stored once."""
    revision = taken.revision
    connection.execute(
        upsert(schema.snapshots)
        .values(
            hash=taken.hash,
            kind=taken.kind,
            created_at=time.time(),
            git_commit=(revision.commit or None) if revision else None,
            git_branch=revision.branch if revision else None,
            git_dirty=revision.dirty if revision else None,
            diff=revision.diff if revision else None,
            tree_hash=taken.tree_hash,
            copied=taken.copied,
            left_out_json=json.dumps(dict(taken.left_out)) if taken.left_out else None,
        )
        .on_conflict_do_nothing()
    )


def mark_copied(connection: Connection, digest: str) -> None:
    """Record that the whole tree of a snapshot is now stored."""
    connection.execute(update(schema.snapshots).where(schema.snapshots.c.hash == digest).values(copied=1))
