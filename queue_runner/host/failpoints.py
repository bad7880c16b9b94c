"""Named points at which a test can stop this process and kill it there (docs/supervision.md)."""

from queue_runner.warden.files import reach

__all__ = ["reach"]
