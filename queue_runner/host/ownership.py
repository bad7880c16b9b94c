"""Ownership of the files that a worker obeys: settings, database, code and runs, which only this user and root may
write. docs/security.md lists the checks and their reasons.

Files of our own are tightened; those of others are refused. It takes a few system calls, since every command does it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from queue_runner.errors import OwnershipError
from queue_runner.paths import Layout

_WRITE = stat.S_IWGRP | stat.S_IWOTH
_PRIVATE = stat.S_IRWXG | stat.S_IRWXO
_OTHERWISE = "or set MPSQ_HOME to a folder of your own"


def secure(layout: Layout) -> None:
    """Take write permission on the queue's files from group and others, as far as the files are this user's, and every
    permission on the folders of results, logs, backups and secrets.

    Raises: OwnershipError for a file that another user than root owns or may still write.
    """
    _secure(layout.home)
    code = (layout.snapshots, layout.cache, layout.envs, layout.workloads)
    database = (layout.db.with_name(layout.db.name + end) for end in ("", "-wal", "-shm"))
    for path in (layout.config, *database, *code):
        _secure(path)
    for path in (layout.runs, layout.logs, layout.backups, layout.secrets):
        _secure(path, _PRIVATE)
    try:
        workloads = list(layout.workloads.iterdir())
    except OSError:
        return  # there are none
    for path in workloads:
        _secure(path)


def secure_runs(layout: Layout) -> None:
    """Do the same with every run's folder, which may date from a time when others could write there: a resumed job
    loads its files.

    Raises: OwnershipError as above.
    """
    try:
        entries = os.scandir(layout.runs)
    except OSError:
        return
    with entries:
        for entry in entries:
            _secure(Path(entry.path), _PRIVATE)


def replaceable(home: Path) -> Path | None:
    """Return the folder, of those above the home, in which everybody may rename what others own; None if there is
    none."""
    for folder in home.parents:
        try:
            mode = folder.stat().st_mode
        except OSError:
            continue
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return folder
    return None


def _secure(path: Path, taken: int = _WRITE) -> None:
    try:
        status = path.lstat()
        _refuse_owner(path, status)
        if is_link := stat.S_ISLNK(status.st_mode):
            status = path.stat()
            _refuse_owner(path, status)
    except OSError:
        return  # not there yet, or reported by the command that needs it
    if status.st_mode & taken:
        if status.st_uid == os.geteuid() and not is_link:
            status = _tightened(path, status, taken)
        _refuse_writers(path, status)


def _tightened(path: Path, status: os.stat_result, taken: int) -> os.stat_result:
    try:
        path.chmod(stat.S_IMODE(status.st_mode) & ~taken)
        return path.stat()
    except OSError:
        return status  # a disk that is read-only, or keeps no modes


def _refuse_owner(path: Path, status: os.stat_result) -> None:
    if status.st_uid not in (0, os.geteuid()):
        raise OwnershipError(
            f"user {status.st_uid} owns {path} and could run commands as you",
            f"if you trust its content, take it over: sudo chown -hR {os.geteuid()} {path}; {_OTHERWISE}",
        )


def _refuse_writers(path: Path, status: os.stat_result) -> None:
    if status.st_mode & stat.S_IWOTH:
        who, remedy = "everybody", "o-w"
    elif status.st_mode & stat.S_IWGRP and _has_others(status.st_gid):
        who, remedy = f"group {status.st_gid}", "g-w"
    else:
        return
    raise OwnershipError(
        f"{who} may write {path} and could run commands as you", f"sudo chmod {remedy} {path}, {_OTHERWISE}"
    )


def _has_others(group: int) -> bool:
    """Return whether a group has members beside this user and root; an unknown group may have."""
    import grp
    import pwd

    try:
        names = grp.getgrgid(group).gr_mem
    except KeyError:
        return True
    members = [user for user in pwd.getpwall() if user.pw_gid == group or user.pw_name in names]
    unknown = set(names) - {user.pw_name for user in members}
    return bool(unknown) or any(user.pw_uid not in (0, os.geteuid()) for user in members)
