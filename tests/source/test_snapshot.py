"""Source trees: what counts, what is left out, and that what is snapshots is what was there. Real git, real files."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from queue_runner.config_file import Config
from queue_runner.errors import MpsqError
from queue_runner.host.child import Child
from queue_runner.model import Outcome
from queue_runner.source import archive, git_commands, rules, scan, snapshot, verify, working_copy
from queue_runner.source.scan import Entry, SourceTree, of_repository
from queue_runner.spec import JobSpec
from tests.process_support import is_there, until

pytestmark = [pytest.mark.process, pytest.mark.needs_program("git")]


def git(root: Path, *arguments: str) -> None:
    command = ["git", "-C", str(root), "-c", "protocol.file.allow=always", *arguments]
    subprocess.run(command, check=True, capture_output=True)


def repository(root: Path, **files: str) -> Path:
    root.mkdir(parents=True)
    git(root, "init", "-q", "-b", "main")
    with (root / ".git" / "config").open("a") as config:
        config.write("[user]\n\tname = A\n\temail = a@example.com\n[gc]\n\tauto = 0\n")
    for name, text in files.items():
        (root / f"{name}.py").write_text(text)
    git(root, "add", "-A")
    git(root, "commit", "-q", "--allow-empty", "-m", "first")
    return root


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return repository(tmp_path / "code", a="a = 1\n", b="b = 1\n")


@pytest.fixture
def snapshots(tmp_path: Path) -> Path:
    return tmp_path / "snapshots"


NOT_CODE = Config().not_code


def take(cwd: Path, snapshots: Path, *, copy: bool = False) -> snapshot.Taken:
    return snapshot.of_command(cwd, snapshots, copy=copy, allow_changed=False, not_code=NOT_CODE)


def test_a_commit_is_stored_without_a_change_in_the_repository(repo: Path, snapshots: Path) -> None:
    """It is the tree that the folder had: a run of it gets a copy, with links to what git ignores in the folder."""
    (repo / "part").mkdir()
    (repo / "part" / "c.py").write_text("c = 1\n")
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "second")
    whole = take(repo, snapshots)
    first, second = (git_commands.commit_of(repo, name) for name in ("HEAD~1", "main"))
    (repo / "a.py").write_text("a = 2\n")
    before = {path: path.read_bytes() for path in (repo / ".git").rglob("*") if path.is_file()}
    taken = snapshot.of_commit(repo, second, snapshots, not_code=NOT_CODE)
    assert taken.snapshot is not None and whole.snapshot is not None
    assert (taken.snapshot.tree_hash, taken.code) == (whole.snapshot.tree_hash, whole.code)
    assert taken.snapshot.revision is not None
    assert (taken.snapshot.revision.commit, taken.snapshot.revision.dirty) == (second, False)
    assert (taken.root, taken.inside) == (str(repo), ".")
    assert snapshot.of_commit(repo / "part", second, snapshots, not_code=NOT_CODE).inside == "part"
    with pytest.raises(MpsqError, match="has no folder part"):
        snapshot.of_commit(repo / "part", first, snapshots, not_code=NOT_CODE)
    with pytest.raises(MpsqError, match="cannot be copied"):
        snapshot.of_commit(repo, "0" * 40, snapshots, not_code=NOT_CODE)
    assert before == {path: path.read_bytes() for path in (repo / ".git").rglob("*") if path.is_file()}
    assert not list(snapshots.glob(".partial-*"))


def submitted(cwd: Path, snapshots: Path, *, copy: bool = False) -> JobSpec:
    """The spec of a job that was submitted there."""
    taken = take(cwd, snapshots, copy=copy)
    assert taken.snapshot is not None and taken.snapshot.tree_hash
    tree = taken.snapshot.tree_hash
    return JobSpec("command", "x", copy=copy, cwd=str(cwd), tree=tree, root=taken.root, inside=taken.inside)


def changes(spec: JobSpec, snapshots: Path) -> list[str]:
    return [f"{path} {what}" for path, what in verify.compare(snapshots, spec, NOT_CODE)[1]]


def look(spec: JobSpec, snapshots: Path, *, copied: bool = False) -> verify.StartCode:
    return verify.look(snapshots, spec, NOT_CODE, copied=copied)


def make_copy(snapshots: Path, spec: JobSpec, target: Path) -> Path:
    """Copy the tree as the worker does."""
    code = look(spec, snapshots, copied=True)
    assert code.copy is not None, code.refusal
    return working_copy.make(snapshots, spec, target, code.copy)


def content(root: Path) -> dict[str, tuple[str, bytes]]:
    """Everything below a folder but .git: kind and bytes by name."""
    found = {}
    for path in root.rglob("*"):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = ("link", os.fsencode(path.readlink()))
        elif path.is_file() and not name.startswith(".git/"):
            found[name] = ("program" if path.stat().st_mode & 0o100 else "file", path.read_bytes())
    return found


def make_awkward(root: Path) -> None:
    """Names, kinds and states that a simple reader gets wrong."""
    for name in (b"new\nline.py", b'"quoted".py', b"caf\xe9.py", b" blank .py", b"-dash.py", "ü.py".encode()):
        (root / os.fsdecode(name)).write_bytes(name)
    (root / "deep" / "er").mkdir(parents=True)
    (root / "deep" / "er" / "run.sh").write_text("#!/bin/sh\n")
    (root / "deep" / "er" / "run.sh").chmod(0o755)
    (root / "link").symlink_to("deep/er")
    (root / "nowhere").symlink_to("not/there")
    (root / "empty.py").write_text("")


def test_content_alone_decides(repo: Path, tmp_path: Path) -> None:
    """Staged, committed, cloned, touched: the same tree. Another byte, another mode: another one."""
    make_awkward(repo)
    (repo / "a.py").write_text("a = 2\n")
    seen = of_repository(repo)
    (repo / "results.csv").write_text("1")
    assert of_repository(repo).code(NOT_CODE) == seen.code(NOT_CODE) and of_repository(repo).hash != seen.hash
    (repo / "results.csv").unlink()
    assert len(seen.entries) == 12 and set(seen.changed) == set(seen.entries) - {"b.py"} and seen.dirty
    git(repo, "add", "-A")
    assert of_repository(repo / "deep").hash == seen.hash
    git(repo, "commit", "-q", "-m", "second")
    committed = of_repository(repo)
    assert committed.hash == seen.hash and not committed.changed and not committed.dirty
    os.utime(repo / "a.py", (1, 1))
    git(tmp_path, "clone", "-q", str(repo), "clone")
    git(repo, "worktree", "add", "-q", str(tmp_path / "worktree"))
    for place in (repo, tmp_path / "clone", tmp_path / "worktree"):
        assert of_repository(place).hash == seen.hash, place
    (repo / "a.py").chmod(0o755)
    assert of_repository(repo).hash != seen.hash


def test_a_change_within_the_same_tick_of_the_clock_is_seen(repo: Path) -> None:
    before = of_repository(repo).hash
    status = (repo / "a.py").stat()
    (repo / "a.py").write_text("a = 9\n")
    os.utime(repo / "a.py", ns=(status.st_atime_ns, status.st_mtime_ns))
    git(repo, "update-index", "--assume-unchanged", "b.py")
    assert of_repository(repo).hash != before
    (repo / "a.py").write_text("a = 1\n")
    assert of_repository(repo).hash == before
    (repo / "b.py").write_text("b = 9\n")  # git was told not to look
    assert of_repository(repo).hash != before


def test_states_of_the_index(repo: Path) -> None:
    clean = of_repository(repo).hash
    (repo / "a.py").write_text("a = 2\n")
    git(repo, "add", "a.py")
    (repo / "a.py").write_text("a = 1\n")  # staged otherwise than on the disk: the disk counts
    tree = of_repository(repo)
    assert tree.hash == clean and not tree.changed and not tree.dirty
    git(repo, "reset", "-q")
    git(repo, "rm", "-q", "--cached", "a.py")
    assert of_repository(repo).hash == clean and not of_repository(repo).entries["a.py"].tracked
    (repo / "a.py").unlink()
    assert set(of_repository(repo).entries) == {"b.py"}
    (repo / "c.py").write_text("c")
    git(repo, "add", "-N", "c.py")
    assert of_repository(repo).entries["c.py"].tracked


def test_before_the_first_commit(tmp_path: Path, snapshots: Path) -> None:
    root = tmp_path / "young"
    root.mkdir()
    git(root, "init", "-q")
    (root / "a.py").write_text("a")
    (root / "b.py").write_text("b")
    git(root, "add", "a.py")
    tree = of_repository(root)
    assert (tree.commit, set(tree.changed), set(tree.entries)) == ("", {"a.py", "b.py"}, {"a.py", "b.py"})
    spec = submitted(root, snapshots)
    (root / "a.py").write_text("c")
    assert changes(spec, snapshots) == ["a.py changed"]
    make_copy(snapshots, spec, tmp_path / "copy")
    assert (tmp_path / "copy" / "a.py").read_text() == "a"


def test_what_is_left_out(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MAX_FILE_BYTES", 1000)
    repository(tmp_path / "other", x="x")
    git(repo, "submodule", "add", "-q", str(tmp_path / "other"), "sub")
    repository(repo / "nested", y="y")
    for name in ("venv/pyvenv.cfg", "venv/lib/x.py", "__pycache__/a.pyc", ".DS_Store", ".env", "keys/id_rsa", "x.PEM"):
        (repo / name).parent.mkdir(parents=True, exist_ok=True)
        (repo / name).write_text("x")
    (repo / "data.bin").write_text("x" * 1001)
    os.mkfifo(repo / "fifo")
    (repo / "a.py").unlink()
    os.mkfifo(repo / "a.py")
    tree = of_repository(repo)
    assert set(tree.entries) == {"b.py", ".gitmodules"}
    assert {name: reason.split()[-1] for name, reason in tree.left_out.items()} == {
        "a.py": "file",
        "sub": "submodule",
        "nested/": "own",
        "venv/": "environment",
        ".env": "secret",
        "keys/id_rsa": "secret",
        "x.PEM": "secret",
        "data.bin": "MiB",
    }


def test_a_sparse_checkout_is_what_is_there(repo: Path) -> None:
    for name in ("one", "two"):
        (repo / name).mkdir()
        (repo / name / "x.py").write_text(name)
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "folders")
    git(repo, "sparse-checkout", "set", "one")
    tree = of_repository(repo)
    assert set(tree.entries) == {"a.py", "b.py", "one/x.py"} and not tree.dirty


@pytest.mark.parametrize("trusted", [False, True])
def test_a_tracked_folder_that_became_a_link(trusted: bool, repo: Path, snapshots: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (repo / name).mkdir()
        (repo / name / "x.py").write_text("x")
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "folders")
    spec = submitted(repo, snapshots)
    if trusted:
        git(repo, "update-index", "--assume-unchanged", "two/x.py")
    shutil.rmtree(repo / "two")
    (repo / "two").symlink_to("one")
    assert set(of_repository(repo).entries) == {"a.py", "b.py", "one/x.py", "two"}
    assert changes(spec, snapshots) == ["two/x.py was removed"]
    make_copy(snapshots, submitted(repo, snapshots), tmp_path / "copy")
    assert content(tmp_path / "copy") == content(repo)


def test_a_copy_that_is_too_large(repo: Path, snapshots: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MAX_TREE_BYTES", 10)
    with pytest.raises(MpsqError, match="too much to copy for each run"):
        submitted(repo, snapshots, copy=True)
    taken = take(repo, snapshots)
    assert taken.snapshot is None and "unchecked" in taken.notes[0]


def test_line_ends_are_those_of_the_disk_in_a_copy_and_gits_in_a_hash(
    repo: Path, snapshots: Path, tmp_path: Path
) -> None:
    (repo / ".gitattributes").write_text("*.py text eol=crlf\n")
    (repo / "crlf.py").write_bytes(b"x\r\ny\r\n")
    (repo / "Icon\r").touch()  # a Mac's, which the list that git reads cannot name
    before = of_repository(repo)
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "crlf")
    assert of_repository(repo).hash == before.hash
    make_copy(snapshots, submitted(repo, snapshots), tmp_path / "copy")
    assert (tmp_path / "copy" / "crlf.py").read_bytes() == b"x\r\ny\r\n"


def test_what_is_kept_is_what_was_there(repo: Path, snapshots: Path, tmp_path: Path) -> None:
    git(repo, "rm", "-q", "b.py")
    (repo / "c.py").write_text("c = 1\n")
    git(repo, "add", "c.py")
    git(repo, "commit", "-q", "-m", "c")
    make_awkward(repo)
    (repo / "a.py").write_bytes(b"\xff\0\r\n")
    was = content(repo)
    spec = submitted(repo / "deep", snapshots)
    again = submitted(repo / "deep", snapshots, copy=True)
    assert again.tree == spec.tree
    for name in ("a.py", "c.py", "empty.py"):
        (repo / name).unlink()
    cwd = make_copy(snapshots, spec, tmp_path / "copy")
    assert content(tmp_path / "copy") == was and cwd == tmp_path / "copy" / "deep"
    assert not list(snapshots.rglob(".partial*"))


def test_links_lead_where_they_led(repo: Path, snapshots: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (repo / "deep").mkdir()
    (repo / "out").symlink_to("../data")
    (repo / "deep" / "out").symlink_to("../../data")
    (repo / "inside").symlink_to(repo / "a.py")
    (repo / "etc").symlink_to("/etc")
    copy = tmp_path / "elsewhere" / "deeper" / "copy"
    copy.parent.mkdir(parents=True)
    make_copy(snapshots, submitted(repo, snapshots), copy)
    assert (copy / "out").resolve() == (copy / "deep" / "out").resolve() == tmp_path / "data"
    assert (copy / "inside").resolve() == copy / "a.py" and (copy / "etc").readlink() == Path("/etc")


def test_the_end_of_a_copy(repo: Path, snapshots: Path, tmp_path: Path) -> None:
    spec = submitted(repo, snapshots, copy=True)
    quiet, busy = tmp_path / "quiet", tmp_path / "busy"
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.py").write_text("mine")
    os.utime(outside / "a.py", (working_copy.WRITTEN_AT_S,) * 2)
    for copy in (quiet, busy):
        make_copy(snapshots, spec, copy)
        (copy / "__pycache__").mkdir()
        (copy / "__pycache__" / "a.cpython-311.pyc").touch()
    (busy / "b.py").write_text("changed")
    (busy / "out").mkdir()
    (busy / "out" / "model.pt").touch()
    for copy in (quiet, busy):
        working_copy.tidy(snapshots, spec, copy)
    assert not quiet.exists() and set(content(busy)) == {"b.py", "out/model.pt"}
    (tmp_path / "link").symlink_to(outside)
    working_copy.tidy(snapshots, spec, tmp_path / "link")
    assert (outside / "a.py").exists()


def test_a_folder_that_a_job_swaps_for_a_link_is_not_followed(repo: Path, snapshots: Path, tmp_path: Path) -> None:
    (repo / "deep").mkdir()
    (repo / "deep" / "x.py").write_text("x")
    spec = submitted(repo, snapshots, copy=True)
    copy, other = tmp_path / "copy", tmp_path / "other"
    make_copy(snapshots, spec, copy)
    shutil.move(copy / "deep", other)
    (copy / "deep").symlink_to(other)
    working_copy.tidy(snapshots, spec, copy)
    assert (other / "x.py").exists() and not (copy / "a.py").exists()


def _as_it_was(_: Path) -> None: ...


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (_as_it_was, []),
        (lambda r: (r / "a.py").write_text("x"), ["a.py changed"]),
        (lambda r: (r / "a.py").unlink(), ["a.py was removed"]),
        (lambda r: (r / "a.py").chmod(0o755), ["a.py changed"]),
        (lambda r: (r / "conf.json").write_text("x"), ["conf.json changed"]),
        (lambda r: (r / "new.py").write_text("x"), ["new.py was added"]),
        (lambda r: (r / "results.json").write_text("x"), []),  # a job's own
        (lambda r: (r / "log.txt").write_text("more"), []),
        (lambda r: (r / "log.txt").unlink(), []),
        (lambda r: (r / "results.json").write_text("x") and git(r, "add", "."), ["results.json was added"]),
        (lambda r: (r / ".gitignore").write_text("*\n") and (r / "conf.json").write_text("x"), ["conf.json changed"]),
        (lambda r: git(r, "add", "conf.json"), []),
        (lambda r: (r / "README.md").write_text("x") and git(r, "add", "."), []),
        (lambda r: (r / "notes.ipynb").write_text("x"), []),
        (lambda r: shutil.rmtree(r / ".git"), []),
        (lambda r: (r / "b.py").write_text("x") and shutil.rmtree(r / ".git"), ["b.py changed"]),
        (lambda r: r.rename(r.with_name("moved")), ["ROOT was removed"]),
    ],
)
def test_what_is_a_change(change: Callable[[Path], object], found: list[str], repo: Path, snapshots: Path) -> None:
    (repo / "conf.json").write_text("{}")
    (repo / "log.txt").write_text("")
    spec = submitted(repo, snapshots)
    change(repo)
    assert changes(spec, snapshots) == [text.replace("ROOT", str(repo)) for text in found]
    code = look(spec, snapshots)
    assert code.refusal is None and (code.copy is not None) == bool(found) == bool(code.note)
    assert look(replace(spec, allow_changed=True), snapshots).copy is None


@pytest.mark.parametrize(("number", "ends"), [(errno.EACCES, True), (errno.ELOOP, True), (errno.ENOMEM, False)])
def test_code_that_cannot_be_read_ends_its_job_and_not_the_queue(
    number: int, ends: bool, repo: Path, snapshots: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = submitted(repo, snapshots)

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number), str(repo))

    monkeypatch.setattr(verify, "compare", refuse)
    if not ends:
        with pytest.raises(OSError, match="memory"):
            look(spec, snapshots)
        return
    refusal = look(spec, snapshots).refusal
    assert refusal is not None and refusal.outcome is Outcome.SPAWN_FAILED
    assert refusal.reason.endswith(f": {os.strerror(number)}: {repo}")


def looked(snapshots: Path, spec: JobSpec) -> verify.StartCode:
    with contextlib.closing(Child()) as reader:
        look = verify.Look(snapshots, spec, NOT_CODE, reader, copied=False)
        code = until(lambda: look.wait(0.1), "an answer")
        assert code is not None
        return code


def test_code_that_does_not_answer_ends_its_job(
    repo: Path, snapshots: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = submitted(repo, snapshots)
    assert looked(snapshots, spec) == verify.StartCode()
    (repo / "b.py").unlink()
    assert looked(snapshots, spec).note == "b.py was removed"
    hanging_git(tmp_path, monkeypatch)
    monkeypatch.setattr(verify, "READ_S", 1.5)
    refusal = looked(snapshots, spec).refusal
    assert refusal is not None and refusal.outcome is Outcome.SPAWN_FAILED
    assert str(repo) in refusal.reason and "within 2 s" in refusal.reason
    until(lambda: not is_there(int((tmp_path / "pid").read_text())), "the end of git")


def test_who_reads_ends_with_a_worker_that_is_killed(
    repo: Path, snapshots: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = submitted(repo, snapshots)
    hanging_git(tmp_path, monkeypatch)
    worker = os.fork()
    if worker == 0:
        try:
            verify.Look(snapshots, spec, NOT_CODE, Child(), copied=False).wait(60)
        finally:
            os._exit(1)
    try:
        git = int(until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "git"))
    finally:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)
    until(lambda: not is_there(git), "the end of git")


def hanging_git(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in that waits for the answer to a privacy prompt; its process id is in the file pid."""
    stand_in = folder / "bin" / "git"
    stand_in.parent.mkdir()
    stand_in.write_text(f"#!/bin/sh\necho $$ > {folder}/pid\nexec sleep 60\n")
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", str(stand_in.parent), prepend=os.pathsep)


def test_many_changes_are_counted(repo: Path, snapshots: Path) -> None:
    spec = submitted(repo, snapshots)
    for number in range(9):
        (repo / f"\x1b[31m{number}.py").write_text("x")
    (repo / "b.py").unlink()
    note = look(spec, snapshots).note
    assert all(x in note for x in ("b.py was removed", ", 0.py was added", ", 1.py was added", "7 more"))
    assert "2.py" not in note


def test_a_tree_that_never_holds_still(repo: Path, snapshots: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = iter(range(100))

    def busy(folder: Path, home: Path) -> SourceTree:
        tree = of_repository(folder, home)
        (repo / "log.json").write_text(str(next(count)))
        return tree

    monkeypatch.setattr(scan, "of_repository", busy)
    with pytest.raises(MpsqError, match="changes while it is copied"):
        submitted(repo, snapshots, copy=True)
    assert not list(snapshots.rglob("content-*"))
    manifest = archive.read_manifest(snapshots, submitted(repo, snapshots).tree)
    assert set(manifest.entries) == {"a.py", "b.py"} and manifest.left_out == ("log.json",)


def test_git_that_is_absent_or_refuses(repo: Path, snapshots: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files are stored as those of a folder outside of a repository."""
    (repo / "sub").mkdir()
    (repo / "sub" / "c.py").touch()
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    for path in (os.environ["PATH"], "/nowhere"):
        monkeypatch.setenv("PATH", path)
        spec = submitted(repo / "sub", snapshots)
        manifest = archive.read_manifest(snapshots, spec.tree)
        assert (spec.root, set(manifest.entries)) == (str(repo), {"a.py", "b.py", "sub/c.py"}) and not manifest.in_git
        assert take(repo, snapshots).snapshot.revision is None
    assert git_commands.revision(repo) is None


def test_a_hook_of_another_repository_does_not_mislead(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository(tmp_path / "other", x="x")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "other" / ".git" / "index"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "other"))
    assert set(of_repository(repo).entries) == {"a.py", "b.py"}


def test_a_folder_outside_of_a_repository(tmp_path: Path, snapshots: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "plain"
    root.mkdir()
    make_awkward(root)
    was = content(root)
    (root / ".env").write_text("secret")
    repository(root / "nested", y="y")
    taken = take(root, snapshots, copy=True)
    assert all(x in str(taken.notes) for x in ("not copied", ".env (may hold", "nested/ (a repository"))
    spec = submitted(root, snapshots)
    assert changes(spec, snapshots) == []
    (root / "new.py").touch()
    assert changes(spec, snapshots) == ["new.py was added"]
    make_copy(snapshots, spec, tmp_path / "copy")
    links = {".env": ("link", os.fsencode(root / ".env")), "nested": ("link", os.fsencode(root / "nested"))}
    assert content(tmp_path / "copy") == was | links
    monkeypatch.setattr(rules, "MAX_FILES", 5)
    with pytest.raises(MpsqError, match="more than 5 files"):
        take(root, snapshots, copy=True)
    note = take(root, snapshots).notes[0]
    assert "than 5 files" in note and "unchecked" in note


@pytest.mark.parametrize("what", ["torn", "empty", "gone", "manifest"])
def test_a_kept_tree_that_is_spoilt(what: str, repo: Path, snapshots: Path, tmp_path: Path) -> None:
    spec = submitted(repo, snapshots, copy=True)
    plan = look(spec, snapshots).copy
    assert plan is not None
    (content_file,) = (snapshots / spec.tree).glob("content-*")
    if what == "torn":
        content_file.write_bytes(content_file.read_bytes()[:9])
    elif what == "empty":
        content_file.write_bytes(b"")
    elif what == "gone":
        content_file.unlink()
    else:
        (snapshots / spec.tree / "manifest.gz").write_bytes(b"\x1f\x8bx")
    with pytest.raises(archive.Damaged):
        working_copy.make(snapshots, spec, tmp_path / "copy", plan)
    assert not (tmp_path / "copy").exists()
    refusal = look(spec, snapshots).refusal
    assert refusal is not None and refusal.outcome is Outcome.CODE_CHANGED
    assert submitted(repo, snapshots) == replace(spec, copy=False)  # stores it again
    make_copy(snapshots, spec, tmp_path / "copy")


def test_two_files_that_have_one_name_here(repo: Path, snapshots: Path, tmp_path: Path) -> None:
    """As two names that differ in case have on a file system that ignores it."""
    spec = submitted(repo, snapshots)
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "a.py").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "mkdir", lambda *_, **__: None)
        with pytest.raises(archive.Damaged, match="no copy of it can be made here: File exists"):
            working_copy.make(snapshots, spec, tmp_path / "copy", working_copy.CopyPlan())


def test_a_queue_that_lives_in_the_tree_is_no_code(repo: Path, tmp_path: Path) -> None:
    home = repo / "queue"
    spec = submitted(repo, home / "snapshots", copy=True)
    (home / "config.toml").write_text("poll_s = 1\n")
    assert changes(spec, home / "snapshots") == []
    assert submitted(repo, home / "snapshots", copy=True).tree == spec.tree
    plain = tmp_path / "plain"
    (plain / "queue").mkdir(parents=True)
    (plain / "x.py").touch()
    first = submitted(plain, plain / "queue" / "snapshots", copy=True)
    assert submitted(plain, plain / "queue" / "snapshots", copy=True).tree == first.tree


def test_a_full_disk_leaves_no_half_of_a_copy(
    repo: Path, snapshots: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    spec = submitted(repo, snapshots)
    monkeypatch.setattr(working_copy, "_write", full)
    with pytest.raises(OSError, match="No space left"):
        make_copy(snapshots, spec, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    monkeypatch.setattr(archive, "_pack", full)
    (repo / "a.py").write_text("other")
    with pytest.raises(OSError, match="No space left"):
        submitted(repo, snapshots)
    assert not list(snapshots.rglob(".partial*"))


def test_the_stored_tree_suffices_without_the_commit(repo: Path, snapshots: Path, tmp_path: Path) -> None:
    was = content(repo)
    spec = submitted(repo, snapshots)
    (repo / "a.py").write_text("a = 2\n")
    git(repo, "commit", "-q", "-a", "--amend", "-m", "amended")
    git(repo, "reflog", "expire", "--expire=now", "--all")
    git(repo, "gc", "-q", "--prune=now")
    make_copy(snapshots, spec, tmp_path / "amended")
    shutil.rmtree(repo)
    make_copy(snapshots, spec, tmp_path / "removed")
    assert content(tmp_path / "amended") == content(tmp_path / "removed") == was


def test_only_what_differs_is_stored_again(repo: Path, snapshots: Path, tmp_path: Path) -> None:
    (repo / "large.py").write_text("x" * 100_000)
    first = submitted(repo, snapshots)
    (repo / "a.py").write_text("a = 2\n")
    second = submitted(repo, snapshots)
    (content_file,) = (snapshots / second.tree).glob("content-*")
    assert content_file.read_text() == "a = 2\n"
    assert archive.needed(snapshots, {second.tree}) == {first.tree, second.tree}
    make_copy(snapshots, second, tmp_path / "copy")
    assert content(tmp_path / "copy") == content(repo)
    shutil.rmtree(snapshots / first.tree)
    refusal = look(replace(second, copy=True), snapshots).refusal
    assert refusal is not None and "was deleted" in refusal.reason
    assert (
        submitted(repo, snapshots).tree == second.tree and look(replace(second, copy=True), snapshots).refusal is None
    )


def test_files_too_large_to_be_stored(
    repo: Path, snapshots: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are linked to, while they are as they were. --snapshot copy stores them."""
    (repo / "weights").write_text("w" * 2000)
    git(repo, "add", "weights")
    monkeypatch.setattr(rules, "MAX_FILE_BYTES", 1000)
    spec = submitted(repo, snapshots)
    make_copy(snapshots, spec, tmp_path / "copy")
    assert (tmp_path / "copy" / "weights").readlink() == repo / "weights"
    working_copy.tidy(snapshots, spec, tmp_path / "copy")
    assert not (tmp_path / "copy").exists() and (repo / "weights").exists()
    whole = submitted(repo, snapshots, copy=True)
    assert whole.tree == spec.tree
    (repo / "weights").write_text("v")
    make_copy(snapshots, whole, tmp_path / "whole")
    assert (tmp_path / "whole" / "weights").read_text() == "w" * 2000
    (repo / "b.py").write_text("b = 2")
    later = submitted(repo, snapshots)
    (repo / "weights").write_text("u" * 2000)
    git(repo, "add", "weights")
    later = submitted(repo, snapshots)
    (repo / "weights").write_text("t" * 2000)
    note = look(later, snapshots).note
    assert "weights changed" in note and "too large" in note
    make_copy(snapshots, later, tmp_path / "later")
    assert (tmp_path / "later" / "weights").read_text() == "t" * 2000


def test_ignored_entries_are_links_in_a_copy(repo: Path, snapshots: Path, tmp_path: Path) -> None:
    (repo / ".gitignore").write_text("data/\n*.pt\n__pycache__/\n")
    for name in (
        "data/deep/x.bin",
        "out/a.pt",
        "no/w/b.pt",
        "last.pt",
        "__pycache__/a.pyc",
        "pkg/__pycache__/m.pyc",
        "pkg/m.py",
    ):
        (repo / name).parent.mkdir(parents=True, exist_ok=True)
        (repo / name).write_text(name)
    spec, copy = submitted(repo, snapshots), tmp_path / "copy"
    make_copy(snapshots, spec, copy)
    links = {str(path.relative_to(copy)): path.readlink() for path in copy.rglob("*") if path.is_symlink()}
    assert links == {name: repo / name for name in ("data", "out/a.pt", "no/w/b.pt", "last.pt")}
    assert not list(copy.rglob("__pycache__"))
    (copy / "data" / "new.bin").write_text("written")
    (copy / "out" / "b.json").write_text("written")
    working_copy.tidy(snapshots, spec, copy)
    assert {str(path.relative_to(copy)) for path in copy.rglob("*")} == {"out", "out/b.json"}
    assert (repo / "data" / "new.bin").exists() and (repo / "last.pt").exists()


@pytest.mark.parametrize("is_link", [False, True])
def test_nothing_is_linked_below_a_file_or_a_link_of_the_copy(
    is_link: bool, repo: Path, snapshots: Path, tmp_path: Path
) -> None:
    """It would be made in the folder that the link leads to, or hold up the queue: a retry finds the same."""
    disk = tmp_path / "disk"
    disk.mkdir()
    (repo / ".gitignore").write_text("*.bin\n")
    if is_link:
        (repo / "data").symlink_to(disk)
    else:
        (repo / "data").write_text("data")
    spec = submitted(repo, snapshots)
    (repo / "data").unlink()
    (repo / "data" / "deep").mkdir(parents=True)
    for folder in (repo / "data", repo / "data" / "deep"):
        (folder / "x.bin").touch()
    make_copy(snapshots, spec, tmp_path / "copy")
    assert (tmp_path / "copy" / "data").is_symlink() == is_link and not list(disk.iterdir())


def test_a_folder_that_git_does_not_list_is_a_tree_of_its_own(repo: Path, snapshots: Path) -> None:
    (repo / ".gitignore").write_text("try/\n")
    (repo / "try").mkdir()
    (repo / "try" / "train.py").write_text("1")
    spec = submitted(repo / "try", snapshots)
    assert (spec.root, spec.inside) == (str(repo / "try"), ".")
    (repo / "try" / "train.py").write_text("2")
    assert changes(spec, snapshots) == ["train.py changed"]
    copy = repo / "copy"
    make_copy(snapshots, spec, copy)
    (copy / "result").touch()
    working_copy.return_ignored(snapshots, spec, copy)
    assert (copy / "result").exists()


def test_paths_of_a_copy(tmp_path: Path) -> None:
    spec = JobSpec("command", "x", cwd="/code/sub", root="/code", inside="sub", copy=True)
    copy = tmp_path / "copy"
    plan = working_copy.CopyPlan(imports=("lib",))
    path = "/code/src:/other::rel:/code"
    assert working_copy.python_path(path, spec, plan, copy) == f"{copy}/lib:{copy}/src:/other::rel:{copy}"
    assert working_copy.python_path("", spec, plan, copy) == f"{copy}/lib"
    content = {"sub/run": Entry(("100755", "0"), True)}
    tree = SourceTree(tmp_path, content, {})
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "run").touch()
    archive.store(tmp_path, tree, lambda: True, with_large=False)
    for words, expected in (
        (("./run", "x"), ["./run", "x"]),
        ((".venv/bin/python", "x"), ["/code/sub/.venv/bin/python", "x"]),
        (("python", "{cwd}/run"), ["python", "/code/sub/run"]),
        (("{cwd}/bin/x", "/code/sub/run"), ["/code/sub/bin/x", f"{copy}/sub/run"]),
        (("x", "--config=/code/sub/run"), ["x", f"--config={copy}/sub/run"]),
        (("x", "/code/out", "--out=/code/sub"), ["x", "/code/out", "--out=/code/sub"]),
    ):
        job = replace(spec, argv=words, tree=tree.hash)
        plan = working_copy.CopyPlan(real=working_copy.real_folders(job))
        assert working_copy.command(tmp_path, job, copy, plan) == expected


@pytest.mark.parametrize(
    "path", [".env", ".env.local", "a/.ENV", ".envs/x", "k.pem", "id_rsa", "x/id_ed25519.pub", ".netrc", "server.KEY"]
)
def test_secrets(path: str) -> None:
    assert rules.is_secret(path)


@pytest.mark.parametrize("path", ["env.py", "environment.yml", "identity.py", "pem.py", "a.keys.py", "src/netrc.py"])
def test_no_secrets(path: str) -> None:
    assert not rules.is_secret(path)
