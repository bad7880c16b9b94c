"""The values that an option or argument may have, by kind: where completion asks the queue and the workloads."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from queue_runner.model import RETRY_ON
from queue_runner.spec import COMPILE_MODES, DTYPES

Candidate = tuple[str, str]

_FIXED = {
    "device": ("cpu", "mps", "cuda", "cuda:0", "cuda:1", "auto"),
    "compile": ("off", "on", "both", *COMPILE_MODES),
    "dtype": DTYPES,
    "snapshot": ("auto", "copy", "off"),
    "retry_on": RETRY_ON,
    "format": ("table", "csv", "json", "md"),
    "shell": ("bash", "zsh", "fish"),
}
_LISTS = frozenset({"device", "compile", "config", "dtype", "framework", "retry_on", "env_name"})
"""Kinds of which several may be given, a comma between."""
_PLAIN = re.compile(r"[\w@%+=:,./-]+", re.ASCII)
_PACKAGE = Path(__file__).resolve().parents[2]
_BY_PARAMETER = {
    "import set_": "",
    "workloads words": "workload",
    "report format": "format",
    "export to": "target",
    "compare first": "id",
    "compare second": "id",
    "compare format": "format",
}
_BY_METAVAR = {
    "ID": "id",
    "[ID]...": "id",
    "ID...": "id",
    "GROUP": "group",
    "ID[:any|fail]": "after",
    "[NAME] [ID]...": "report",
    "[WORKLOAD]": "workload",
    "WORD": "tag",
    "KEY=VALUE": "set",
    "ENV": "env_name",
    "NAME|ID": "schedule",
    "KEY": "key",
    "FOLDER": "folder",
    "PATH": "file",
    "FILE": "file",
    "[FILE]": "file",
    "FILE...": "file",
    "SHELL": "shell",
}
"""Kinds of values by what the help calls them."""
_RUN_STATES = {
    "cancel": ("QUEUED", "HELD", "RUNNING"),
    "pause": ("QUEUED", "RUNNING"),
    "resume": ("HELD", "RUNNING"),
    "edit": ("QUEUED", "HELD"),
    "retry": ("DONE",),
}
"""Which runs a command is for; others are for all."""


class Completion(NamedTuple):
    """How the shell is to go on (complete.main), and (word, what it means), the likeliest first."""

    how: str
    candidates: list[Candidate]


class TypedLine(NamedTuple):
    """The words before the cursor: the command, its arguments, the values of its options."""

    command: str
    arguments: list[str]
    options: dict[str, list[str]]

    def last(self, option: str) -> str | None:
        """The value that an option was given last."""
        given = self.options.get(option)
        return given[-1] if given else None


def kind_of(command: str, parameter: Any) -> str:
    """Return the kind of value that an option or argument takes: by its metavar, else its own name."""
    kind = _BY_PARAMETER.get(f"{command} {parameter.name}")
    return kind if kind is not None else _BY_METAVAR.get(parameter.metavar, parameter.name)


def is_safe(word: str) -> bool:
    """Return whether a shell takes the word literally: text from a job must not be executed on TAB."""
    return _PLAIN.fullmatch(word) is not None


def values(kind: str, current: str, line: TypedLine) -> Completion:
    """Return the candidates for a value of that kind that begins with `current`."""
    if kind in ("file", "folder"):
        return Completion(kind, [])
    if kind in _LISTS:
        before = current[: current.rfind(",") + 1]
        given = before.split(",")
        return Completion("words", [(before + w, about) for w, about in _of(kind, current, line) if w not in given])
    candidates = list(_of(kind, current, line))
    return Completion("nospace" if kind == "set" and "=" not in current else "words", candidates)


def _of(kind: str, current: str, line: TypedLine) -> Iterable[Candidate]:
    """Return all candidates of a kind. What they need is imported for each, since TAB must not wait."""
    match kind:
        case _ if kind in _FIXED:
            return [(word, "") for word in _FIXED[kind]]
        case "id":
            return _ids(current, line)
        case "after":
            return _after(current, line)
        case "group":
            return _stored("groups", current)
        case "tag" | "schedule":
            return _stored(f"{kind}s")
        case "state":
            from queue_runner.model import Outcome, State

            return [(word.value.lower(), "") for word in (*State, *Outcome) if word is not State.DONE]
        case "workload":
            return [] if line.arguments else {w["name"]: str(w.get("about", "")) for w in _literals()}.items()
        case "config":
            return dict.fromkeys((name, "") for w in _of_workload(line) for name in w.get("configs", {}))
        case "framework":
            chosen = (w for w in _literals() if not line.arguments or w["name"] in line.arguments)
            return dict.fromkeys((w["framework"], "") for w in chosen)
        case "set":
            return _sets(current, line)
        case "env_name":
            from queue_runner.paths import layout
            from queue_runner.workloads.venvs import every

            return [(venv.name, f"Python {venv.python_version}") for venv in every(layout())]
        case "key":
            from queue_runner.config_file import KEYS

            return [] if line.arguments else [(key.name, key.help) for key in KEYS.values()]
        case "report":
            return _reports(current, line)
        case "target":
            return _named("export/formats")
        case "parser":
            return _named("ingest/parsers")
    return []


# -- what the queue holds -----------------------------------------------------------------------------------------


def _stored(what: str, *arguments: Any) -> list[Candidate]:
    """Return the jobs, runs, groups, tags or schedules of the queue."""
    from queue_runner.paths import layout
    from queue_runner.store import queue_names

    with queue_names.opened(layout().db) as connection:
        names: list[Candidate] = getattr(queue_names, what)(connection, *arguments)
        return names


def _ids(current: str, line: TypedLine) -> list[Candidate]:
    states = _RUN_STATES.get(line.command)
    if "." in current:
        return _stored("runs", current.partition(".")[0], states)
    names = _stored("names", current) if current else []
    return [*_stored("jobs", current, states), *_stored("groups", current), *names]


def _after(current: str, line: TypedLine) -> list[Candidate]:
    id, colon, _ = current.partition(":")
    if colon:
        return [(f"{id}:{word}", about) for word, about in (("ok", ""), ("any", "whatever its end"), ("fail", ""))]
    return _ids(current, line)


# -- what mpsq came with ------------------------------------------------------------------------------------------


def _of_workload(line: TypedLine) -> list[dict[str, Any]]:
    framework = line.last("--framework")
    named = [w for w in _literals() if w["name"] in line.arguments]
    return [w for w in named if framework in (None, w["framework"])]


def _sets(current: str, line: TypedLine) -> list[Candidate]:
    params = {name: p for w in _of_workload(line) for name, p in w.get("params", {}).items()}
    key, equals, value = current.partition("=")
    if equals:
        return [(f"{key}={word}", "") for word in _choices(params.get(key, {}), value)]
    return [(f"{name}=", f"{p.get('help', '')} ({p.get('default')})") for name, p in params.items()]


def _choices(param: Mapping[str, Any], value: str) -> list[str]:
    """Return the candidates for a key's value after those given: a comma separates values to sweep, + parts of one."""
    if isinstance(param.get("default"), bool):
        return [value[: value.rfind(",") + 1] + word for word in ("true", "false")]
    between = "+" if "each_of" in param else ","
    before = value[: max(value.rfind(","), value.rfind(between)) + 1]
    given = (before.rpartition(",")[2] if between == "+" else before).split(between)
    words = map(str, param.get("choices") or param.get("each_of") or param.get("path_or") or ())
    return [before + word for word in words if word not in given]


def _literals() -> list[dict[str, Any]]:
    """The WORKLOAD literals of all job files, each cut out of its file: parsing all of the files takes too long."""
    from queue_runner.paths import home, jobs_dir
    from queue_runner.workloads.manifest import resolve

    literals: dict[str, dict[str, Any]] = {}
    for path in (*sorted(jobs_dir().glob("*.py")), *sorted((home() / "workloads").glob("*.py"))):
        text = path.read_text(encoding="utf-8", errors="replace")
        if match := re.search(r"^WORKLOAD\b[^=\n]*= *(\{.*?^\})", text, re.MULTILINE | re.DOTALL):
            with contextlib.suppress(ValueError, SyntaxError):  # one of the user's, half written
                literals[path.stem] = ast.literal_eval(match[1])
    return [resolve(w, literals.get(w.get("like", ""), {})) for w in literals.values()]


def _reports(current: str, line: TypedLine) -> list[Candidate]:
    first = [] if line.arguments else _named("reports")
    try:
        return [*first, *_ids(current, line)]
    except Exception:  # no queue to ask: the reports are known all the same
        return first


def _named(folder: str) -> list[Candidate]:
    """NAME and HELP of the modules of a folder that is a registry, without importing them."""
    names = []
    for path in sorted([*(_PACKAGE / folder).glob("[a-z]*.py"), *(_PACKAGE / folder).glob("[a-z]*/__init__.py")]):
        constants = dict(re.findall(r'^(NAME|HELP) = "(.*)"$', path.read_text(encoding="utf-8"), re.MULTILINE))
        if "NAME" in constants:
            names.append((constants["NAME"], constants.get("HELP", "")))
    return names
