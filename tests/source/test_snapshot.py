"""Source trees: what counts, what is left out, and that what is kept is what was there. Real git, real files."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from queue_runner.errors import MpsqError
from queue_runner.host.child import Child
from queue_runner.model import Ending, Outcome
from queue_runner.source import archive, git_commands, rules, scan, snapshot, verify, working_copy
from queue_runner.source.scan import SourceTree, of_repository
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
def kept(tmp_path: Path) -> Path:
    return tmp_path / "snapshots"


def submitted(cwd: Path, kept: Path, *, copy: bool = False) -> JobSpec:
    """The spec of a job that was submitted there."""
    taken = snapshot.of_command(cwd, kept, copy=copy, allow_changed=False)
    assert taken.snapshot is not None and taken.snapshot.tree_hash
    tree = taken.snapshot.tree_hash
    return JobSpec("command", "x", copy=copy, cwd=str(cwd), tree=tree, root=taken.root, inside=taken.inside)


def changes(spec: JobSpec, kept: Path) -> list[str]:
    return verify.differences(kept, spec)


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
    assert of_repository(repo).code == seen.code and of_repository(repo).hash != seen.hash
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


def test_before_the_first_commit(tmp_path: Path, kept: Path) -> None:
    root = tmp_path / "young"
    root.mkdir()
    git(root, "init", "-q")
    (root / "a.py").write_text("a")
    (root / "b.py").write_text("b")
    git(root, "add", "a.py")
    tree = of_repository(root)
    assert (tree.commit, set(tree.changed), set(tree.entries)) == ("", {"a.py", "b.py"}, {"a.py", "b.py"})
    spec = submitted(root, kept)
    (root / "a.py").write_text("c")
    assert changes(spec, kept) == ["a.py changed"]
    archive.rebuild_whole(kept, spec.tree, root)
    working_copy.make(kept, spec, tmp_path / "copy")
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
def test_a_tracked_folder_that_became_a_link(trusted: bool, repo: Path, kept: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (repo / name).mkdir()
        (repo / name / "x.py").write_text("x")
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "folders")
    spec = submitted(repo, kept)
    if trusted:
        git(repo, "update-index", "--assume-unchanged", "two/x.py")
    shutil.rmtree(repo / "two")
    (repo / "two").symlink_to("one")
    assert set(of_repository(repo).entries) == {"a.py", "b.py", "one/x.py", "two"}
    assert changes(spec, kept) == ["two/x.py was removed"]
    working_copy.make(kept, submitted(repo, kept, copy=True), tmp_path / "copy")
    assert content(tmp_path / "copy") == content(repo)


def test_a_copy_that_is_too_large(repo: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MAX_TREE_BYTES", 10)
    with pytest.raises(MpsqError, match="every run would copy it"):
        submitted(repo, kept, copy=True)
    assert submitted(repo, kept).tree


def test_line_ends_are_those_of_the_disk_in_a_copy_and_gits_in_a_hash(repo: Path, kept: Path, tmp_path: Path) -> None:
    (repo / ".gitattributes").write_text("*.py text eol=crlf\n")
    (repo / "crlf.py").write_bytes(b"x\r\ny\r\n")
    before = of_repository(repo)
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "crlf")
    assert of_repository(repo).hash == before.hash
    spec = submitted(repo, kept)
    archive.rebuild_whole(kept, spec.tree, repo)  # from the commit alone
    working_copy.make(kept, spec, tmp_path / "copy")
    assert (tmp_path / "copy" / "crlf.py").read_bytes() == b"x\r\ny\r\n"


@pytest.mark.parametrize("how", ["copied", "rebuilt"])
def test_what_is_kept_is_what_was_there(how: str, repo: Path, kept: Path, tmp_path: Path) -> None:
    git(repo, "rm", "-q", "b.py")
    (repo / "c.py").write_text("c = 1\n")
    git(repo, "add", "c.py")
    git(repo, "commit", "-q", "-m", "c")
    make_awkward(repo)
    (repo / "a.py").write_bytes(b"\xff\0\r\n")
    was = content(repo)
    spec = submitted(repo / "deep", kept, copy=how == "copied")
    again = submitted(repo / "deep", kept, copy=how == "copied")
    assert again.tree == spec.tree
    for name in ("a.py", "c.py", "empty.py"):
        (repo / name).unlink()
    if how == "rebuilt":
        archive.rebuild_whole(kept, spec.tree, repo)
    cwd = working_copy.make(kept, spec, tmp_path / "copy")
    assert content(tmp_path / "copy") == was and cwd == tmp_path / "copy" / "deep"
    assert not list(kept.rglob(".partial*"))


def test_links_lead_where_they_led(repo: Path, kept: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (repo / "deep").mkdir()
    (repo / "out").symlink_to("../data")
    (repo / "deep" / "out").symlink_to("../../data")
    (repo / "inside").symlink_to(repo / "a.py")
    (repo / "etc").symlink_to("/etc")
    copy = tmp_path / "elsewhere" / "deeper" / "copy"
    copy.parent.mkdir(parents=True)
    working_copy.make(kept, submitted(repo, kept, copy=True), copy)
    assert (copy / "out").resolve() == (copy / "deep" / "out").resolve() == tmp_path / "data"
    assert (copy / "inside").resolve() == copy / "a.py" and (copy / "etc").readlink() == Path("/etc")


def test_the_end_of_a_copy(repo: Path, kept: Path, tmp_path: Path) -> None:
    spec = submitted(repo, kept, copy=True)
    quiet, busy = tmp_path / "quiet", tmp_path / "busy"
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.py").write_text("mine")
    os.utime(outside / "a.py", (working_copy.WRITTEN_AT_S,) * 2)
    for copy in (quiet, busy):
        working_copy.make(kept, spec, copy)
        (copy / "__pycache__").mkdir()
        (copy / "__pycache__" / "a.cpython-311.pyc").touch()
    (busy / "b.py").write_text("changed")
    (busy / "out").mkdir()
    (busy / "out" / "model.pt").touch()
    for copy in (quiet, busy):
        working_copy.tidy(kept, spec, copy)
    assert not quiet.exists() and set(content(busy)) == {"b.py", "out/model.pt"}
    (tmp_path / "link").symlink_to(outside)
    working_copy.tidy(kept, spec, tmp_path / "link")
    assert (outside / "a.py").exists()


def test_a_folder_that_a_job_swaps_for_a_link_is_not_followed(repo: Path, kept: Path, tmp_path: Path) -> None:
    (repo / "deep").mkdir()
    (repo / "deep" / "x.py").write_text("x")
    spec = submitted(repo, kept, copy=True)
    copy, other = tmp_path / "copy", tmp_path / "other"
    working_copy.make(kept, spec, copy)
    shutil.move(copy / "deep", other)
    (copy / "deep").symlink_to(other)
    working_copy.tidy(kept, spec, copy)
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
        (lambda r: shutil.rmtree(r / ".git"), []),
        (lambda r: (r / "b.py").write_text("x") and shutil.rmtree(r / ".git"), ["b.py changed"]),
        (lambda r: r.rename(r.with_name("moved")), ["ROOT was removed"]),
    ],
)
def test_what_is_a_change(change: Callable[[Path], object], found: list[str], repo: Path, kept: Path) -> None:
    (repo / "conf.json").write_text("{}")
    (repo / "log.txt").write_text("")
    spec = submitted(repo, kept)
    change(repo)
    assert changes(spec, kept) == [text.replace("ROOT", str(repo)) for text in found]
    refusal = verify.refusal(kept, spec)
    assert (refusal is not None and refusal.outcome is Outcome.CODE_CHANGED) == bool(found)
    assert verify.refusal(kept, replace(spec, allow_changed=True)) is None


@pytest.mark.parametrize(("number", "ends"), [(errno.EACCES, True), (errno.ELOOP, True), (errno.ENOMEM, False)])
def test_code_that_cannot_be_read_ends_its_job_and_not_the_queue(
    number: int, ends: bool, repo: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = submitted(repo, kept)

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number), str(repo))

    monkeypatch.setattr(verify, "differences", refuse)
    if not ends:
        with pytest.raises(OSError, match="memory"):
            verify.refusal(kept, spec)
        return
    refusal = verify.refusal(kept, spec)
    assert refusal is not None and refusal.outcome is Outcome.SPAWN_FAILED
    assert refusal.reason == f"its code cannot be read: {os.strerror(number)}: {repo}"


def looked(kept: Path, spec: JobSpec) -> Ending | None:
    with contextlib.closing(Child()) as reader, contextlib.closing(verify.Look(kept, spec, reader)) as look:
        found = until(lambda: look.wait(0.1), "an answer")
        assert found is not None
        return found.refusal


def test_code_that_does_not_answer_ends_its_job(
    repo: Path, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = submitted(repo, kept)
    assert looked(kept, spec) is None
    (repo / "b.py").unlink()
    refusal = looked(kept, spec)
    assert refusal is not None and (refusal.outcome, refusal.reason) == (Outcome.CODE_CHANGED, "b.py was removed")
    hanging_git(tmp_path, monkeypatch)
    monkeypatch.setattr(verify, "READ_S", 1.5)
    refusal = looked(kept, spec)
    assert refusal is not None and refusal.outcome is Outcome.SPAWN_FAILED
    assert f"its code in {repo} could not be read within 2 s" in refusal.reason
    until(lambda: not is_there(int((tmp_path / "pid").read_text())), "the end of git")


def test_who_reads_ends_with_a_worker_that_is_killed(
    repo: Path, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = submitted(repo, kept)
    hanging_git(tmp_path, monkeypatch)
    worker = os.fork()
    if worker == 0:
        try:
            verify.Look(kept, spec, Child()).wait(60)
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


def test_many_changes_are_counted(repo: Path, kept: Path) -> None:
    spec = submitted(repo, kept)
    for number in range(9):
        (repo / f"\x1b[31m{number}.py").write_text("x")
    (repo / "b.py").unlink()
    refusal = verify.refusal(kept, spec)
    assert refusal is not None
    assert refusal.reason == "b.py was removed, 0.py was added, 1.py was added and 7 more"


def test_a_tree_that_never_holds_still(repo: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = iter(range(100))

    def busy(folder: Path, home: Path) -> SourceTree:
        tree = of_repository(folder, home)
        (repo / "log.json").write_text(str(next(count)))
        return tree

    monkeypatch.setattr(scan, "of_repository", busy)
    with pytest.raises(MpsqError, match="changes while it is copied"):
        submitted(repo, kept, copy=True)
    assert not list(kept.rglob("*.tar"))
    spec = submitted(repo, kept)
    assert archive.read_manifest(kept, spec.tree).missing == ("log.json",)
    with pytest.raises(archive.Damaged, match=r"log\.json could not be stored"):
        archive.rebuild_whole(kept, spec.tree, repo)


def test_git_that_is_absent_or_refuses(repo: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    taken = snapshot.of_command(repo, kept, copy=False, allow_changed=False)
    assert taken.snapshot is None and "detected dubious ownership" in taken.notes[0]
    monkeypatch.setenv("PATH", "/nowhere")
    taken = snapshot.of_command(repo, kept, copy=False, allow_changed=False)
    assert taken.snapshot is None and "git is not installed" in taken.notes[0]
    with pytest.raises(MpsqError, match="git is not installed"):
        snapshot.of_command(repo, kept, copy=True, allow_changed=False)
    assert git_commands.revision(repo) is None and not kept.exists()


def test_a_hook_of_another_repository_does_not_mislead(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository(tmp_path / "other", x="x")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "other" / ".git" / "index"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "other"))
    assert set(of_repository(repo).entries) == {"a.py", "b.py"}


def test_a_folder_outside_of_a_repository(tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "plain"
    root.mkdir()
    make_awkward(root)
    was = content(root)
    (root / ".env").write_text("secret")
    repository(root / "nested", y="y")
    taken = snapshot.of_command(root, kept, copy=False, allow_changed=False)
    assert taken.snapshot is None and "cannot be detected outside of a git repository" in taken.notes[0]
    taken = snapshot.of_command(root, kept, copy=True, allow_changed=False)
    assert "not in the copy: .env (may hold a secret), nested/ (a repository of its own)" in taken.notes
    working_copy.make(kept, submitted(root, kept, copy=True), tmp_path / "copy")
    assert content(tmp_path / "copy") == was
    monkeypatch.setattr(rules, "MAX_FILES", 5)
    with pytest.raises(MpsqError, match="more than 5 files"):
        submitted(root, kept, copy=True)


@pytest.mark.parametrize("what", ["torn", "empty", "no tar", "gone", "twice", "manifest"])
def test_a_kept_tree_that_is_spoilt(what: str, repo: Path, kept: Path, tmp_path: Path) -> None:
    spec = submitted(repo, kept, copy=True)
    tar = kept / spec.tree / "tree.tar"
    if what == "torn":
        tar.write_bytes(tar.read_bytes()[:600])
    elif what == "empty":
        tarfile.open(tar, "w").close()
    elif what == "no tar":
        tar.write_bytes(b"x" * 2000)
    elif what == "gone":
        tar.unlink()
    elif what == "twice":  # as two names that differ in case are to a file system that ignores it
        with tarfile.open(tar, "a") as stored:
            stored.addfile(tarfile.TarInfo("a.py"))
    else:
        (kept / spec.tree / "manifest.gz").write_bytes(b"\x1f\x8bx")
    with pytest.raises(archive.Damaged):
        working_copy.make(kept, spec, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


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
    repo: Path, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    spec = submitted(repo, kept, copy=True)
    monkeypatch.setattr(working_copy.shutil, "copyfileobj", full)
    with pytest.raises(OSError, match="No space left"):
        working_copy.make(kept, spec, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    monkeypatch.setattr(archive, "_add", full)
    (repo / "a.py").write_text("other")
    with pytest.raises(OSError, match="No space left"):
        submitted(repo, kept, copy=True)
    assert not list(kept.rglob(".partial*"))


def test_a_commit_that_is_gone(repo: Path, kept: Path) -> None:
    spec = submitted(repo, kept)
    git(repo, "checkout", "-q", "--orphan", "new")
    git(repo, "rm", "-q", "-rf", ".")
    git(repo, "branch", "-D", "main")
    git(repo, "reflog", "expire", "--expire=now", "--all")
    git(repo, "gc", "-q", "--prune=now")
    with pytest.raises(archive.Damaged, match="git cannot restore it"):
        archive.rebuild_whole(kept, spec.tree, repo)
    assert not archive.has_whole(kept, spec.tree)


def test_paths_of_a_copy(tmp_path: Path) -> None:
    spec = JobSpec("command", "x", cwd="/code/sub", root="/code", inside="sub", copy=True)
    copy = tmp_path / "copy"
    assert working_copy.python_path("/code/src:/other::rel:/code", spec, copy) == f"{copy}/src:/other::rel:{copy}"
    (copy / "sub").mkdir(parents=True)
    (copy / "sub" / "run").touch()
    for words, expected in (
        (("./run", "x"), ["./run", "x"]),
        ((".venv/bin/python", "x"), ["/code/sub/.venv/bin/python", "x"]),
        (("python", "{cwd}/run"), ["python", "/code/sub/run"]),
        (("{cwd}/bin/x", "/code/sub/run"), ["/code/sub/bin/x", f"{copy}/sub/run"]),
        (("x", "--config=/code/sub/run"), ["x", f"--config={copy}/sub/run"]),
        (("x", "/code/out", "--out=/code/sub"), ["x", "/code/out", "--out=/code/sub"]),
    ):
        job = replace(spec, argv=words)
        assert working_copy.command(job, copy, copy / "sub", working_copy.real_folders(job)) == expected


@pytest.mark.parametrize(
    "path", [".env", ".env.local", "a/.ENV", ".envs/x", "k.pem", "id_rsa", "x/id_ed25519.pub", ".netrc", "server.KEY"]
)
def test_secrets(path: str) -> None:
    assert rules.is_secret(path)


@pytest.mark.parametrize("path", ["env.py", "environment.yml", "identity.py", "pem.py", "a.keys.py", "src/netrc.py"])
def test_no_secrets(path: str) -> None:
    assert not rules.is_secret(path)
