"""mpsq workloads."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queue_runner import tables
from queue_runner.cli.common import Json, home, new_app, new_home, print_json, say
from queue_runner.errors import UsageError
from queue_runner.workloads.command_line import as_text

if TYPE_CHECKING:
    from queue_runner.workloads.manifest import Workload

app = new_app()


EPILOG = (
    "mpsq workloads new NAME writes a file that runs unchanged, as the start of your own workload. Files in the folder "
    "workloads of MPSQ_HOME are found by name, like those of mpsq; docs/workloads.md explains how to write one."
)


@app.command("workloads", epilog=EPILOG)
def workloads(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME | new NAME]", help="The workload to show, or the new one to write."),
    ] = None,
    framework: Annotated[str | None, typer.Option(help="The version for this framework.")] = None,
    json: Json = False,
) -> None:
    """List the workloads, show the settings of one, or create your own."""
    from queue_runner import paths
    from queue_runner.workloads import catalog

    folder, own_folder = paths.jobs_dir(), home().workloads
    name = _name(words or [])
    if words and words[0] == "new":
        _new(name, json)
        return
    if name is not None:
        workload = catalog.find(folder, name, framework, own_folder)
        if json:
            print_json("mpsq.workload/1", workload=_object(workload))
        else:
            print(_text(workload))
        return
    known = catalog.workloads(folder, own_folder)
    if framework is not None:
        known = [workload for workload in known if workload.framework == framework]
    if json:
        print_json("mpsq.workloads/1", workloads=[_object(workload) for workload in known])
        return
    by_name: dict[str, list[Workload]] = {}
    for workload in known:
        by_name.setdefault(workload.name, []).append(workload)
    rows = [
        {
            "name": name,
            "frameworks": ", ".join(version.framework for version in several),
            "configs": ", ".join(dict.fromkeys(config for version in several for config in version.configs)),
            "about": catalog.preferred(several).about,
        }
        for name, several in by_name.items()
    ]
    columns = [
        tables.Column("name", "name"),
        tables.Column("frameworks", "frameworks", flexible=True),
        tables.Column("configs", "configs", words=lambda text: tables.shorten(text, 32), flexible=True),
        tables.Column("about", "about", words=lambda text: re.split("[:;] ", text)[0], flexible=True),
    ]
    print(tables.table(rows, columns))


def _name(words: list[str]) -> str | None:
    new = words[:1] == ["new"]
    if len(words) > 1 + new or (new and len(words) == 1):
        raise UsageError("workloads takes only one name", "use mpsq workloads nanogpt, or mpsq workloads new my_model")
    return words[-1] if words else None


def _new(name: str | None, json: bool) -> None:
    from queue_runner import paths
    from queue_runner.workloads import template

    file = template.write(new_home(), paths.jobs_dir(), str(name))
    if json:
        print_json("mpsq.workload.new/1", name=name, file=str(file))
        return
    print(file)
    say(f"it runs unchanged: mpsq run {name} --device cpu. Change it, and run it again")


def _object(workload: Workload) -> dict[str, Any]:
    from queue_runner.workloads.manifest import LIMITS

    return {
        "name": workload.name,
        "framework": workload.framework,
        "about": workload.about,
        "source": workload.source,
        "params": [
            {
                "name": p.name,
                "default": p.default,
                "unit": p.unit,
                "help": p.help,
                "choices": list(p.choices) or None,
                "each_of": list(p.each_of) or None,
                "path_or": None if p.path_or is None else list(p.path_or),
                **{name: p.limits.get(name) for name in LIMITS},
            }
            for p in workload.params.values()
        ],
        "configs": {name: dict(values) for name, values in workload.configs.items()},
        "file": str(workload.file),
    }


def _text(workload: Workload) -> str:
    facts = [
        ("workload", workload.name),
        ("framework", workload.framework),
        ("about", workload.about),
    ]
    if workload.source:
        facts.append(("source", workload.source))
    lines = [tables.facts(facts, prose=("about", "source")), "", "settings (--set KEY=VALUE):"]
    room = tables.room()
    width = max((len(p.name) for p in workload.params.values()), default=0)
    for param in workload.params.values():
        unit = f" {param.unit}" if param.unit else ""
        default = "none" if param.default is None or param.default == "" else as_text(param.default)
        takes = f" ({text})" if (text := param.takes()) else ""
        text = f"{param.name:<{width}}  {default}{unit}{takes}" + (f"  {param.help}" if param.help else "")
        lines += textwrap.wrap(text, room, initial_indent="  ", subsequent_indent=" " * (width + 4))
    if workload.aliases:
        text = ", ".join(f"{alias} ({key})" for alias, key in workload.aliases.items())
        lines += ["", *textwrap.wrap(f"other names of settings: {text}", room, subsequent_indent="  ")]
    lines += ["", "presets (--config NAME):"]
    for name, values in workload.configs.items():
        text = f"{name}: " + (", ".join(f"{key}={as_text(value)}" for key, value in values.items()) or "the defaults")
        lines += textwrap.wrap(text, room, initial_indent="  ", subsequent_indent="      ")
    return "\n".join(lines)
