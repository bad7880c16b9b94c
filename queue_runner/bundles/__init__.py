"""Bundles: the results of whole submissions as one file, for another machine (docs/data.md).

`collect` reads a queue and `clean` hides its secrets. `parts`, `question` and `fingerprint_facts` check every value.
Both sides compute summaries, taints and the report from the points alone, in the database of `scratch`. `file` is the
format. `merge` stores; `identity` hashes the content that no later bundle may change.
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
