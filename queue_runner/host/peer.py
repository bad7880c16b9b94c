"""Whose process is at the other end of a connection over loopback: file modes do not protect a port of this machine."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

Address = tuple[str, int]

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LOCAL, _REMOTE, _UID = 1, 2, 7
"""Columns of the tables (Documentation/networking/proc_net_tcp.rst of Linux)."""
_MAPPED = bytes(10) + b"\xff\xff"
"""The beginning of an IPv4 address written as one of IPv6 (RFC 4291, 2.5.5.2)."""


def user_of(client: Address, server: Address) -> int | None:
    """Return the user id of the process that opened the connection from `client` to `server`, both of this machine.

    None where the kernel does not tell: on macOS, and for a connection that has been closed.
    """
    ends = [(_hex(*one), _hex(*other)) for one, other in ((client, server),)]
    ends += [(_hex(*one, mapped=True), _hex(*other, mapped=True)) for one, other in ((client, server),)]
    for table in _TABLES:
        try:
            lines = table.read_text("ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if len(words) > _UID and (words[_LOCAL], words[_REMOTE]) in ends:
                return int(words[_UID])
    return None


def _hex(host: str, port: int, *, mapped: bool = False) -> str:
    """Return an address as the kernel prints it: 32-bit words in the machine's order of bytes."""
    packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    if mapped and len(packed) == 4:
        packed = _MAPPED + packed
    words = (int.from_bytes(packed[at : at + 4], sys.byteorder) for at in range(0, len(packed), 4))
    return f"{''.join(f'{word:08X}' for word in words)}:{port:04X}"
