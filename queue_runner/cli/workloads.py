"""mpsq workloads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from queue_runner.cli.common import Json, new_app, print_json

if TYPE_CHECKING:
    from queue_runner.catalog import Workload

app = new_app()


@app.command("workloads")
def workloads(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Show this one's settings and presets.")] = None,
    framework: Annotated[str | None, typer.Option(help="Its version in this framework.")] = None,
    json: Json = False,
) -> None:
    """List the built-in workloads, or one's settings."""
    from queue_runner import catalog, paths, render

    folder = paths.jobs_dir()
    if name is not None:
        found = catalog.find(folder, name, framework)
        if json:
            print_json("mpsq.workload/1", workload=_object(found))
        else:
            print(_text(found))
        return
    known = catalog.workloads(folder)
    if framework is not None:
        known = [workload for workload in known if workload.framework == framework]
    if json:
        print_json("mpsq.workloads/1", workloads=[_object(workload) for workload in known])
        return
    rows = [{**_object(workload), "configs": ", ".join(workload.configs)} for workload in known]
    columns = [
        render.Column("name", "name"),
        render.Column("framework", "framework"),
        render.Column("configs", "configs", words=lambda text: render.shorten(text, 32)),
        render.Column("about", "about", words=lambda text: render.shorten(text, 28)),
    ]
    print(render.table(rows, columns))


def _object(workload: Workload) -> dict[str, Any]:
    return {
        "name": workload.name,
        "framework": workload.framework,
        "about": workload.about,
        "source": workload.source,
        "params": [
            {"name": p.name, "default": p.default, "unit": p.unit, "help": p.help} for p in workload.params.values()
        ],
        "configs": {name: dict(values) for name, values in workload.configs.items()},
        "file": str(workload.file),
    }


def _text(workload: Workload) -> str:
    import textwrap

    from queue_runner import render

    facts = [("workload", workload.name), ("framework", workload.framework), ("about", _wrapped(workload.about))]
    if workload.source:
        facts.append(("source", _wrapped(workload.source)))
    lines = [render.facts(facts), "", "settings (--set KEY=VALUE):"]
    width = max((len(p.name) for p in workload.params.values()), default=0)
    for param in workload.params.values():
        unit = f" {param.unit}" if param.unit else ""
        default = "none" if param.default is None or param.default == "" else _value(param.default)
        text = f"{param.name:<{width}}  {default}{unit}" + (f"  {param.help}" if param.help else "")
        lines += textwrap.wrap(text, 78, initial_indent="  ", subsequent_indent=" " * (width + 4))
    lines += ["", "presets (--config NAME):"]
    for name, values in workload.configs.items():
        text = f"{name}: " + (", ".join(f"{key}={_value(value)}" for key, value in values.items()) or "the defaults")
        lines += textwrap.wrap(text, 78, initial_indent="  ", subsequent_indent="      ")
    return "\n".join(lines)


def _wrapped(text: str) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(text, 66))


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
