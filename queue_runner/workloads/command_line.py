"""Command line of a trainer, from its JobSpec, as run by the warden and printed by --dry-run and show."""

from __future__ import annotations

from pathlib import Path

from queue_runner.errors import MpsqError
from queue_runner.spec import JobSpec, Value
from queue_runner.workloads import manifest


def build_argv(spec: JobSpec, snapshots: Path) -> list[str]:
    """Return the snapshotted workload with its options, or the command as submitted, with {cwd} as its folder."""
    if spec.kind != "workload":
        return [word.replace("{cwd}", spec.cwd) for word in spec.argv]
    script = snapshots / (spec.snapshot or "<snapshot>") / str(spec.script)
    compiles = spec.compile_mode or ("on" if spec.compile else "off")
    options = ["--device", str(spec.device), "--compile", compiles, "--dtype", str(spec.dtype)]
    if spec.gpus > 1:
        options += ["--gpus", str(spec.gpus)]
    if spec.config:
        options += ["--config", spec.config]
    options += ["--seed", str(spec.seed)]
    for key, value in spec.params.items():
        options += ["--set", f"{key}={as_text(value)}"]
    return [spec.python, str(script), *options]


def prepares(spec: JobSpec, snapshots: Path) -> bool:
    """Return whether the snapshotted workload is to be started once before its run, to prepare it: whether its own
    literal says so, since a snapshot of an older version would train."""
    try:
        workload = manifest.read(snapshots / (spec.snapshot or "") / str(spec.script))
    except MpsqError:
        return False
    return workload is not None and workload.prepares


def as_text(value: Value) -> str:
    """Return a value of a setting as it is written on a command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)
