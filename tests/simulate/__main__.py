"""Run the simulations in full and put their tables into docs/simulations.md, between the markers of their names."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.simulate import bisections, contests, judging, load, look_tables, runs, trends

TABLES: Mapping[str, Callable[[], str]] = {
    **look_tables.TABLES,
    **judging.TABLES,
    **contests.TABLES,
    **bisections.TABLES,
    **trends.TABLES,
    "runs": runs.table,
    "load": load.table,
}
"""By the name in the markers, `<!-- simulate:NAME -->` to `<!-- simulate:end -->`: what returns the Markdown."""
PAGE = Path(__file__).parents[2] / "docs" / "simulations.md"


def replaced(page: str, name: str, table: str) -> str:
    """Return the page with the table between its markers. Raises: ValueError if they are not there once."""
    begin, end = f"<!-- simulate:{name} -->", "<!-- simulate:end -->"
    text, n = re.subn(
        f"({re.escape(begin)}\n).*?({re.escape(end)})", lambda found: found[1] + table + found[2], page, flags=re.DOTALL
    )
    if n != 1:
        raise ValueError(f"{PAGE.name} has the markers {begin} {n} times")
    return text


def main(names: list[str]) -> None:
    for name in names or TABLES:
        table = TABLES[name]().strip() + "\n"
        print(table)
        PAGE.write_text(replaced(PAGE.read_text(), name, table))


if __name__ == "__main__":
    main(sys.argv[1:])
