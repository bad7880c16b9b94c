"""docs/cli.md from --help: `python -m queue_runner.cli.generate_reference > docs/cli.md` (make docs)."""

from __future__ import annotations

import os
from typing import Any

from typer.main import get_command

from queue_runner.cli.main import COMMANDS, SECTIONS, app

EXIT_CODES = {
    0: "done",
    1: "an error: the message says what is wrong and what to do",
    2: "the command line cannot be understood",
    3: "`mpsq wait`: a job that was waited for did not succeed",
    4: "the database is of another schema than this mpsq",
    75: "`mpsq worker`: another worker has this queue",
    124: "`mpsq wait`: the time given is over",
    130: "interrupted (Ctrl-C)",
    141: "nobody reads the output any more (a closed pipe)",
}

_HEAD = """\
# Commands

This page is made by `make docs` from what `--help` prints; a test keeps the two alike.

Ids: `12` is a job, `12.3` one of its runs, `g4` a group (all that one submit made), `@last` the newest group.
Standard output is data, standard error is talk. Every reading command has `--json`: see [json.md](json.md).
Times are written `90s`, `15m`, `2h`, `1h30m`; sizes `512M`, `2GiB`.

## Exit codes

| code | meaning |
|---|---|
"""


def reference() -> str:
    """The page, as Markdown."""
    os.environ["COLUMNS"] = "80"
    root = get_command(app)
    parts = [_HEAD + "\n".join(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items())]
    parts += ["## Environment\n\n" + _ENVIRONMENT, _section("mpsq", root, None, 2)]
    context = root.make_context("mpsq", [], resilient_parsing=True)
    for commands in SECTIONS.values():
        for name in commands:
            command = root.get_command(context, name)  # type: ignore[attr-defined]
            parts.append(_section(f"mpsq {name}", command, context, 2))
            for sub, subcommand in getattr(command, "commands", {}).items():
                inside = command.make_context(name, [], parent=context, resilient_parsing=True)
                parts.append(_section(f"mpsq {name} {sub}", subcommand, inside, 3))
    return "\n\n".join(parts) + "\n"


_ENVIRONMENT = """\
| variable | meaning |
|---|---|
| `MPSQ_HOME` | the folder of the queue, absolute; else `var/` of a checkout, else the user's data folder |
| `MPSQ_LOCKS` | the folder of the locks; else one for each user of the machine |
| `NO_COLOR` | nothing is coloured anyway |"""


def _section(title: str, command: Any, parent: Any, level: int) -> str:
    context = command.make_context(title.split()[-1], [], parent=parent, resilient_parsing=True)
    lines = [line.rstrip() for line in command.get_help(context).splitlines()]
    return f"{'#' * level} {title}\n\n```text\n" + "\n".join(lines) + "\n```"


def lines_of_help() -> dict[str, str]:
    """The first line that each command says of itself, to be compared with COMMANDS."""
    root = get_command(app)
    context = root.make_context("mpsq", [], resilient_parsing=True)
    return {
        name: root.get_command(context, name).help.splitlines()[0]  # type: ignore[attr-defined]
        for name in COMMANDS
    }


if __name__ == "__main__":
    print(reference(), end="")
