"""The wings of queue_runner: who may import whom, and which package belongs to which wing (docs/architecture.md)."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "queue_runner"

WINGS = (
    "root",
    "warden",
    "host",
    "analysis",
    "source",
    "store",
    "workloads",
    "ingest",
    "submit",
    "monitor",
    "control",
    "worker",
    "reports",
    "doctor",
    "cli",
    "bundles",
    "remote",
    "export",
    "pages",
    "referee",
    "web",
    "client",
    "mcp",
)
"""Lowest first: a wing imports itself and those above it in this list. "root" is the vocabulary in queue_runner itself;
client.py, the public Python API, lies there too and is a wing of its own."""

OLD_NAMES = {"daemon": "worker"}
"""Modules in the root that only keep a name of version 0.1, and the wing that each belongs to."""

OWNERS = {
    "sqlalchemy": {"store"},
    "alembic": {"store"},
    "apscheduler": {"worker"},
    "typer": {"cli", "export", "referee", "remote", "web"},
    "tabulate": {"root"},
    "tomlkit": {"root"},
    "rich": {"monitor"},
    "jinja2": {"pages"},
    "starlette": {"web"},
    "uvicorn": {"web"},
    "anyio": {"web"},
    "mcp": {"mcp"},
    "torch": set(),
    "tiktoken": set(),
    "numpy": set(),
    "pyarrow": {"export"},
    "tensorboardX": {"export"},
    "matplotlib": {"export"},
}

SELECTS = {"worker", "control"}
"""Wings that write a condition of their own with SQLAlchemy."""


def module(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    module(path): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if not {"_jobs", "_migrations"} & set(path.relative_to(PACKAGE).parts)
}


def wing(name: str) -> str:
    """The wing of a module; of the vocabulary in the root: root."""
    first = name.split(".")[1] if "." in name else ""
    return first if first in WINGS else OLD_NAMES.get(first, "root")


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


def imports(path: Path) -> Iterator[str]:
    """Everything that a file imports, at its top, inside of functions or for its types alone."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (
                name if (name := f"{node.module}.{alias.name}") in MODULES else str(node.module) for alias in node.names
            )


@cache
def import_graph() -> dict[str, set[str]]:
    return {name: set(imports(path)) for name, path in MODULES.items()}


def test_a_wing_imports_only_earlier_wings() -> None:
    refused = set()
    for name, imported_names in import_graph().items():
        refused |= {f"{name} imports {each}" for each in imported_names if not may_import(wing(name), each)}
    assert refused == set()


def may_import(here: str, imported: str) -> bool:
    top = imported.split(".")[0]
    if top == "queue_runner":
        return WINGS.index(wing(imported)) <= WINGS.index(here)
    if top == "sqlalchemy" and here in SELECTS:
        return True
    return top != "jobs" and here in OWNERS.get(top, {here})


def test_no_circle() -> None:
    graph = {name: found & set(MODULES) - {name} for name, found in import_graph().items()}
    graphlib.TopologicalSorter(graph).prepare()  # CycleError names the circle


def test_the_warden_needs_the_standard_library_alone() -> None:
    for name, imported in import_graph().items():
        if wing(name) == "warden":
            assert all(wing(other) == "warden" or other.split(".")[0] in sys.stdlib_module_names for other in imported)


def test_jobs_never_import_the_queue() -> None:
    for path in (ROOT / "jobs").rglob("*.py"):
        assert not any(name.split(".")[0] == "queue_runner" for name in imports(path)), path


ROWS = {
    *("row", "run", "job", "event", "group", "lane", "schedule", "taint"),
    *("hello", "header", "machine", "system", "facts", "sample", "reading", "readings", "gpu", "shares", "rates"),
    *("spec", "fence", "exit_", "ending", "prepared", "stop", "record", "manifest"),
}
"""Names of what a row of the database, a stored record or a header of a log is read into."""


def test_a_record_outside_of_the_store_has_attributes() -> None:
    """A record is read into a Struct or a dataclass, whose fields mypy knows: no `row["name"]` or `row.get("name")`."""
    by_name = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.relative_to(PACKAGE).parts[0] == "store":
            continue
        for node in nodes(path):
            match node:
                case ast.Subscript(value=record, slice=ast.Constant(value=str())):
                    pass
                case ast.Call(func=ast.Attribute(value=record, attr="get"), args=[ast.Constant(value=str()), *_]):
                    pass
                case _:
                    continue
            if ast.unparse(record).rpartition(".")[2] in ROWS:
                by_name.add(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert by_name == set()


def test_records_are_decoded_in_one_place() -> None:
    """By queue_runner.decoding: two threads that first use a kind at once, by msgspec alone, crash the process."""
    elsewhere = set()
    for name, path in MODULES.items():
        for node in nodes(path):
            match node:
                case ast.ImportFrom(module="msgspec", names=names):
                    is_direct = any(alias.name == "convert" for alias in names)
                case ast.Call(func=ast.Attribute(value=ast.Name(id="msgspec"), attr="convert")):
                    is_direct = True
                case ast.Call(func=ast.Attribute(attr="decode"), keywords=[*given]):
                    is_direct = any(keyword.arg == "type" for keyword in given)
                case ast.Call(func=ast.Attribute(value=library, attr="Decoder"), args=[kind, *_]):
                    is_direct = ast.unparse(library).split(".")[-1] in ("json", "msgpack")
                    is_direct = is_direct and not ast.unparse(kind).startswith("prepared(")
                case _:
                    continue
            if is_direct and name != "queue_runner.decoding":
                elsewhere.add(f"{name}:{node.lineno}")
    assert elsewhere == set()


def test_no_module_shadows_another_distribution() -> None:
    taken = set(packages_distributions()) | sys.stdlib_module_names
    ours = {path.stem for path in (ROOT / "jobs").rglob("*.py")} | {path.stem for path in PACKAGE.glob("*.py")}
    shared = {name for name in ours if name.startswith("mpsq_report")}  # modules of our own distribution
    assert not (ours - shared - {"__init__", "queue_runner"}) & taken


def test_no_output_of_a_run_is_committed() -> None:
    """git lists files of known kinds alone at the top: a checkpoint and two logs were committed there once."""
    listed = subprocess.run(["git", "ls-files", ":(glob)*"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a clone of the repository")
    kinds = {Path(name).suffix for name in listed.stdout.split()}
    assert kinds == {"", ".in", ".md", ".py", ".toml", ".txt"}
