"""Imports go down the floors only, and each third-party package has one owner (DESIGN.md section 5)."""

from __future__ import annotations

import ast
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "queue_runner"

FLOORS = {
    0: {
        "",
        "errors",
        "units",
        "model",
        "spec",
        "events",
        "wire",
        "wire_fields",
        "stats",
        "verdict",
        "hardware",
        "text",
        "sparkline",
        "summarize",
        "phases",
        "when",
        "tree_rules",
        "notify",
        "rarely",
        "keep",
        "mps_options",
        "doctor_check",
        "search",
        "knee",
    },
    1: {
        "paths",
        "config",
        "locks",
        "catalog",
        "workload_file",
        "parsers",
        "warden",
        "host",
        "capture",
        "grid",
        "rundir",
        "snapshot",
        "blobs",
        "tree_copy",
        "tree_scan",
        "tree_store",
        "stop_points",
        "vcs",
        "wake",
        "asking",
        "cells",
        "terms",
        "config_file",
        "cron",
        "warden_tree",
        "warden_files",
        "warden_start",
        "warden_stop",
        "warden_pause",
        "hook_process",
        "discard",
        "venvs",
        "new_workload",
        "variants",
        "probing",
        "launches",
    },
    2: {"store"},
    4: {"daemon"},
    5: {"cli"},
}
"""Every module that is not named here is a use case: floor 3."""

OWNERS = {
    "sqlalchemy": {
        *("store", "supervise", "submit", "schedules", "finish", "ingest", "observe_run", "imports"),
        *("suspend", "resume", "summarize_run", "hooks", "collect", "retry", "find_max"),
    },
    "alembic": {"store"},
    "apscheduler": {"daemon", "cron"},  # cron: its triggers alone, which search the calendar
    "typer": {"cli"},
    "tabulate": {"render"},
    "rich": {"dashboard"},
    "torch": set(),
    "tiktoken": set(),
    "numpy": set(),
}
"""Who may import a package. Use cases that write name SQLAlchemy's Engine and Connection as types, and no more."""


def room(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py") if relative.name != "__init__.py" or len(relative.parts) > 1 else ""


def floor(name: str) -> int:
    return next((number for number, rooms in FLOORS.items() if name in rooms), 3)


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(str(node.module))
            found |= {f"{node.module}.{alias.name}" for alias in node.names if node.module == "queue_runner"}
    return found


MODULES = sorted(path for path in PACKAGE.rglob("*.py") if not {"_jobs", "_migrations"} & set(path.parts))


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_down_only(path: Path) -> None:
    here = room(path)
    for name in imports(path):
        if name.startswith("queue_runner."):
            there = name.split(".")[1]
            assert floor(there) <= floor(here), f"{here} (floor {floor(here)}) imports {there} (floor {floor(there)})"
        top = name.split(".")[0]
        assert top != "jobs", "the queue never imports a workload"
        assert here in OWNERS.get(top, {here}), f"{here} imports {top}, which belongs to {OWNERS[top]}"


def test_the_warden_needs_the_standard_library_alone() -> None:
    own = {"queue_runner", "warden_files", "warden_pause", "warden_start", "warden_stop", "warden_tree"}
    for path in PACKAGE.glob("warden*.py"):
        for name in imports(path) - own:
            assert name.split(".")[0] in sys.stdlib_module_names or name.startswith("queue_runner.warden_"), name


def test_jobs_never_import_the_queue() -> None:
    for path in (ROOT / "jobs").rglob("*.py"):
        assert not any(name.split(".")[0] == "queue_runner" for name in imports(path)), path


def test_no_module_shadows_another_distribution() -> None:
    taken = set(packages_distributions()) | sys.stdlib_module_names
    ours = {path.stem for path in (ROOT / "jobs").rglob("*.py")} | {path.stem for path in PACKAGE.glob("*.py")}
    shared = {name for name in ours if name.startswith("mpsq_report")}  # modules of our own distribution
    assert not (ours - shared - {"__init__", "queue_runner"}) & taken


def test_modules_stay_readable() -> None:
    long = {str(path.relative_to(ROOT)): n for path in MODULES if (n := len(path.read_text().splitlines())) > 400}
    assert not long
