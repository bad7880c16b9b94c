"""What every command shares: its Typer app, where the queue is, and how it talks on stderr."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from queue_runner.paths import Layout

Json = Annotated[bool, typer.Option("--json", help="Print JSON; docs/json.md describes it.")]


def new_app(help: str | None = None) -> typer.Typer:
    """A Typer app in our style: plain help, no coloured tracebacks."""
    return typer.Typer(
        help=help,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
        no_args_is_help=bool(help),
    )


def say(text: str) -> None:
    """Talk: to stderr, so that stdout stays data."""
    print(text, file=sys.stderr)


def hint(text: str) -> None:
    """The next step, for a person: not for a pipe."""
    if sys.stderr.isatty():
        say(f"hint: {text}")


def print_json(schema: str, /, **fields: Any) -> None:
    """Print one object of a schema that docs/json.md describes."""
    from queue_runner.render import envelope

    print(envelope(schema, **fields))


def home() -> Layout:
    """The queue's folder as it is, without making anything. Raises: MpsqError for a folder that cannot be one."""
    from queue_runner import paths

    return paths.layout()
