"""The result of a check of mpsq doctor: a finding, its verdict, and its fix."""

from __future__ import annotations

from msgspec import Struct


class Check(Struct, frozen=True):
    """A finding. `verdict` is ok, warn or fail; `fix` is the remedy, shown unless the verdict is ok."""

    name: str
    verdict: str
    finding: str
    fix: str = ""


def warn_if(wrong: bool, name: str, finding: str, fix: str) -> Check:
    """Return a warning with its fix if `wrong`, else an ok finding."""
    return Check(name, "warn" if wrong else "ok", finding, fix)
