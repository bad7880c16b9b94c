"""Bundles: the results of whole submissions as one file, for another machine (docs/data.md).

`rows` has the tables and their values. `collect` writes a bundle, and `clean` hides its secrets. `reader` opens one in
a process of its own, `reading` checks it, and `merge` stores its runs as new ones. `run_result` is the way of one run
from the machine that ran it to the queue that sent it. `bundle_files` is what the command line calls.
"""

from queue_runner.extensions import AddedOption, Extension

EXTENSION = Extension(
    options=(
        AddedOption(
            "export",
            "--bundle",
            "GROUP",
            "Write a whole submission to standard output, for mpsq import on another machine. Repeatable.",
            "queue_runner.bundles.bundle_files:write_bundle",
            multiple=True,
        ),
    ),
    importer="queue_runner.bundles.bundle_files",
)
