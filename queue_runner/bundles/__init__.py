"""Bundles: the results of whole submissions as one file, for another machine (docs/data.md).

`collect` reads a queue, without what is nobody's business; `parts`, `question` and `fingerprint` say what a bundle may
hold; `scratch` is the database in which both sides compute summary, taints and report from the points alone; `file` is
the format; `merge` stores, and `identity` says what no later bundle may change.
"""

from queue_runner.extensions import AddedOption, Extension

EXTENSION = Extension(
    options=(
        AddedOption(
            "export",
            "--bundle",
            "GROUP",
            "Write a whole submission to standard output, for mpsq import on another machine. Repeatable.",
            "queue_runner.bundles.bundle_option:write_bundle",
            multiple=True,
        ),
    ),
    importer="queue_runner.bundles.import_bundles",
)
