"""The Python interpreter of a command, read from its words: uv's, a venv's, that of a script's first line.

mpsq starts a command as it is; this only names its interpreter. None where that is not certain: a shell, another
program, an environment that uv makes for one call.
"""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

PYTHON = re.compile(r"python(\d+(\.\d+)*)?")
_BEFORE = frozenset({"time", "nice", "nohup", "caffeinate"})
"""Programs that run the one after their options."""
_VARIABLE = re.compile(r"(?!PATH=)\w+=")
"""A variable of `env`, but the one that decides which program runs."""
_WITH_VALUE = frozenset(
    {"-p", "--python", "--project", "--directory", "--env-file", "--extra", "--group", "--index-url"}
)
"""Options of `uv run` with a value of their own."""
_OWN = ("--with", "--with-requirements", "--with-editable", "--isolated", "--no-project", "--script", "-s", "--active")
"""Options by which `uv run` leaves the project's environment."""
_VENV = ("bin/python", "bin/python3")


def of_command(
    argv: Sequence[str], cwd: str, env: Mapping[str, str], known: dict[tuple[object, ...], str | None]
) -> str | None:
    """Return the absolute path of the interpreter that runs the command, links unresolved; None if it is unknown.
    `known` keeps it by program for other commands of the submission."""
    words = list(argv)
    if words[:1] == ["env"]:
        words = list(itertools.dropwhile(_VARIABLE.match, words[1:]))
    while words and words[0].rpartition("/")[2] in _BEFORE:
        words = words[1:]
        while words and words[0].startswith("-"):
            words = words[1:]
    if not words:
        return None
    if words[0].rpartition("/")[2] == "uv" and words[1:2] == ["run"]:
        return _of_uv(words[2:], Path(cwd), env)
    key = (words[0], cwd, env.get("PATH"))
    if key not in known:
        known[key] = _of_program(*key)
    return known[key]


def _of_program(program: str, cwd: str, path: str | None) -> str | None:
    place = shutil.which(Path(cwd, program) if "/" in program else program, path=path)
    if place is None:
        return None
    return str(Path(place).absolute()) if PYTHON.fullmatch(Path(program).name) else _of_script(Path(place))


def _of_script(program: Path) -> str | None:
    """Return the interpreter in the first line of a program such as torchrun, if it is a Python's path."""
    try:
        with program.open("rb") as file:
            first = file.readline(500).decode("utf-8", "replace")
    except OSError:
        return None
    match = re.fullmatch(r"#!\s*(/\S+)\s*", first)
    return match[1] if match and PYTHON.fullmatch(Path(match[1]).name) else None


def _of_uv(words: Sequence[str], cwd: Path, env: Mapping[str, str]) -> str | None:
    """Return the interpreter of `uv run`: of the project's environment (UV_PROJECT_ENVIRONMENT, else .venv beside the
    nearest pyproject.toml); outside of a project of VIRTUAL_ENV, else of the nearest .venv (docs.astral.sh/uv)."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        option = words[at].partition("=")[0]
        if option in _OWN or option in ("-p", "--python", "--project", "--directory"):
            return None
        at += 2 if option in _WITH_VALUE and "=" not in words[at] else 1
    if at < len(words) and _is_inline_script(cwd / words[at]):
        return None
    above = (cwd, *cwd.parents)
    project = next((folder for folder in above if (folder / "pyproject.toml").is_file()), None)
    if project is not None:
        venvs = [project / env.get("UV_PROJECT_ENVIRONMENT", ".venv")]
    else:
        active = env.get("VIRTUAL_ENV")
        venvs = [Path(active)] if active else [folder / ".venv" for folder in above]
    pythons = (venv / place for venv in venvs for place in _VENV)
    return next((str(python.absolute()) for python in pythons if python.exists()), None)


def _is_inline_script(script: Path) -> bool:
    """Return whether a script has dependencies of its own (PEP 723), for which uv makes an environment."""
    try:
        return script.suffix == ".py" and "# /// script" in script.read_text("utf-8", "replace")
    except OSError:
        return False


def torch_of(python: str) -> str | None:
    """Return the version of torch that lies in the environment of this interpreter now; None if there is none."""
    folders = Path(python).parent.parent.glob("lib/python3*/site-packages/torch-*.dist-info")
    return next((folder.name.removeprefix("torch-").removesuffix(".dist-info") for folder in folders), None)
