"""What every part of doctor gives: one finding, its verdict, and what mends it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """One finding. `verdict` is ok, warn or fail; `fix` says what mends it, and is shown unless it is ok."""

    name: str
    verdict: str
    finding: str
    fix: str = ""


def warn_if(wrong: bool, name: str, finding: str, fix: str) -> Check:
    """A warning with its remedy, or that all is well."""
    return Check(name, "warn" if wrong else "ok", finding, fix)
