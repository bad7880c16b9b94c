"""queue_runner/cli/complete_table.py from the commands: `python -m queue_runner.cli.completion_table` (make docs)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from queue_runner.cli.complete_values import Command
from queue_runner.cli.main import COMMANDS, app
from queue_runner.cli.schedule import WithSubmit
from queue_runner.cli.submit_options import OfWorkload, WithCommand

_BY_PARAMETER = {
    "import set_": "",
    "workloads words": "workload",
    "report format": "format",
    "report group": "group",
}
_BY_METAVAR = {
    "ID": "id",
    "[ID]...": "id",
    "ID...": "id",
    "ID[:any|fail]": "after",
    "[NAME] [ID]...": "report",
    "[WORKLOAD]": "workload",
    "WORD": "tag",
    "KEY=VALUE": "set",
    "[PHASE=]TIME": "phase",
    "NAME=VALUE,...": "mps",
    "ENV": "env_name",
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
    for name in (
        "device",
        "compile",
        "config",
        "dtype",
        "framework",
        "snapshot",
        "retry_on",
        "parser",
        "tag",
        "group",
        "env_name",
    )
} | {"state": "state"}

_HEAD = '''"""Every command, its arguments and options: what completion needs and would take too long to ask typer for.

Made by `make docs` from the commands themselves; a test keeps the two alike. complete_values.py says what is what.
"""

from __future__ import annotations

from queue_runner.cli.complete_values import Command

COMMANDS: dict[str, Command] = {
'''


def table() -> dict[str, Command]:
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
            repeats = any(p.nargs == -1 for p in arguments)
            found[words] = Command(_first_sentence(command.help), kinds, repeats, options, _behind(command))
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


def _behind(command: Any) -> str:
    if isinstance(command, WithSubmit):
        return "submit"
    return "command" if isinstance(command, WithCommand) and not isinstance(command, OfWorkload) else ""


def _kind(words: str, parameter: Any) -> str:
    own = _BY_PARAMETER.get(f"{words} {parameter.name}")
    return own if own is not None else _BY_METAVAR.get(parameter.metavar, _BY_NAME.get(parameter.name, ""))


def _first_sentence(text: str | None) -> str:
    return " ".join((text or "").split()).split(". ")[0].rstrip(".")


if __name__ == "__main__":
    print(module(), end="")
