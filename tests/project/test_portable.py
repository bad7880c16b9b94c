"""The tests run on a Mac: what only Linux has is named by marked tests alone (needs_linux of process_support)."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.cli_support import ROOT

pytestmark = pytest.mark.process

PROGRAMS = (
    *("setsid", "ip", "systemctl", "loginctl", "systemd-run", "unshare", "nsenter", "mount", "umount", "findmnt"),
    *("nproc", "taskset", "ionice", "prlimit", "chattr", "lsblk", "sysctl", "timeout", "tac", "strace", "ss"),
)
"""Those that a Mac lacks, or that are others there."""
_COMMAND = re.compile(rf"(?:^|[;&|({{]\s*|\b(?:do|then|else|exec) )(?:{'|'.join(PROGRAMS)})[ \t]+[-\w/'\"$.]")
_PROC = re.compile(r"(?<![\w.])/proc\b")
_PLACE = re.compile(
    r"(?<![\w.])/(?:bin/(?:true|false|touch|env|which|grep|sed|awk|head|tail|tee|id|uname|sort|tar|gzip|more|yes|seq)"
    r"|usr/bin/(?:sleep|sh|bash|cat|ls|echo|kill|mkdir|rmdir|rm|cp|mv|ln|chmod|date|ps|dd|df|test|sync|stty))(?![\w.])"
)
"""Programs that are in the other of the two folders on a Mac; most of Linux has them in both."""
_HINT = re.compile(rf"/proc\b|/bin/|\b(?:{'|'.join(PROGRAMS)})(?=[\s\"'])")
"""Text that every file with one of the above contains: other files need no parser."""
_MARK = "needs_linux"

Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def foreign(source: str) -> list[str]:
    """Return `line: text` of what only Linux has, outside of marked tests and of the fixtures that only they use."""
    if not _HINT.search(source):
        return []
    tree = ast.parse(source)
    marked = _marked(tree)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    skipped = {id(inner) for node in marked for inner in ast.walk(node)} | prose
    return [
        f"{node.lineno}: {text[:60]}" for node, text in _texts(tree) if id(node) not in skipped and _is_foreign(text)
    ]


def _texts(tree: ast.AST) -> Iterator[tuple[ast.Constant, str]]:
    """Texts of the module; of an argument list its program, with a space behind it as in a shell."""
    programs = {
        id(node.elts[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.List) and node.elts and isinstance(node.elts[0], ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node, f"{node.value} -" if id(node) in programs else node.value


def _is_foreign(text: str) -> bool:
    return any(one.search(text) for one in (_PROC, _PLACE)) or any(
        _COMMAND.search(line.strip()) for line in text.split("\n")
    )


def _marked(tree: ast.Module) -> list[Scope]:
    scopes = [node for node in ast.walk(tree) if isinstance(node, Scope)]
    marked = [node for node in scopes if any(_MARK in ast.unparse(one) for one in node.decorator_list)]
    functions = [node for node in scopes if not isinstance(node, ast.ClassDef)]
    for fixture in functions:
        users = [node for node in functions if fixture.name in (one.arg for one in node.args.args)]
        if users and all(user in marked for user in users):
            marked.append(fixture)
    return marked


_SPARED = (
    "test_portable.py",
    "process_support.py",
    "test_service_systemd.py",
    "test_service_in_systemd.py",
    "disk.py",
    "traced.py",
    "traces.py",
)
"""What names them to find, hide or stand in for them, and the simulation of faults, which only Linux runs."""
FILES = sorted(path for path in (ROOT / "tests").rglob("*.py") if path.name not in _SPARED)


def test_only_marked_tests_name_what_only_linux_has() -> None:
    places = {str(path.relative_to(ROOT)): foreign(path.read_text(encoding="utf-8")) for path in FILES}
    assert {path: of_file for path, of_file in places.items() if of_file} == {}


def test_the_lint_finds_what_it_is_for() -> None:
    assert foreign('Path("/proc/self/stat")') and foreign('f"/proc/{pid}/stat"') and foreign('run(["mount", "-a"])')
    assert foreign('queue.submit("sleep 3 & setsid sleep 4")') and foreign('"""A text."""\nx = "a; timeout 3 b"')
    assert foreign('x = ("/bin/true", "a")') and foreign('x = "exec /usr/bin/sleep 9"')
    assert not foreign('x = ("/usr/bin/true", "/bin/sleep", "venv/bin/env")')
    assert not foreign('"""What /proc says."""') and not foreign('x = {"mount": 1}; y = "his time: mount a disk"')
    assert not foreign('@needs_linux\ndef test_it(disk): open("/proc/1")\n\ndef disk(): run(["mount", "-a"])')
    assert foreign('def test_it(disk): pass\n\ndef disk(): run(["mount", "-a"])')


def test_proc_can_be_hidden_from_the_tests_and_not_from_the_product() -> None:
    look = "from pathlib import Path; Path('/proc/self/stat').read_bytes()"
    code = (
        "import os, psutil; from queue_runner.host import processes; from tests import process_support as support;"
        " support.hide_proc(); assert processes.look(os.getpid()) and psutil.Process().status();"
        f" exec(compile({look!r}, support.__file__, 'exec'))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr.rstrip().endswith("is hidden: MPSQ_WITHOUT_PROC is set")
