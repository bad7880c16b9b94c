"""Stored runs as files of other tools and as plots (docs/data.md)."""

from queue_runner.extensions import AddedCommand, AddedOption, Extension

EXTENSION = Extension(
    commands={"export": AddedCommand("Results", "write files for other tools", "queue_runner.export.export_command")},
    options=(
        AddedOption(
            "report",
            "--plot",
            "FILE",
            "Draw the runs, their speedups, time and loss into a .png or .svg file.",
            "queue_runner.export.picture:write_plot",
        ),
    ),
)
