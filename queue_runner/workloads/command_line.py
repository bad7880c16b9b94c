"""Command line of a trainer, from its JobSpec, as run by the warden and printed by --dry-run and show."""

from __future__ import annotations

from pathlib import Path

from queue_runner.spec import JobSpec, Value


def build_argv(spec: JobSpec, snapshots: Path) -> list[str]:
    """Return the snapshotted workload with its options, or the command as submitted, with {cwd} as its folder."""
    if spec.kind != "workload":
        return [word.replace("{cwd}", spec.cwd) for word in spec.argv]
    script = snapshots / (spec.snapshot or "<snapshot>") / str(spec.script)
    options = ["--device", str(spec.device), "--compile", "on" if spec.compile else "off", "--dtype", str(spec.dtype)]
    if spec.config:
        options += ["--config", spec.config]
    options += ["--seed", str(spec.seed)]
    for key, value in spec.params.items():
        options += ["--set", f"{key}={as_text(value)}"]
    return [spec.python, str(script), *options]


def as_text(value: Value) -> str:
    """Return a value of a setting as it is written on a command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)
