"""What --champion and --candidate name: a commit of the repository around the working folder, a folder, or the code of
an earlier job."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from queue_runner.errors import UsageError, did_you_mean
from queue_runner.model import parse_selector
from queue_runner.monitor import run_view
from queue_runner.paths import Layout, expanded
from queue_runner.referee.evidence import CANDIDATE
from queue_runner.source import git_commands, scan
from queue_runner.spec import JobSpec
from queue_runner.store import read


class Tree(Struct, frozen=True):
    """The code of a row: the folder that its command starts in, and its commit or the job that ran it; without these it
    is the code in the folder. `place` is the folder in which the commit was named."""

    name: str
    cwd: Path
    commit: str = ""
    job: JobSpec | None = None
    place: Path = Path()

    @property
    def is_folder(self) -> bool:
        return not self.commit and self.job is None


def find(champion: str, candidate: str, cwd: Path, layout: Layout) -> tuple[Tree, Tree]:
    """Return the two trees. Raises: UsageError for a name that means nothing or two things, for two names of the same
    code, and where uncommitted changes would silently be left out."""
    trees = named("--champion", champion, cwd, layout), named("--candidate", candidate, cwd, layout)
    codes = [_code(tree, layout.home) for tree in trees]
    if codes[0] == codes[1]:
        raise UsageError(
            f"{champion} and {candidate} are the same code", "commit the change, or name the folder that has it"
        )
    refuse_left_out(trees, layout)
    return trees


def refuse_left_out(trees: Sequence[Tree], layout: Layout) -> None:
    """Raise UsageError where none of the trees has the uncommitted changes of the commit that one of them names."""
    for tree in (tree for tree in trees if tree.commit and tree.commit == commit_of(tree.place, "HEAD")):
        work_tree = _work_tree(tree.place, layout.home)
        is_used = any(other.is_folder and _is_inside(other.cwd, work_tree) for other in trees)
        if work_tree is not None and work_tree.dirty and not is_used:
            raise UsageError(
                f"{tree.name} leaves out the uncommitted changes in {work_tree.root}",
                f"commit or stash them, or judge them by naming {work_tree.root}",
            )


def named(option: str, name: str, cwd: Path, layout: Layout, here: Path | None = None) -> Tree:
    """Return the tree that a name means `here`, or else in the folder `cwd`, in which the command starts.

    Raises: UsageError where it means nothing or two things, and for a commit of another repository."""
    places = (cwd,) if here is None else (here, cwd)
    place = next((place for place in places if commit_of(place, name)), cwd)
    commit = commit_of(place, name)
    folder = next((path for place in places if name and (path := place / expanded(name)).is_dir()), None)
    if commit and folder is not None and not name.startswith((".", "/", "~")):
        raise UsageError(f"{option} {name} is both a commit and a folder", f"write ./{name} for the folder")
    if commit and not commit_of(cwd, commit):
        raise UsageError(
            f"{option} {name} is not a commit of the repository around {cwd}", "name the folder that has it"
        )
    if commit:
        return Tree(name, cwd, commit, place=place)
    if folder is not None:
        return Tree(name, _same_place(cwd, folder.resolve()))
    if _ID.fullmatch(name):
        return _of_job(option, name, layout)
    if git_commands.work_tree(cwd) is None:
        raise UsageError(
            f'{option}: there is no folder "{name}", and {cwd} is not in a git repository', "name a folder"
        )
    hint = did_you_mean(name, names(cwd), "name a commit, tag or branch of this repository, a folder, or a job")
    raise UsageError(f'{option}: "{name}" is neither a commit here nor a folder', hint)


def commit_of(cwd: Path, name: str) -> str:
    """Return the commit that a name means in a repository; "" if none."""
    try:
        return git_commands.commit_of(cwd, name) if name else ""
    except git_commands.GitFailed:
        return ""


_ID = re.compile(r"g?[0-9]{1,18}|@last")


def _of_job(option: str, name: str, layout: Layout) -> Tree:
    """Return the code that a job ran. A group has one code; that of a judgement stands for its candidate. Raises:
    UsageError."""
    with read.reading(layout.db) as connection:
        jobs = {run.job_id: run.spec for run in run_view.select(connection, [parse_selector(name)])}
    judged = {job: spec for job, spec in jobs.items() if spec.within and spec.name == CANDIDATE}
    codes = {spec.tree: job for job, spec in (judged or jobs).items()}
    if len(codes) > 1:
        raise UsageError(f"{option} {name} has {len(codes)} versions of the code", f"name a job, such as {max(jobs)}")
    ((_, job),) = codes.items()
    if jobs[job].kind != "command" or not jobs[job].tree:
        raise UsageError(f"{option}: the code of job {job} was not stored", "name a commit or a folder")
    return Tree(name, Path(jobs[job].cwd), job=jobs[job])


def names(cwd: Path) -> list[str]:
    """Return the branches and tags of the repository."""
    try:
        return git_commands.git(cwd, "for-each-ref", "--format=%(refname:short)").decode("utf-8", "replace").split()
    except git_commands.GitFailed:
        return []


def _same_place(cwd: Path, folder: Path) -> Path:
    """Return the folder of another work tree in which the command starts: where it would in this one."""
    try:
        inside = os.path.relpath(cwd.resolve(), git_commands.top(cwd))
        other = folder / inside
        return other if git_commands.top(folder) == folder and other.is_dir() else folder
    except git_commands.GitFailed:
        return folder


def _work_tree(cwd: Path, home: Path) -> scan.SourceTree | None:
    try:
        return scan.of_repository(cwd, home)
    except git_commands.GitFailed:
        return None


def _code(tree: Tree, home: Path) -> tuple[str, str]:
    """Return what tells the code of a tree from another one: its commit if it holds all of it, else its folder; of a
    job its content."""
    if tree.job is not None:
        return "", tree.job.tree
    scanned = None if tree.commit else _work_tree(tree.cwd, home)
    if scanned is None:
        return tree.commit, "" if tree.commit else str(tree.cwd.resolve())
    is_clean = scanned.commit and not scanned.dirty and not scanned.changed
    return (scanned.commit, "") if is_clean else ("", str(tree.cwd.resolve()))


def _is_inside(folder: Path, work_tree: scan.SourceTree | None) -> bool:
    return work_tree is not None and folder.resolve().is_relative_to(work_tree.root.resolve())
