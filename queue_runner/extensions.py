"""The optional packages, and what each adds to the core: commands, options, parts of the worker, other machines.

An optional package describes itself with one `Extension`, which pyproject.toml names as an entry point of the group
`mpsq.extensions`. The core looks here and imports none of them; a package that is not installed adds nothing. Code is
named as "module:attribute" and imported when it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct, field

from queue_runner.errors import UsageError

if TYPE_CHECKING:
    import sqlite3
    from importlib.metadata import EntryPoint

    from queue_runner.checks import Check
    from queue_runner.config_file import Config
    from queue_runner.paths import Layout

GROUP = "mpsq.extensions"


class AddedCommand(Struct, frozen=True):
    """A command of an optional package: its section of `mpsq --help`, its line there, and the module with its `app`.
    `error_code` is the exit code of every error, where other codes are answers."""

    section: str
    help: str
    module: str
    error_code: int | None = None


class AddedOption(Struct, frozen=True):
    """An option that an optional package adds to a command. If it is given, `handler` is called with its value and with
    what the command passes on, instead of printing (cli/common.py)."""

    command: str
    flag: str
    metavar: str
    help: str
    handler: str
    multiple: bool = False


class Extension(Struct, frozen=True):
    """What one optional package adds."""

    commands: Mapping[str, AddedCommand] = field(default_factory=dict)
    options: Collection[AddedOption] = ()
    importer: str = ""
    """A module with `recognizes(path)` and `import_files(paths, json)`, for `mpsq import`."""
    worker_part: str = ""
    """Makes a `WorkerPart` from (layout, settings, engine, log)."""
    placement: str = ""
    """A module with `placed(request, specs)` and `sent_variables(env, explicit, keeps_places)`, for --on."""
    target_checks: str = ""
    """The checks of `mpsq doctor --on NAME`. Called with (settings, layout, name, smoke)."""
    status_lines: str = ""
    """Returns lines for `mpsq status` and the dashboards, each with its name. Called with a connection that reads."""
    refuses_erasure: str = ""
    """Raises UsageError for jobs whose results must stay. Called with a connection that writes, and their ids."""
    goals: Mapping[str, str] = field(default_factory=dict)
    """By the first word of a goal of rounds: a function that returns why no further round follows, "" while one may.
    Called with the families of the submission and the rest of the goal."""


class WorkerPart(Protocol):
    """Something that the worker does besides running jobs here. It has a thread of its own."""

    def step(self) -> bool:
        """Do what can be done now. Return whether something is under way: the next call then follows in a second, and
        else after a command or some seconds. Raises: MpsqError when the store refuses."""

    def busy(self) -> bool:
        """Return whether work is in progress, so that a worker with --until-idle stays."""

    def stop(self) -> None:
        """End all work in progress: the worker stops."""


def entry_points() -> list[EntryPoint]:
    """Return the entry points of all extensions by their names, each name once."""
    from importlib import metadata  # 20 ms

    points = {point.name: point for point in metadata.entry_points(group=GROUP)}
    return [points[name] for name in sorted(points)]


@cache
def installed() -> tuple[Extension, ...]:
    """Return the extensions that are installed, by the names of their entry points."""
    extensions: list[Extension] = []
    for point in entry_points():
        try:
            extensions.append(point.load())
        except ModuleNotFoundError as error:
            if error.name is None or not point.module.startswith(error.name):
                raise  # the package is there, and lacks a module that it needs
    return tuple(extensions)


def commands() -> dict[str, AddedCommand]:
    """Return the added commands by name."""
    return {name: command for extension in installed() for name, command in extension.commands.items()}


def options(command: str) -> list[AddedOption]:
    """Return the options that are added to a command of the core."""
    return [option for extension in installed() for option in extension.options if option.command == command]


def importers() -> list[Any]:
    """Return the modules that read other files than logs for `mpsq import`."""
    return _added("importer")


def _added(name: str) -> list[Any]:
    """Return what each installed extension that has this field names in it."""
    return [load(reference) for extension in installed() if (reference := getattr(extension, name))]


def worker_parts(layout: Layout, settings: Config, engine: object, log: Callable[[str], None]) -> list[WorkerPart]:
    """Make the parts that are added to the worker."""
    return [make(layout, settings, engine, log) for make in _added("worker_part")]


def placement() -> Any:
    """Return the module that decides where jobs with --on run. Raises: UsageError where none is installed."""
    for module in _added("placement"):
        return module
    raise UsageError("this mpsq cannot send jobs to other machines", "reinstall it with queue_runner.remote")


def target_checks() -> Callable[..., list[Check]] | None:
    """Return the function that checks a target of --on; None where no package sends runs to other machines."""
    return next(iter(_added("target_checks")), None)


def status_lines(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    """Return the lines that are added to `mpsq status`, each with its name: on submissions with an added goal."""
    if connection.execute("SELECT 1 FROM groups WHERE until LIKE '% %' LIMIT 1").fetchone() is None:
        return []  # else every status would look for extensions, which takes 20 ms
    return [line for make in _added("status_lines") for line in make(connection)]


def erasure_checks() -> list[Callable[[Any, Collection[int]], None]]:
    """Return the functions that refuse to erase jobs whose results must stay."""
    return _added("refuses_erasure")


def goal(text: str) -> Callable[[Sequence[Any]], str] | None:
    """Return the function of families that looks whether an added goal is reached; None for a goal of the core."""
    word, space, rest = text.partition(" ")
    if not space:
        return None
    for extension in installed():
        if word in extension.goals:
            return lambda families: str(load(extension.goals[word])(families, rest))
    return lambda _families: f"the part of mpsq that decides it ({word}) is not installed"


def load(reference: str) -> Any:
    """Import what "module:attribute" or "module" names."""
    module, _, attribute = reference.partition(":")
    return getattr(import_module(module), attribute) if attribute else import_module(module)
