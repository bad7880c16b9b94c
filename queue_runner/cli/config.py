"""mpsq config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queue_runner import tables
from queue_runner.cli.common import Json, home, new_app, new_home, print_json, say

if TYPE_CHECKING:
    from queue_runner.config_file import Key

app = new_app("Show and change the settings.")


@app.command("list")
def list_(json: Json = False) -> None:
    """List every setting with its value and meaning; secrets are hidden."""
    from queue_runner import config_file

    layout = home()
    settings = config_file.load(layout.config)
    stored = config_file.read(layout.config)
    for sentence in config_file.removed(layout.config):
        say(sentence)
    values = [(key, _shown(getattr(settings, key.name))) for key in config_file.KEYS.values()]
    if json:
        rows = [
            {"name": key.name, "value": value, "unit": key.unit, "set": key.name in stored, "help": key.help}
            for key, value in values
        ]
        print_json("mpsq.config/1", path=str(layout.config), settings=rows)
        return
    print(tables.facts([(key.name, _setting(key, value)) for key, value in values], prose=config_file.KEYS))
    say(f"the settings are in {layout.config}")


def _shown(value: Any) -> Any:
    from queue_runner.host.redact import redact

    if hasattr(value, "items"):
        return {name: _shown(item) for name, item in value.items()}
    return redact([value])[0] if isinstance(value, str) else value


def _setting(key: Key, value: Any) -> str:
    text = _words(value) or '""'
    return f"{text} {key.unit or ''}".strip() + f"  {key.help}"


@app.command("set", context_settings={"ignore_unknown_options": True})
def set_(
    key: Annotated[str, typer.Argument(metavar="KEY", help="A key of mpsq config list.")],
    value: Annotated[str, typer.Argument(metavar="VALUE", help="For example 30s, 2GiB, true.")],
) -> None:
    """Change one setting; comments in the file are kept."""
    from queue_runner import config_file

    notes: list[str] = []
    if key == "lanes":
        from queue_runner.host import lane_list

        resolved, notes = lane_list.resolve(value)
        notes += [f"lane {lane.name}: {lane.words}" for lane in resolved]
    print(f"{key} = {_words(config_file.set_value(new_home().config, key, value))}")
    for line in notes:
        say(line)
    say("a running worker uses it after a restart")


def _words(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if hasattr(value, "items"):
        return ", ".join(f"{name}={_words(item)}" for name, item in _entries(value)) or "{}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _entries(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the entries of a table by name, those of tables in it by names with dots."""
    for name, item in table.items():
        if hasattr(item, "items"):
            yield from ((f"{name}.{inner}", value) for inner, value in _entries(item))
        else:
            yield name, item
