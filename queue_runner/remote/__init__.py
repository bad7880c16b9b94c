"""Blocks on clusters and boxes: what is sent, how it is watched, and what comes back (docs/remote.md)."""

from queue_runner.extensions import Extension

EXTENSION = Extension(
    worker_part="queue_runner.remote.dispatcher:Dispatcher",
    target_checks="queue_runner.remote.targets:checks",
)
