"""What --champion and --candidate name: a commit of the repository around the working folder, or a folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from queue_runner.errors import UsageError, did_you_mean
from queue_runner.source import git_commands, scan


@dataclass(frozen=True, slots=True)
class Tree:
    """The code of a row: the folder that its command starts in, and its commit; without one it is the folder's code."""

    name: str
    cwd: Path
    commit: str = ""


def find(champion: str, candidate: str, cwd: Path, home: Path) -> tuple[Tree, Tree]:
    """Return the two trees. Raises: UsageError for a name that means nothing or two things, for two names of the same
    code, and where uncommitted changes would silently be left out."""
    trees = _find("--champion", champion, cwd), _find("--candidate", candidate, cwd)
    work_tree = _work_tree(cwd, home)
    codes = [_code(tree, home) for tree in trees]
    if codes[0] == codes[1]:
        raise UsageError(
            f"{champion} and {candidate} are the same code", "commit the change, or name the folder that has it"
        )
    is_used = any(not tree.commit and _is_inside(tree.cwd, work_tree) for tree in trees)
    if work_tree is not None and work_tree.dirty and not is_used:
        for option, tree in zip(("--champion", "--candidate"), trees, strict=True):
            if tree.commit == work_tree.commit:
                raise UsageError(
                    f"{option} {tree.name} is the commit below, and {work_tree.root} has uncommitted changes",
                    f"commit or stash them, or judge them with {option} {work_tree.root}",
                )
    return trees


def _find(option: str, name: str, cwd: Path) -> Tree:
    folder = Path(name).expanduser()
    folder = folder if folder.is_absolute() else cwd / folder
    try:
        commit = git_commands.commit_of(cwd, name) if name else ""
    except git_commands.GitFailed:
        commit = ""
    if commit and folder.is_dir() and not name.startswith((".", "/", "~")):
        raise UsageError(f"{option} {name} is both a commit and a folder", f"write ./{name} for the folder")
    if commit:
        return Tree(name, cwd, commit)
    if name and folder.is_dir():
        return Tree(name, _same_place(cwd, folder.resolve()))
    if git_commands.work_tree(cwd) is None:
        raise UsageError(
            f'{option}: there is no folder "{name}", and {cwd} is not in a git repository', "name a folder"
        )
    hint = did_you_mean(name, _names(cwd), "name a commit, tag or branch of this repository, or a folder")
    raise UsageError(f'{option}: "{name}" is neither a commit here nor a folder', hint)


def _names(cwd: Path) -> list[str]:
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
    """Return what tells the code of a tree from another one: its commit if it holds all of it, else its folder."""
    scanned = None if tree.commit else _work_tree(tree.cwd, home)
    if scanned is None:
        return tree.commit, "" if tree.commit else str(tree.cwd.resolve())
    is_clean = scanned.commit and not scanned.dirty and not scanned.changed
    return (scanned.commit, "") if is_clean else ("", str(tree.cwd.resolve()))


def _is_inside(folder: Path, work_tree: scan.SourceTree | None) -> bool:
    return work_tree is not None and folder.resolve().is_relative_to(work_tree.root.resolve())
