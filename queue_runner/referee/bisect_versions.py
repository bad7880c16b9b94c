"""The versions of a bisection: the commits from a good one to a bad one, or versions of a package."""

from __future__ import annotations

import hashlib
import re
import shlex
from pathlib import Path

from msgspec import Struct

from queue_runner import config_file
from queue_runner.errors import UsageError, did_you_mean
from queue_runner.paths import Layout
from queue_runner.referee import trees
from queue_runner.source import git_commands
from queue_runner.workloads import environment_create, venvs

MOST = 100_000
_RANGE = re.compile(r"([0-9]+(?:\.[0-9]+)*)\.\.([0-9]+(?:\.[0-9]+)*)")
_PACKAGE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)=([^=]+)")
_HASH_DIGITS = 8


class Version(Struct, frozen=True):
    """A version: its short name, what identifies it (a commit, or the arguments of `uv pip install`), and its title."""

    name: str
    identity: str
    title: str = ""
    is_commit: bool = True


def commits(good: str, bad: str, cwd: Path) -> list[Version]:
    """Return the commits from good to bad, along first parents. Raises: UsageError."""
    ends = [_commit(option, name, cwd) for option, name in (("--good", good), ("--bad", bad))]
    if ends[0] == ends[1]:
        raise UsageError(f"{good} and {bad} are the same commit", "name the last good commit and a later one")
    if not _contains(cwd, *ends):
        hint = f"name a commit that {bad} contains; git merge-base {good} {bad} prints the newest"
        if _contains(cwd, *reversed(ends)):
            hint = f"--good {bad} --bad {good} finds the step, whichever is slower"
        raise UsageError(f"--good {good} is not an ancestor of --bad {bad}", hint)
    listing = [_log(cwd, "-n", "1", ends[0]), _log(cwd, "--first-parent", "--reverse", f"{ends[0]}..{ends[1]}")]
    return [
        Version(name, commit, title)
        for commit, name, title in (line.split("\t", 2) for text in listing for line in text.split("\n") if line)
    ]


def _contains(cwd: Path, older: str, newer: str) -> bool:
    try:
        git_commands.git(cwd, "merge-base", "--is-ancestor", older, newer)
    except git_commands.GitFailed:
        return False
    return True


def _commit(option: str, name: str, cwd: Path) -> str:
    if commit := trees.commit_of(cwd, name):
        return commit
    if git_commands.work_tree(cwd) is None:
        raise UsageError(
            f"{cwd} is not in a git repository", "change to the repository, or use --versions torch=2.9..2.13"
        )
    hint = did_you_mean(name, trees.names(cwd), "name a commit, tag or branch of this repository")
    raise UsageError(f'{option}: "{name}" is not a commit of this repository', hint)


def _log(cwd: Path, *words: str) -> str:
    text = git_commands.git(cwd, "log", "--no-show-signature", "--format=%H%x09%h%x09%s", *words, "--")
    return text.decode("utf-8", "replace")


def packages(text: str, pip: str) -> list[Version]:
    """Return the versions of a package, `torch=2.9..2.13` or `torch=2.9,2.10.1`, oldest first. `pip` has further
    arguments of uv. Raises: UsageError."""
    config_file.split(pip, "--pip")
    match = _PACKAGE.fullmatch(text)
    ends = _RANGE.fullmatch(match[2]) if match else None
    numbers = [_numbers(part) for part in ([*ends.groups()] if ends else match[2].split(",") if match else [])]
    if match is None or not all(numbers):
        raise UsageError(f"--versions {text} is not a package and its versions", "write torch=2.9..2.13")
    if ends:
        first, last = numbers
        if first[:-1] != last[:-1]:
            raise UsageError(
                f"--versions {text}: in a range, only the last number may differ",
                "list the versions, as in torch=1.13,2.0,2.1",
            )
        numbers = [(*first[:-1], number) for number in range(first[-1], min(last[-1], first[-1] + MOST) + 1)]
    if len(numbers) < 2 or numbers != sorted({*numbers}):
        raise UsageError(f"--versions {text} does not list two or more versions, oldest first", "write torch=2.9..2.13")
    names = [".".join(map(str, number)) for number in numbers]
    more = f" {pip}" if pip else ""
    return [Version(f"{match[1]} {name}", f"{match[1]}=={name}.*{more}", is_commit=False) for name in names]


def _numbers(text: str) -> tuple[int, ...]:
    parts = text.strip().split(".")
    return tuple(map(int, parts)) if all(part.isascii() and part.isdecimal() for part in parts) else ()


def environment(layout: Layout, version: Version, python: str | None) -> str:
    """Return the name of the environment with this version; made by uv if there is none. Raises: MpsqError."""
    digest = hashlib.sha256(f"{version.identity} {python or ''}".encode()).hexdigest()[:_HASH_DIGITS]
    name = f"bisect-{version.name.replace(' ', '-')[:40]}-{digest}"
    if not (layout.envs / name / venvs.RECORD).is_file():
        environment_create.create(layout, name, shlex.split(version.identity), python)
    return name
