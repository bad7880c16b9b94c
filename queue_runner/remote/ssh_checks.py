"""Doctor's checks of a box: the login, mpsq there, and the disk of its blocks."""

from __future__ import annotations

import time
from collections.abc import Iterator

from queue_runner import __version__, units
from queue_runner.checks import Check
from queue_runner.host.home import MIN_FREE_BYTES
from queue_runner.remote.answers import Refused, Unreachable
from queue_runner.remote.link import Link

_NO_BLOCK = "0" * 32


def of_box(name: str, link: Link) -> Iterator[Check]:
    """Run all checks of the box that a link leads to; `name` is that of the target, for the remedies."""
    profile = name.removeprefix("ssh:")
    begin = time.monotonic()
    try:
        with link.call("hello", _NO_BLOCK) as answered:
            told = answered.told
    except Unreachable as error:
        fix = f"see that `ssh -o BatchMode=yes {link.host} true` works; blocks that were sent go on meanwhile"
        yield Check("login", "fail", f"{link.host}: {error}", fix)
        return
    except Refused as error:
        yield Check("login", "ok", f"{link.host} lets you in")
        fix = f"mpsq config set on.{profile}.kind ssh, and on.{profile}.python PATH: one that has mpsq {__version__}"
        yield Check("mpsq", "fail", str(error), fix)
        return
    took = units.duration(time.monotonic() - begin)
    yield Check("login", "ok", f"{link.host} lets you in and answered in {took}")
    yield Check("mpsq", "ok", f"{__version__} in {link.python}, Python {told.get('python')}")
    yield _folder(profile, told)


def _folder(profile: str, told: dict[str, object]) -> Check:
    fix = f"mpsq config set on.{profile}.folder PATH: a folder of yours on a local disk there"
    place, free = told.get("place"), told.get("free_bytes")
    if told.get("kind"):
        return Check("folder", "fail", f"{place} is on a network file system ({told['kind']})", fix)
    if told.get("writable") is not True:
        return Check("folder", "fail", f"{place} cannot be written", fix)
    if not isinstance(free, int) or free < MIN_FREE_BYTES:
        return Check("folder", "fail", f"{place} is full", f"free some space there, or {fix}")
    return Check("folder", "ok", f"{place} is local, {units.size(free)} are free")
