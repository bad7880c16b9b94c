"""`mpsq report --plot FILE`."""

from __future__ import annotations

from pathlib import Path
from shutil import get_terminal_size

from queue_runner import reports, tables
from queue_runner.cli.common import print_json, say
from queue_runner.cli.report import ReportRequest
from queue_runner.errors import UsageError


def write_plot(path: str, request: ReportRequest) -> None:
    """Draw the rows of the report. With --json, print its data instead of drawing on the terminal.

    Raises: UsageError, and OSError when the file cannot be written.
    """
    if request.submit or request.format not in ("table", "json") or request.name != reports.DEFAULT:
        raise UsageError(
            "--plot draws the default report and cannot be combined with another report, --html, --format or --submit",
            "mpsq report g4 --plot g4.png",
        )
    from queue_runner.export._plot import picture, plot_data, terminal
    from queue_runner.store.read import reading

    file = None if path == "-" else Path(path)
    if file is not None:
        picture.check(file)
    with reading(request.layout.db) as connection:
        drawing = plot_data.read(connection, request.options)
    if file is not None:
        picture.write(drawing, file)
    notes = [*drawing.notes, *plot_data.without_numbers(drawing)]
    if request.format == "json":
        print_json(
            "mpsq.plot/1",
            **plot_data.summary(drawing),
            path=None if file is None else str(file.absolute()),
            notes=notes,
        )
        return
    if file is None:
        print(terminal.draw(drawing, get_terminal_size().columns, colour=tables.in_colour()))
    else:
        say(f"wrote {file}: {drawing.size}")
    for note in notes:
        say(note)
