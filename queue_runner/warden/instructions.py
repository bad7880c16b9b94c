"""The worker's instructions to the warden: spec.json, and the words and variables kept out of it (secrets.json)."""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing, or dataclasses, would add a quarter to the start time
if TYPE_CHECKING:
    from typing import Any

NEEDED = {"run", "tag", "argv", "cwd", "env", "stdout", "stderr", "events", "boot_id", "wake", "grace_s"}
NEEDED |= {"timeout_s", "output_limit_bytes", "min_free_bytes", "allow_daemons"}

FDS_AT_ONCE, FDS_WORD = 64, b"."
"""A request for a warden begins with messages of so many descriptors each (the kernel takes 253) and this word."""
REQUEST_END = b"\0"
"""Then come the number of descriptors, a blank, the path of the run's folder, and this."""
NOTHING_LEFT, SOMETHING_LEFT = 0, 3
"""Exit codes of a warden that has stored the end of its run: whether a process of the run is left."""


class PreparationOrder:
    """How the program is run as a preparation: `by` these words before its own, with further variables `env`."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.by: list[str] = values.get("by", [])
        self.env: dict[str, str] = values.get("env", {})
        self.timeout_s: float | None = values.get("timeout_s")


class RunInstructions:
    """A run to supervise and its limits; worker/launch.py writes them."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.run: str = values["run"]
        self.tag: str = values["tag"]
        self.argv: list[str] = values["argv"]
        self.cwd: str = values["cwd"]
        self.env: dict[str, str] = values["env"]
        self.prepares: bool = bool(values.get("prepare"))
        self.preparation = PreparationOrder(values.get("prepare") or {})
        self.stdout: str = values["stdout"]
        self.stderr: str = values["stderr"]
        self.events: str = values["events"]
        self.boot_id: str = values["boot_id"]
        self.wake: str = values["wake"]
        self.lane_shares: bool = values.get("lane_shares", False)  # whether the last of its locks is shared
        self.cores: list[int] = values.get("cores") or []
        self.grace_s: dict[str, float] = values["grace_s"]  # after SIGINT and SIGTERM
        self.timeout_s: float | None = values["timeout_s"]
        self.stall_s: dict[str, float] = values.get("stall_s") or {}  # by phase
        self.output_limit_bytes: int = values["output_limit_bytes"]
        self.min_free_bytes: int = values["min_free_bytes"]
        self.allow_daemons: bool = values["allow_daemons"]
        self.lock: int | None = None  # the descriptor of warden.lock, which the trainer must not hold

    def changed(self, **changes: Any) -> RunInstructions:
        """Return a copy with these fields changed."""
        copy = RunInstructions.__new__(RunInstructions)
        vars(copy).update(vars(self), **changes)
        return copy
