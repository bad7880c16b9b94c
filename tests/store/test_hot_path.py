"""The hot path: its SQL is that of the Core statements, and a submission and a worker import neither SQLAlchemy nor
Alembic."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from queue_runner.paths import Layout
from queue_runner.store import hot_sql, statements
from tests.queue_support import Queue


def test_the_texts_are_those_of_the_statements() -> None:
    assert Path(hot_sql.__file__).read_text("utf-8") == statements.generated()


def test_every_text_is_used() -> None:
    names = {name for name in vars(hot_sql) if name.isupper()}
    folder = Path(hot_sql.__file__).parent
    used = {
        node.attr
        for path in folder.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "hot_sql"
    }
    assert names == used


@pytest.mark.parametrize("words", [["nanogpt"], ["--repeats", "2", "--", "true"]])
def test_a_submission_imports_no_sqlalchemy(layout: Layout, words: list[str]) -> None:
    code = (
        "import sys; from queue_runner.cli.main import main;"
        f"print(main(['submit', *{words}]), *sorted(m for m in sys.modules if m in"
        " ('sqlalchemy', 'alembic', 'rich', 'psutil', 'asyncio', 'apscheduler', 'queue_runner.events')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "0", done.stdout + done.stderr


@pytest.mark.process
def test_a_worker_imports_no_sqlalchemy(queue: Queue) -> None:
    queue.submit("true")
    queue.submit("exit 1")
    code = (
        "import sys; from queue_runner.worker.main_loop import main;"
        "print(main(['--until-idle']), *sorted({'sqlalchemy', 'alembic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "0", done.stdout + done.stderr
    assert [row["outcome"] for row in queue.done(2)] == ["SUCCEEDED", "FAILED"]
