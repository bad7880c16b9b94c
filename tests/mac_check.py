"""`python -m tests.mac_check`: run on a Mac what mpsq could only be tried on stand-ins for, and print what held.

    python -m tests.mac_check                    all but the service; needs torch
    python -m tests.mac_check --only system      without torch: a few seconds
    python -m tests.mac_check --service          install a service of its own name as well, and take it away again

Nothing of the user's queue is touched: home and locks are folders of its own. What each check saw in full is written to
mac-check.txt, which is worth sending with a report of what did not hold. Exit code 1 if anything did not.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

HELD, NOT, UNKNOWN = "held", "NOT", "unknown"
MOST_S = 570.0
"""The checks take less than ten minutes: later ones do not start, and no command runs longer."""
_deadline = math.inf


class Unknown(Exception):
    """It could not be tried here; the text says why."""


@dataclass(frozen=True)
class Check:
    """`run` returns what was seen, raises AssertionError (what was seen instead) or Unknown."""

    group: str
    name: str
    run: Callable[[], object]


@dataclass(frozen=True)
class Result:
    check: Check
    word: str
    seen: str


def remaining_s() -> float:
    """Return the seconds until MOST_S is over."""
    return max(0.0, _deadline - time.monotonic())


def examine(check: Check) -> Result:
    """Run one check; whatever it raises is a result."""
    if not remaining_s():
        return Result(check, UNKNOWN, f"not tried within {MOST_S:.0f} s: --match '{check.name}' runs it alone")
    try:
        return Result(check, HELD, str(check.run()))
    except subprocess.TimeoutExpired as error:
        return Result(check, UNKNOWN, str(error))
    except Unknown as error:
        return Result(check, UNKNOWN, str(error))
    except AssertionError as error:
        return Result(check, NOT, str(error) or "something else")
    except Exception:
        return Result(check, NOT, traceback.format_exc())


def line(result: Result, width: int = 120) -> str:
    """The row of a check, its first line of what was seen."""
    text = " ".join((result.seen.strip().splitlines() or [""])[-1 if "Traceback" in result.seen else 0].split())
    row = f"{result.word:<8}{result.check.group:<8}{result.check.name:<48}{text}"
    return row if len(row) <= width else row[: width - 1] + "…"


def run(checks: Iterable[Check], out: Path, show: Callable[[str], None] = print) -> int:
    """Run all checks and print the table. Returns the exit code."""
    global _deadline
    _deadline = time.monotonic() + MOST_S
    results = []
    with out.open("w", encoding="utf-8") as full:
        full.write(f"{platform.platform()}, Python {sys.version}\n")
        for check in checks:
            results.append(examine(check))
            show(line(results[-1]))
            full.write(f"\n== {check.group}: {check.name}: {results[-1].word}\n{results[-1].seen}\n")
            full.flush()
    _deadline = math.inf
    counts = {word: sum(result.word == word for result in results) for word in (HELD, NOT, UNKNOWN)}
    show(", ".join(f"{n} {word}" for word, n in counts.items()) + f"; all that was seen: {out}")
    return 1 if counts[NOT] else 0


def main(argv: Sequence[str] | None = None) -> int:
    from tests import mac_checks, mac_checks_jobs

    parser = argparse.ArgumentParser(prog="python -m tests.mac_check", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", default=[], choices=("system", "torch", "jobs", "queue", "service"))
    parser.add_argument("--match", default="", metavar="WORD", help="only checks with this in their names")
    parser.add_argument("--service", action="store_true", help="install a service of its own name, and take it away")
    parser.add_argument("--device", default="mps", help="mps; another one tries the checks themselves, not a Mac")
    parser.add_argument("--out", type=Path, default=Path("mac-check.txt"))
    options = parser.parse_args(argv)
    groups = options.only or ["system", "torch", "jobs", "queue"]
    if options.service and "service" not in groups:
        groups.append("service")
    with tempfile.TemporaryDirectory(prefix="mpsq-mac-check-") as folder:
        os.environ["MPSQ_HOME"], os.environ["MPSQ_LOCKS"] = f"{folder}/home", f"{folder}/locks"
        checks = [*mac_checks.system(), *mac_checks_jobs.of_torch(options.device)]
        checks += [*mac_checks_jobs.of_queue(options.device), *mac_checks_jobs.of_jobs(options.device)]
        checks += mac_checks_jobs.of_service()
        return run([check for check in checks if check.group in groups and options.match in check.name], options.out)


if __name__ == "__main__":
    sys.exit(main())
