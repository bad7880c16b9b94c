"""What TAB offers, behind which words; and that it is quick and says nothing when there is nothing to say."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from queue_runner.cli import complete
from queue_runner.cli.complete import after_break, split
from queue_runner.paths import jobs_dir
from queue_runner.store.engine import open_engine, writing
from tests.cli_support import TOY, Cli, full_queue, stand_in_venv

pytestmark = pytest.mark.process


@pytest.fixture
def queue(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs in every state (see cli_support), one workload."""
    full_queue(home)
    folder = tmp_path / "jobs"
    folder.mkdir()
    (folder / "toy_torch.py").write_text(TOY)
    (folder / "toy_mlx.py").write_text(TOY.replace('"torch"', '"mlx"'))
    stand_in_venv(home, "old")
    (home / "workloads").mkdir()
    (home / "workloads" / "mine.py").write_text(
        TOY.replace('"toy"', '"mine"')
        .replace('"default": "pydoc"', '"default": "pydoc", "choices": ["pydoc", "shakespeare"]')
        .replace('"default": None', '"default": "a", "each_of": ["a", "b"]')
    )
    (home / "workloads" / "half.py").write_text("WORKLOAD = {\n    'name': name,\n}\n")
    (folder / "harness").mkdir()
    shutil.copy(jobs_dir() / "harness" / "__init__.py", folder / "harness")
    monkeypatch.setattr("queue_runner.paths.jobs_dir", lambda: folder)
    return home


def offered(line: str) -> list[str]:
    *words, current = split(line)
    return [word for word, _ in complete.answer(words[1:], current).candidates]


def how(line: str) -> str:
    *words, current = split(line)
    return complete.answer(words[1:], current).how


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("mpsq sub", ["submit"]),
        ("mpsq --ver", ["--version"]),
        ("mpsq schedule re", ["remove", "resume"]),
        ("mpsq schedule remove ", ["--help"]),
        ("mpsq config set keep_a", ["keep_awake"]),
        ("mpsq config set keep_awake ", ["--help"]),
        ("mpsq nonsense ", []),
        ("mpsq export --to par", ["parquet"]),
        ("mpsq config nonsense ", []),
        ("mpsq submit ", ["toy", "mine"]),
        ("mpsq submit --dev", ["--device"]),
        ("mpsq submit toy --config ", ["tiny", "large"]),
        ("mpsq submit --config ", []),
        ("mpsq submit toy --config tiny,", ["tiny,large"]),
        ("mpsq submit toy --config=la", ["--config=large"]),
        ("mpsq submit toy --framework ", ["mlx", "torch"]),
        ("mpsq submit toy --set m", ["max_iters="]),
        ("mpsq submit toy --set fused=", ["fused=true", "fused=false"]),
        ("mpsq submit toy --set max_iters=", []),
        ("mpsq submit toy --set nothing=", []),
        ("mpsq submit mine --set data=p", ["data=pydoc"]),
        ("mpsq submit mine --set data=pydoc,", ["data=pydoc,shakespeare"]),
        ("mpsq submit mine --set=data=s", ["--set=data=shakespeare"]),
        ("mpsq submit mine --set note=a+", ["note=a+b"]),
        ("mpsq submit mine --set note=a+b,", ["note=a+b,a", "note=a+b,b"]),
        ("mpsq submit toy --device cpu,m", ["cpu,mps"]),
        ("mpsq submit toy --after 1:", ["1:ok", "1:any", "1:fail"]),
        ("mpsq submit toy --hold --ho", []),
        ("mpsq submit toy --retry-on lost,", ["lost,failed", "lost,stalled", "lost,timed_out"]),
        ("mpsq submit toy --tag night --ta", ["--tag"]),
        ("mpsq schedule add '0 2 * * *' -- toy --config t", ["tiny"]),
        ("mpsq cancel ", ["6", "5", "4", "g2", "g1", "@last"]),
        ("mpsq pause ", ["6", "5", "4", "g2", "g1", "@last"]),
        ("mpsq kill ", ["6", "5", "4", "g2", "g1", "@last"]),
        ("mpsq retry ", ["3", "2", "1", "g2", "g1", "@last"]),
        ("mpsq show 1.", ["1.1", "1.2"]),
        ("mpsq show g", ["g2", "g1"]),
        ("mpsq show @", ["@last"]),
        ("mpsq list ", ["6", "5", "4", "3", "2", "1", "g2", "g1", "@last"]),
        ("mpsq list --tag ", ["grid", "night"]),
        ("mpsq list --state su", ["succeeded"]),
        ("mpsq report de", ["devices"]),
        ("mpsq report devices g", ["g2", "g1"]),
        ("mpsq report --format m", ["md"]),
        ("mpsq import --parser nanog", ["nanogpt"]),
        ("mpsq completion z", ["zsh"]),
        ("FOO=1 mpsq sub", ["submit"]),
        ("mpsq submit 'to", ["toy"]),
        ("mpsq submit mi", ["mine"]),
        ("mpsq submit toy --env-name ", ["old"]),
        ("mpsq env remove o", ["old"]),
    ],
)
def test_what_is_offered(line: str, wanted: list[str], queue: Path) -> None:
    assert offered(line) == wanted


def test_how_the_shell_goes_on(queue: Path) -> None:
    assert how("mpsq submit toy --cwd ") == "folder"
    assert how("mpsq import ") == "file"
    assert how("mpsq submit toy --set m") == "nospace" and how("mpsq submit toy --set fused=f") == "words"
    assert how("mpsq submit --parser plain -- python tr") == "command 2"
    assert how("mpsq run -- ") == "command 1"
    assert how("mpsq schedule add x -- --parser plain -- ") == "command 1"


def test_the_newest_jobs_come_first_with_what_they_ask(queue: Path) -> None:
    assert complete.answer(["why"], "").candidates[0] == ("6", "waits2 tiny mps compiled QUEUED")


def test_what_a_shell_would_run_is_not_offered(queue: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    engine = open_engine(queue / "mpsq.db", check=False)
    with writing(engine) as connection:
        connection.change("UPDATE job_tags SET tag = '$(reboot)' WHERE tag = 'grid'")
        connection.change("UPDATE jobs SET name = 'a' || char(27) || '[31mb' || char(10) || 'c:d' WHERE id = 6")
    for shell in ("fish", "bash", "zsh"):
        line = ["mpsq", "list", "--tag", ""] if shell == "zsh" else ["mpsq list --tag "]
        complete.main([shell, *line, *([":="] if shell == "bash" else [])])
        assert b"reboot" not in capsysbinary.readouterr().out
    complete.main(["fish", "mpsq why 6"])
    assert capsysbinary.readouterr().out == b"words\n6\tab c:d tiny mps compiled QUEUED\n"
    complete.main(["zsh", "mpsq", "submit", "--after", "5:a"])
    assert capsysbinary.readouterr().out == b"words\n5\\:any:whatever its end\n"
    complete.main(["bash", "mpsq submit --device=cuda:", "=:"])
    assert capsysbinary.readouterr().out == b"words\n0\n1\n"


@pytest.mark.parametrize("harm", ["none", "empty", "damaged", "newer", "folder"])
def test_nothing_is_said_where_there_is_nothing_to_say(
    harm: str, home: Path, capfd: pytest.CaptureFixture[str], queue: Path
) -> None:
    db = home / "mpsq.db"
    if harm == "newer":
        with sqlite3.connect(db) as connection:
            connection.execute("PRAGMA legacy_alter_table=ON")
            for table in ("jobs", "job_tags", "schedules"):
                connection.execute(f"ALTER TABLE {table} RENAME TO {table}_of_the_future")
    else:
        db.unlink()
        if harm == "damaged":
            db.write_bytes(b"no database" * 999)
        elif harm == "folder":
            db.mkdir()
        elif harm == "empty":
            db.touch()
    before = sorted(home.rglob("*"))
    for line in ("mpsq cancel ", "mpsq list --tag ", "mpsq schedule remove ", "mpsq submit --after "):
        complete.main(["fish", line])
        assert capfd.readouterr().out in ("", "words\n")
    complete.main(["fish", "mpsq report dev"])
    out, err = capfd.readouterr()
    assert out.startswith("words\ndevices\tcompare ") and (out.count("\n"), err) == (2, "")
    assert sorted(home.rglob("*")) == before


@pytest.mark.parametrize("arguments", [[], ["bash"], ["csh", "x"], ["zsh"], ["fish", ""], ["bash", "mpsq 'a", ""]])
def test_odd_questions(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    complete.main(arguments)
    assert capfd.readouterr().err == ""


def test_it_does_not_wait_for_sqlalchemy(queue: Path) -> None:
    code = (
        "import sys; from queue_runner.cli.complete import main\n"
        "for line in ('mpsq cancel ', 'mpsq submit nanogpt --config ', 'mpsq config set '): main(['fish', line])\n"
        "print([m for m in ('sqlalchemy', 'apscheduler', 'rich', 'torch') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ)
    assert ran.stdout.splitlines()[-1] == "[]" and "\n6\t" in ran.stdout


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", [""]),
        ("mpsq", ["mpsq"]),
        ("mpsq ", ["mpsq", ""]),
        ("mpsq  a\\ b 'c d' \"e f", ["mpsq", "a b", "c d", "e f"]),
        ("mpsq ''", ["mpsq", ""]),
        ("A=1 B=2 mpsq x", ["mpsq", "x"]),
        ("mpsq 'it'\\''s'", ["mpsq", "it's"]),
    ],
)
def test_words(line: str, words: list[str]) -> None:
    assert split(line) == words


def test_what_bash_replaces() -> None:
    assert after_break("--device=cuda:", "=:") == ""
    assert after_break("--device=cuda:", "=") == "cuda:"
    assert after_break("12:an", " \t") == "12:an"


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    mpsq = Cli(capsys)
    assert "complete -F _mpsq mpsq" in mpsq.ok("completion", "bash").out
    assert 'unknown shell "tcsh"' in mpsq("completion", "tcsh").err
    assert mpsq("completion").code == 2
