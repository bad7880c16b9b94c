"""queue_runner/complete_table.py from the commands: `python -m queue_runner.cli.completion_table > ...` (make docs)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from queue_runner.cli.main import COMMANDS, app

_BY_PARAMETER = {
    "import set_": "",
    "workloads name": "workload",
    "report format": "format",
    "submit after": "after",
    "edit after": "after",
}
_BY_METAVAR = {
    "ID": "id",
    "[ID]...": "id",
    "[NAME] [ID]...": "report",
    "[WORKLOAD]": "workload",
    "WORD": "tag",
    "KEY=VALUE": "set",
    "[PHASE=]TIME": "phase",
    "NAME|ID": "schedule",
    "ZONE": "zone",
    "KEY": "key",
    "[KEY]": "key",
    "FOLDER": "folder",
    "PATH": "file",
    "FILE": "file",
    "FILE...": "file",
    "SHELL": "shell",
}
_BY_NAME = {
    name: name.rstrip("_")
    for name in ("device", "compile", "config", "dtype", "framework", "snapshot", "retry_on", "parser", "tag", "group")
} | {"state": "state"}

_HEAD = '''"""Every command, its arguments and options: what completion needs and would take too long to ask typer for.

Made by `make docs` from the commands themselves; a test keeps the two alike. A command is (help, arguments, whether
the last of them may be repeated, options); an argument is a kind of value, an option (kind of value or None where it
takes none, whether it may be repeated, help). complete_values.py knows the kinds; "" is one that nobody can guess.
"""

from __future__ import annotations

Option = tuple[str | None, bool, str]
Command = tuple[str, tuple[str, ...], bool, dict[str, Option]]

COMMANDS: dict[str, Command] = {
'''


def table() -> dict[str, tuple[str, tuple[str, ...], bool, dict[str, tuple[str | None, bool, str]]]]:
    """By the words of a command, `submit`, `schedule add`; see _HEAD."""
    root = get_command(app)
    context = root.make_context("mpsq", [], resilient_parsing=True)
    found = {}
    for name in COMMANDS:
        for words, command in _leaves(name, root.get_command(context, name)):  # type: ignore[attr-defined]
            arguments = [p for p in command.params if p.param_type_name == "argument"]
            options = {
                word: (None if p.is_flag else _kind(words, p), bool(p.multiple), _first_sentence(p.help))
                for p in command.params
                if p.param_type_name == "option"
                for word in p.opts
            }
            kinds = tuple(_kind(words, p) for p in arguments)
            found[words] = (_first_sentence(command.help), kinds, any(p.nargs == -1 for p in arguments), options)
    return found


def groups() -> dict[str, str]:
    """Commands that have commands, with their help."""
    root = get_command(app)
    context = root.make_context("mpsq", [], resilient_parsing=True)
    return {
        name: line
        for name, line in COMMANDS.items()
        if getattr(root.get_command(context, name), "commands", None)  # type: ignore[attr-defined]
    }


def module() -> str:
    """The text of complete_table.py."""
    lines = [f"    {name!r}: {command!r},\n" for name, command in table().items()]
    return _HEAD + "".join(lines) + "}\n\nGROUPS: dict[str, str] = " + repr(groups()) + "\n"


def _leaves(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if not inner:
        yield name, command
        return
    for sub, below in inner.items():
        yield from _leaves(f"{name} {sub}", below)


def _kind(words: str, parameter: Any) -> str:
    own = _BY_PARAMETER.get(f"{words} {parameter.name}")
    return own if own is not None else _BY_METAVAR.get(parameter.metavar, _BY_NAME.get(parameter.name, ""))


def _first_sentence(text: str | None) -> str:
    return " ".join((text or "").split()).split(". ")[0].rstrip(".")


if __name__ == "__main__":
    print(module(), end="")
