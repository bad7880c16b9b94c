"""The queue from Python and notebooks: `from mpsq import Client`."""

from queue_runner.client import Client, Group, Rows, SubmitOptions
from queue_runner.errors import MpsqError, UsageError, WaitedJobFailed, WaitTimeout

__all__ = ["Client", "Group", "MpsqError", "Rows", "SubmitOptions", "UsageError", "WaitTimeout", "WaitedJobFailed"]
