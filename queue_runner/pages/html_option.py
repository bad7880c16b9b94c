"""`mpsq report --html FILE`."""

from __future__ import annotations

from pathlib import Path

from queue_runner import units
from queue_runner.cli.common import say
from queue_runner.cli.report import ReportRequest
from queue_runner.errors import UsageError


def write_page(path: str, request: ReportRequest) -> None:
    """Write the report as one page for a browser. Raises: UsageError, and OSError when it cannot be written."""
    if request.format != "table":
        raise UsageError("--html cannot be combined with --format or --json", "run the command once for each")
    from queue_runner.pages import report_page
    from queue_runner.store.read import reading

    file = Path(path)
    with reading(request.layout.db) as connection:
        page = report_page.build(
            request.name, request.layout, connection, request.options, command=request.command_line
        )
    report_page.write(file, page)
    say(f"wrote {file} ({units.size(file.stat().st_size)}): one file, to open in any browser")
