"""Detection of network file systems, since SQLite's WAL and flock both need one that is local to this machine; and the
opening of files that a job may have written, and reading of small ones of the system."""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
from pathlib import Path

_NETWORK = re.compile(
    r"nfs[34]?|cifs|smb[23]|smbfs|afpfs|webdav|ftp|afs|ncpfs|ceph|lustre|gpfs|beegfs|glusterfs|pvfs2|orangefs|ocfs2|gfs2"
)
_NETWORK_FUSE = re.compile(
    r"fuse\.(sshfs|glusterfs|ceph\S*|s3fs|rclone|gcsfuse|goofys|davfs\S*|curlftpfs|smb\S*|juicefs|blobfuse\S*|mount-s3)"
    r"|macfuse|osxfuse"
)
_OCTAL = re.compile(r"\\([0-7]{3})")
_MAC_MOUNT = re.compile(r"^.* on (?P<point>/.*) \((?P<kind>[^,)]+)[^)]*\)$")


def network_kind(path: Path, mounts: str | None = None, *, platform: str = sys.platform) -> str | None:
    """Return the name of the network file system of `path` (which may not exist yet); None for a local one.

    `mounts` is the text of /proc/self/mountinfo (Linux) or of `mount` (macOS), read when not given.
    """
    if mounts is None:
        mounts = _read_mounts(platform)
    place = str(nearest_existing(path).resolve())
    best: tuple[int, str, str] | None = None
    for point, kind, options in (_mac_mounts if platform == "darwin" else _linux_mounts)(mounts):
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        if inside and (best is None or len(point) >= best[0]):  # a later mount on the same point covers the earlier
            best = (len(point), kind, options)
    if best is None:
        return None
    _, kind, options = best
    # gVisor serves a container's own disk over 9p, marked by these two descriptors.
    if _NETWORK.fullmatch(kind) or _NETWORK_FUSE.fullmatch(kind) or (kind == "9p" and "rfdno=" not in options):
        return kind
    return None


def read_text(path: Path) -> str:
    """Return the text of a file such as those in /proc and /sys; "" when it cannot be read."""
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def open_regular(path: Path, mode: int = os.O_RDONLY) -> int:
    """Return the descriptor of a regular file. Raises: OSError, also for a link, a FIFO or a device, which could lead
    elsewhere, block or never end."""
    descriptor = os.open(path, mode | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return descriptor


def nearest_existing(path: Path) -> Path:
    """Return `path` itself, or its nearest ancestor that exists."""
    for place in (path, *path.parents):
        if os.path.lexists(place):
            return place
    return Path("/")


def _read_mounts(platform: str) -> str:
    if platform == "darwin":
        from queue_runner.host.command import ask

        return ask(["/sbin/mount"]) or ""
    try:
        return Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")
    except OSError:
        return ""


def _linux_mounts(text: str) -> list[tuple[str, str, str]]:
    """Parse proc_pid_mountinfo(5) to (mount point, type, options): the type follows a lone dash."""
    problems = []
    for line in text.splitlines():
        front, _, back = line.partition(" - ")
        fields, rest = front.split(), back.split(" ", 2)
        if len(fields) >= 5 and rest[0]:
            point = _OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4])
            problems.append((point, rest[0], rest[2] if len(rest) > 2 else ""))
    return problems


def _mac_mounts(text: str) -> list[tuple[str, str, str]]:
    """Parse lines such as `//me@nas/share on /Volumes/share (smbfs, nodev, nosuid, mounted by me)`."""
    matches = (_MAC_MOUNT.match(line) for line in text.splitlines())
    return [(match["point"], match["kind"].strip(), "") for match in matches if match]
