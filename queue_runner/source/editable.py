"""Editable installs: how imports of a tree's packages are directed into a copy of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess

from queue_runner.spec import JobSpec
from queue_runner.text import plain

_LIMIT_S = 20.0
_PROGRAM = """
import json, os, sys
root = os.path.realpath(sys.argv[1])
inside = lambda path: (os.path.realpath(path) + "/").startswith(root + "/")
prefixes = [os.path.realpath(prefix) + "/" for prefix in (sys.prefix, sys.base_prefix)]
own = ["/site-packages/", *(prefix for prefix in prefixes if inside(prefix) and prefix != root + "/")]
is_own = lambda path: any(part in os.path.realpath(path) + "/" for part in own)
folders = [path for path in sys.path if path and inside(path) and not is_own(path)]
fixed = []
for finder in sys.meta_path:
    module = sys.modules.get(getattr(finder, "__module__", None) or type(finder).__module__)
    mapping = getattr(module, "MAPPING", None)
    if isinstance(mapping, dict):
        for name, path in mapping.items():
            if inside(path):
                last = name.rpartition(".")[2]
                stem = os.path.basename(path).partition(".")[0] if os.path.isfile(path) else os.path.basename(path)
                if "." not in name and stem == last:
                    folders.append(os.path.dirname(path))
                elif "." not in name:
                    fixed.append(name)
    elif "editable" in getattr(module, "__name__", "") and root in open(module.__file__).read():
        fixed.append(module.__name__)
json.dump([[os.path.relpath(os.path.realpath(path), root) for path in dict.fromkeys(folders)], fixed], sys.stdout)
"""
"""Prints the folders of the tree from which an interpreter imports, relative to the tree, and names of imports that no
folder of a path can direct elsewhere. setuptools maps packages by a finder behind the path, scikit-build-core and
meson-python by one before it."""


def look(spec: JobSpec) -> tuple[tuple[str, ...], str]:
    """Return the folders of the tree, relative to it, from which the job's interpreter imports, and a caveat for what a
    PYTHONPATH cannot direct into a copy; "" if there is nothing of that kind."""
    folders: dict[str, None] = {}
    fixed: list[str] = []
    for python in _interpreters(spec):
        try:
            command = [python, "-c", _PROGRAM, spec.root]
            output = subprocess.check_output(
                command, cwd="/", env=_environment(), stderr=subprocess.DEVNULL, timeout=_LIMIT_S
            )
            inside, others = json.loads(output)
        except (OSError, subprocess.SubprocessError, ValueError):
            continue
        folders |= dict.fromkeys(inside)
        fixed += others
    if fixed:
        names = ", ".join(map(plain, dict.fromkeys(fixed)))
        return tuple(folders), f"an editable install imports from {spec.root}, not from the copy: {names}"
    option = spec.argv[1] if len(spec.argv) > 1 else ""
    if folders and re.fullmatch(r"-[a-zA-Z]*[IE][a-zA-Z]*", option):
        return (), f"{option} ignores PYTHONPATH: an editable install imports from {spec.root}, not from the copy"
    return tuple(folders), ""


def _interpreters(spec: JobSpec) -> list[str]:
    """Return the interpreter of the job; if the command does not say which, those that its PATH names."""
    if spec.python:
        return [spec.python]
    path = spec.env.get("PATH")
    programs = (shutil.which(name, path=path) for name in ("python", "python3"))
    return [*dict.fromkeys(filter(None, programs))]


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MPSQ_"))}
