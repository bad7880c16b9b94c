"""Blocks of runs on clusters and boxes: sent, followed, and stored here as they come back (docs/remote.md)."""

from queue_runner.extensions import AddedCommand, Extension

EXTENSION = Extension(
    commands={"on": AddedCommand("Set up", "machines for submit --on", "queue_runner.remote.on_command")},
    worker_part="queue_runner.remote.dispatcher:Dispatcher",
    placement="queue_runner.remote.placement",
    target_checks="queue_runner.remote.targets:checks",
)
