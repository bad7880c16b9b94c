"""Bad input gets a sentence, a hint and the documented exit code; never a traceback."""

from __future__ import annotations

import errno
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from queue_runner.cli.main import ALIASES, EXIT_BROKEN_PIPE, RENAMED, commands, main
from queue_runner.referee import request
from queue_runner.submit.submit_options import OPTIONS
from tests.cli_support import Cli, empty_queue, full_queue, use_toy_workloads

pytestmark = pytest.mark.process


@pytest.fixture
def mpsq(capsys: pytest.CaptureFixture[str], tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    use_toy_workloads(tmp_path / "jobs", monkeypatch)
    return Cli(capsys)


def fails(mpsq: Cli, code: int, *arguments: object) -> str:
    """The complaint, whose form is the same for all: error, blank line, hint."""
    ran = mpsq(*arguments)
    assert ran.code == code, ran
    assert ran.out == ""
    lines = [line for line in ran.err.splitlines() if not line.startswith(("note:", "  ", "no worker"))]
    assert lines[0].startswith("error: ") and lines[1] == "" and lines[2].startswith("hint: ") and len(lines) == 3, (
        ran.err
    )
    return ran.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["submit", "toyy"], 'error: unknown workload "toyy"\n\nhint: did you mean "toy"?'),
        (["submit", "toy", "--framework", "jax"], "available: mlx, torch"),
        (["submit", "toy", "--device", "gpu"], 'error: unknown device "gpu"'),
        (["submit", "toy", "--device", "cpu:0"], 'error: unknown device "cpu:0"'),
        (["submit", "toy", "--device", "cpu,"], "has an empty value"),
        (["submit", "toy", "--compile", "maybe"], '--compile cannot be "maybe"'),
        (["submit", "toy", "--dtype", "fp8"], 'error: unknown dtype "fp8"'),
        (["submit", "toy", "--config", "tinny"], 'did you mean "tiny"?'),
        (["submit", "toy", "--set", "max_iter=3"], 'did you mean "max_iters"?'),
        (["submit", "toy", "--set", "max_iters=many"], '"many" is not a whole number'),
        (["submit", "toy", "--set", "max_iters=3,lr=1"], "write a second option, --set lr=1"),
        (["submit", "toy", "--set", "lr=fast"], '"fast" is not a number'),
        (["submit", "toy", "--set", "fused=perhaps"], "is not true or false"),
        (["submit", "toy", "--set", "lr"], "is not NAME=VALUE"),
        (["submit", "toy", "--parser", "nanogpt"], "--parser is for commands"),
        (["submit", "toy", "--warmup", "2"], "--warmup is for commands"),
        (["submit", "toy", "--until", "3"], "for example --until 1%"),
        (["submit", "--warmup", "-1", "--", "true"], "--warmup -1 is less than 0"),
        (["submit", "--set", "n=1", "--prepare", "echo {k}", "--", "echo", "{n}"], "contains {k}, but no option sets"),
        (["submit", "--parser", "nanogtp", "--", "true"], 'did you mean "nanogpt"?'),
        (["submit", "toy", "--python", "/no/python"], 'there is no interpreter "/no/python"'),
        (["submit", "toy", "--cwd", "/no/folder"], "there is no folder /no/folder"),
        (["submit", "--", "/no/program"], 'there is no program "/no/program"'),
        (["submit", "--", "no-such-program-here"], 'there is no program "no-such-program-here"'),
        (["submit", "--device", "cpu,mps", "--", "true"], "the command does not use {device}"),
        (["submit", "toy", "--", "true"], "give either a workload or a command"),
        (["submit"], "give either a workload or a command"),
        (["submit", "python", "train.py"], "hint: a command goes after --: mpsq submit -- python train.py"),
        (["run", "ls"], "a command goes after --: mpsq run -- ls"),
        (["run"], "hint: for example mpsq run nanogpt, or mpsq run -- python train.py"),
        (["wait", "1", "--timeout"], "hint: see mpsq wait --help"),
        (["ps", "5", "6"], 'error: mpsq status does not take "5 6"'),
        (["run", "pwd", "ls"], "mpsq run -- pwd ls; to compare these programs, give their paths: mpsq run /"),
        (["run", "toy", "toy2"], "hint: run mpsq run once for each workload"),
        (["compare", "1", "2", "--by", "loss"], "mpsq report ID ID --by METRIC"),
        (["compare", "k=", "k=b"], 'error: mpsq compare: "k=" is not KEY=VALUE'),
        (["submit", "--name", " ", "toy"], "error: the name is blank"),
        (["submit", "--name", "", "toy"], "error: the name is blank"),
        (["judge", "HEAD~1", "HEAD", "--", "ls"], "hint: before --, give options: mpsq judge --help lists them"),
        (["submit", "toy", "--env", "MPSQ_HOME=/x"], "MPSQ_HOME is reserved for mpsq"),
        (["submit", "toy", "--timeout", "soon"], '"soon" is not a duration'),
        (["submit", "toy", "--timeout", "0"], "--timeout must be longer than 0"),
        (["submit", "toy", "--repeats", "0"], "--repeats 0 would run nothing"),
        (["submit", "toy", "--repeats", "100001"], "a submission can have at most 100,000 runs"),
        (["submit", "toy", "--repeats", "x"], '--repeats: "x" is not a whole number'),
        (["submit", "toy", "--priority", "high"], "hint: --priority N: Higher priorities run first"),
        (["submit", "toy", "--repeat", "3"], "did you mean --repeats"),
        *(([*line.split(), "--rounds", "3"], "hint: --repeats N") for line in ("submit toy", "run toy", "bench toy")),
        (["submit", "toy", "--device", "cpu", "--device", "mps"], "--device is given twice\n\nhint: write one list"),
        (["import", "/no/log", "--set", "device=cpu", "--set", "device=mps"], "--set device is given twice"),
        (["list", "--lim", "3"], "did you mean --limit"),
        (["list", "--bogus"], "error: no such option: --bogus\n\nhint: see mpsq list --help"),
        (["sumbit"], 'did you mean "submit"?'),
        (["wait", "@x"], '"@x" does not name a job'),
        (["wait", "--timeout", "-1"], '"-1" is not a duration'),
        (["cancel"], "no job was selected"),
        (["logs", "--tail", "-1"], "see mpsq logs --help"),
        (["list", "--limit", "0"], "see mpsq list --help"),
        (["report", "--format", "tabel"], 'did you mean "table"?'),
        (["report", "devces"], 'did you mean "devices"?'),
        (["workloads", "tyo"], 'did you mean "toy"?'),
        (["import", "/no/log"], "/no/log cannot be read"),
        (["submit", "--from", "/no/jobs"], "/no/jobs cannot be read"),
        (["config", "gate_cpu_share", "7"], "mpsq config set gate_cpu_share"),
        (["import", "/no/log", "--parser", "nanogtp"], 'did you mean "nanogpt"?'),
        (["import", "/no/log", "--set", "device=mps,cpu"], "a log comes from one device"),
        *((["import", "/no/log", "--set", f"{key}="], f"--set {key} has an empty value") for key in ("compile", "lr")),
        (["import", "/no/log", "--name", ""], "--name has an empty value"),
        (["import", "/dev/zero"], "/dev/zero cannot be read: not a regular file"),
        (["submit", "toy", "--name", "n" * 201], "a name of 201 characters is too long"),
        (["submit", "toy", "--tag", "t" * 101], "a tag of 101 characters is too long"),
        (["submit", "toy", "--note", "n" * 10_001], "a note of 10,001 characters is too long"),
        (["import", __file__, "--name", "n" * 201], "a name of 201 characters is too long"),
        (["import", __file__, "--tag", "a b"], "--tag 'a b' is not a word"),
        (["import", __file__, "--tag", "t" * 101], "a tag of 101 characters is too long"),
        (["import"], "missing argument 'FILE...'"),
        (["submit", "toy", "--name", "two\nlines"], "--name contains a line break"),
        (["submit", "toy", "--tag", "a\x1b[31m"], "is not a word"),
        (["config", "set", "grace", "2"], "did you mean"),
        (["config", "set", "grace_int_s", "soon"], "grace_int_s"),
        (["config", "set", "poll_s", "-1"], "poll_s"),
        (["db", "repair"], 'unknown command "db repair"'),
        (["doctor", "--python", "/no/python"], 'there is no interpreter "/no/python"'),
        (["doctor", "--python", "~no-such-user/python"], "a user that does not exist"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_usage(mpsq: Cli, arguments: list[str], said: str) -> None:
    assert said in fails(mpsq, 2, *arguments)


@pytest.mark.parametrize("command", ["status", "list", "show", "why", "logs", "wait", "report"])
def test_no_queue_yet(mpsq: Cli, command: str) -> None:
    assert "no queue here" in fails(mpsq, 1, command)


@pytest.mark.parametrize("command", ["logs", "why", "report", "cancel", "retry"])
def test_a_run_that_does_not_exist_has_a_hint_that_shows_those_of_its_job(mpsq: Cli, home: Path, command: str) -> None:
    full_queue(home)
    assert "hint: mpsq list --runs 2 shows" in fails(mpsq, 2, command, "2.99")
    assert "2.1" in mpsq.ok("list", "--runs", "2").out
    assert "hint: mpsq list --all shows" in fails(mpsq, 2, command, "99.1")


@pytest.mark.parametrize("verb", ["cancel", "pause", "resume", "retry", "rerun", "edit"])
def test_no_queue_to_change_yet(mpsq: Cli, home: Path, verb: str) -> None:
    more = {"edit": ["--top"]}.get(verb, [])
    assert "no queue here" in fails(mpsq, 1, verb, "1", *more)
    assert not home.exists()


def test_who_begins_with_a_pause_gets_a_queue_that_is_paused(mpsq: Cli) -> None:
    assert mpsq.ok("pause", "--json").json()["changed"] is True
    assert "paused" in mpsq.ok("status").out


@pytest.mark.parametrize("command", ["status", "list", "show", "why", "logs", "wait", "report"])
@pytest.mark.parametrize("below", ["", "deeper/still"])
def test_a_file_where_the_home_should_be(
    mpsq: Cli, home: Path, command: str, below: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.parent.mkdir(exist_ok=True)
    home.write_text("a file")
    monkeypatch.setenv("MPSQ_HOME", str(home / below))
    assert f"{home} is not a folder" in fails(mpsq, 1, command)


@pytest.mark.parametrize("text", ["99", "1.9", "g9", "99999999999999999999"])
def test_names_that_nothing_has(mpsq: Cli, home: Path, text: str) -> None:
    full_queue(home)
    for command in ("show", "why", "logs", "cancel", "wait"):
        assert text in fails(mpsq, 2, command, text)


def test_a_log_that_is_not_there_yet(mpsq: Cli, home: Path) -> None:
    full_queue(home)
    assert "5.1 has not started" in fails(mpsq, 1, "logs", "5")


def test_relative_home(mpsq: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPSQ_HOME", "var")
    for arguments in (["status"], ["submit", "toy"], ["db", "path"]):
        assert 'relative path: "var"' in fails(mpsq, 1, *arguments)


def test_a_folder_that_was_deleted(mpsq: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for arguments in (["submit", "toy"], ["submit", "--cwd", ".", "--", "true"]):
        assert "folder was deleted" in fails(mpsq, 2, *arguments)


def test_locks_that_cannot_be_used_are_said_before_anything_is_stored(
    mpsq: Cli, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("I was here first")
    monkeypatch.setenv("MPSQ_LOCKS", str(tmp_path / "file"))
    assert "locks" in fails(mpsq, 1, "submit", "toy")
    assert not (home / "mpsq.db").exists()


def test_network_home(mpsq: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queue_runner.host.home.network_kind", lambda *_: "nfs4")
    assert "(nfs4)" in fails(mpsq, 1, "submit", "toy")


def test_home_in_the_way_of_a_file(mpsq: Cli, home: Path) -> None:
    home.write_text("I was here first")
    assert "is not a folder" in fails(mpsq, 1, "submit", "toy")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_unwritable_home(mpsq: Cli, home: Path) -> None:
    home.parent.chmod(0o500)
    try:
        assert "permission denied" in fails(mpsq, 1, "submit", "toy")
    finally:
        home.parent.chmod(0o700)


def test_newer_schema(mpsq: Cli, home: Path) -> None:
    layout = full_queue(home)
    with sqlite3.connect(layout.db) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    for arguments in (
        ["submit", "toy"],
        ["cancel", "1"],
        ["pause", "1"],
        ["retry", "1"],
        ["status"],
        ["db", "upgrade"],
        ["submit", "--", "true"],
    ):
        complaint = fails(mpsq, 4, *arguments)
        assert "9999" in complaint and "newer" in complaint
        assert "db upgrade" not in complaint  # it would be refused
    ran = mpsq("db", "check")
    assert ran.code == 4 and "schema 9999" in ran.out
    assert "mpsq that made" in ran.err  # an upgrade would be refused


def test_not_a_database(mpsq: Cli, home: Path) -> None:
    layout = empty_queue(home)
    layout.db.write_bytes(b"this is a text and no database at all" * 100)
    for arguments in (["status"], ["submit", "toy"], ["db", "backup"]):
        assert "database" in fails(mpsq, 1, *arguments)
    ran = mpsq("db", "check")
    assert ran.code == 1 and "not a database" in ran.out and "check" not in ran.err and "no backup" in ran.err


def test_a_database_of_somebody_else(mpsq: Cli, home: Path) -> None:
    layout = empty_queue(home)
    layout.db.unlink()
    with sqlite3.connect(layout.db) as connection:
        connection.execute("CREATE TABLE t (x)")
    assert "not made by" in fails(mpsq, 1, "submit", "toy")


def test_broken_settings(mpsq: Cli, home: Path) -> None:
    layout = empty_queue(home)
    layout.config.write_text("grace_int_s = soon\n")
    assert "line 1" in fails(mpsq, 1, "config", "list")


@pytest.mark.parametrize(
    ("number", "said"),
    [(errno.ENOSPC, "the disk is full"), (errno.EACCES, "permission denied"), (errno.EIO, "input/output error")],
)
def test_what_the_system_refuses(mpsq: Cli, monkeypatch: pytest.MonkeyPatch, number: int, said: str) -> None:
    def refuse() -> None:
        raise OSError(number, os.strerror(number), "/some/file")

    monkeypatch.setattr("queue_runner.host.home.ensure_home", refuse)
    complaint = fails(mpsq, 1, "submit", "toy")
    assert said in complaint and "/some/file" in complaint


def test_interrupt(mpsq: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("queue_runner.paths.layout", interrupt)
    assert mpsq("status").code == 130


def test_closed_pipe_is_quiet(home: Path) -> None:
    full_queue(home)
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "queue_runner.cli.main", "list", "--json"],
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writer)
    assert done.stderr == b"" and done.returncode == EXIT_BROKEN_PIPE


@pytest.mark.parametrize("columns", [60, 80])
def test_help_lists_every_command_on_one_screen(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    listed = re.findall(r"^  (\w+)|  {2,}(\w+) +[a-z]", out, re.MULTILINE)
    assert {first or second for first, second in listed} >= set(commands())
    assert not [name for name in ALIASES if re.search(rf"^  {name} ", out, re.MULTILINE)]
    assert max(map(len, out.splitlines())) <= columns
    assert columns < 80 or len(out.splitlines()) <= 24


def test_help_explains_a_command(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert main(["help", "why"]) == 0
    explained = capsys.readouterr().out
    assert main(["why", "--help"]) == 0 and capsys.readouterr().out == explained
    for arguments in (["help"], ["help", "all"], []):
        assert main(arguments) == 0 and capsys.readouterr().out == out
    assert main(["--version"]) == 0 and capsys.readouterr().out.startswith("mpsq ")
    assert main(["db"]) == 0 and "backup" in capsys.readouterr().out


def test_an_alias_is_the_command(mpsq: Cli, home: Path) -> None:
    full_queue(home)
    for alias, name in ALIASES.items():
        assert mpsq.ok(alias, "--help").out == mpsq.ok(name, "--help").out
    assert mpsq.ok("log", "1.1").out == mpsq.ok("logs", "1.1").out


def test_an_old_spelling_names_the_new_one(mpsq: Cli) -> None:
    for old, new in RENAMED.items():
        assert f"mpsq {old} is now mpsq {new}" in fails(mpsq, 2, *old.split(), "1")
        command, *options = new.split()
        usage = mpsq.ok(command, "--help").out
        assert not options or options[0] in usage or (command, options[0]) == ("report", "gallery")


@pytest.mark.parametrize("command", ["run", "judge", "bisect", "contest new", "bench"])
def test_the_help_names_the_options_of_submit_that_a_command_lacks(mpsq: Cli, command: str) -> None:
    text = " ".join(mpsq.ok(*command.split(), "--help").out.split())
    (said,) = re.findall(r"takes what mpsq submit --help lists, except ([^.]*)\.", text)
    lacking = {"--from", "--dry-run"} - ({"--dry-run"} if command == "bench" else set())
    for option in lacking:
        assert f"no such option: {option}" in fails(mpsq, 2, *command.split(), option, "x")
    refused = {"run": ["hold"], "bench": []}.get(command, request.REFUSED)
    assert {*re.findall("--[a-z-]+", said)} == lacking | {OPTIONS[name].flag for name in refused}


def test_the_options_of_judge_and_contest_stay_with_them(mpsq: Cli) -> None:
    line = "mpsq judge --champion a --candidate b -- python train.py --seed 3 --device cpu\n"
    judge = "judge python train.py --champion a --seed 3 --device cpu --candidate b"
    assert f"after --: {line}" in mpsq(*judge.split()).err
    for more in ("", " --lr 3"):
        refused = mpsq(*f"contest new night --champion HEAD python train.py --json{more}".split())
        line = f"mpsq contest new night --champion HEAD --json -- python train.py{more}\n"
        assert refused.code == 2 and f"after --: {line}" in refused.err


def test_no_command_is_missing_from_the_reference() -> None:
    from tests.cli_reference import EXIT_CODES, reference
    from tests.cli_support import ROOT

    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert page == reference(), "run make docs"
    assert set(EXIT_CODES) >= {0, 1, 2, 3, 4, 75, 124, 130}
