"""`mpsq report --plot FILE`."""

from __future__ import annotations

from pathlib import Path

from queue_runner import reports
from queue_runner.cli.common import say
from queue_runner.cli.report import ReportRequest
from queue_runner.errors import UsageError


def write_plot(path: str, request: ReportRequest) -> None:
    """Draw the rows of the report.

    Raises: UsageError, and OSError when the file cannot be written.
    """
    if request.submit or request.format != "table" or request.name != reports.DEFAULT:
        raise UsageError(
            "--plot draws the default report and cannot be combined with another report or format, or --submit",
            "mpsq report g4 --plot g4.png",
        )
    from queue_runner.export import picture, plot_data
    from queue_runner.store.read import reading

    file = Path(path)
    picture.check(file)
    with reading(request.layout.db) as connection:
        drawing = plot_data.read(connection, request.options)
    picture.write(drawing, file)
    notes = [*drawing.notes, *plot_data.without_numbers(drawing)]
    say(f"wrote {file}: {drawing.size}")
    for note in notes:
        say(note)
