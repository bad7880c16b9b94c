"""The `mpsq` command: the only place that turns errors into messages and exit codes. Imports commands when used."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import re
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import zip_longest
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup, TyperOption
from typer.main import get_command

from queue_runner import extensions
from queue_runner.cli.common import ADDED
from queue_runner.errors import MpsqError, UsageError, did_you_mean
from queue_runner.extensions import AddedOption

SECTIONS: dict[str, dict[str, str]] = {
    "Submit": {
        "submit": "queue a job, or a sweep",
        "run": "submit, follow, report",
        "bench": "compare devices and modes",
        "retry": "run failed runs again",
        "rerun": "queue jobs again, same code",
        "schedule": "submit at given times",
        "workloads": "list and create workloads",
        "env": "manage environments",
    },
    "Look": {
        "status": "what runs and what waits",
        "list": "list jobs",
        "show": "all about a job or group",
        "why": "why a job is in its state",
        "logs": "the output of a job",
        "wait": "wait until jobs have ended",
    },
    "Control": {
        "pause": "pause the queue or a job",
        "resume": "end a pause",
        "edit": "change or move jobs",
        "cancel": "end jobs",
        "delete": "delete ended jobs",
    },
    "Results": {
        "report": "answer from stored runs",
        "compare": "two jobs, side by side",
        "import": "read logs and exports",
    },
    "Set up": {
        "worker": "run the queue",
        "service": "run the worker at login",
        "doctor": "check this machine",
        "config": "show and change settings",
        "db": "query, back up, upgrade",
        "gc": "free disk space",
        "completion": "complete words with TAB",
    },
}
"""The commands of the core and what each does, in the words of `mpsq --help`."""
_COMMANDS = {name: text for section in SECTIONS.values() for name, text in section.items()}
_COLUMNS = (("Submit", "Look"), ("Control", "Results", "Set up"))
"""The sections of each column of `mpsq --help`; a terminal of 60 columns gets one below the other."""
_COLUMN_WIDTH = 40

ALIASES = {"add": "submit", "kill": "cancel", "log": "logs", "ls": "list", "ps": "status", "rm": "delete"}
RENAMED = {
    "config get": "config list",
    "config path": "config list",
    "continue": "resume",
    "drain": "pause --when-done",
    "gallery": "report gallery",
    "hold": "pause",
    "merge": "import",
    "move": "edit --top",
    "plot": "report --plot",
    "release": "resume",
    "schedule next": "schedule list",
    "sql": "db sql",
    "suspend": "pause --now",
}
"""Commands of earlier versions, and what to type instead."""

RENAMED_OPTIONS = {
    "completion --install": "mpsq completion bash > FILE, where your shell looks for it",
    **{f"rerun {flag}": f"mpsq edit ID {flag} sets it for the new job" for flag in ("--note", "--priority", "--tag")},
    **{
        f"{command} --rounds": "--repeats N makes N rounds, each of one run per job"
        for command in ("submit", "run", "bench", "schedule add")
    },
    "report --submit": "mpsq rerun ID --missing queues the runs that mpsq report missing ID lists",
    "compare --by": "mpsq compare shows each metric; mpsq report ID ID --by METRIC compares by it",
    "--both": "mpsq logs shows both streams without an option",
    "--failed": "mpsq retry needs no option for it, and mpsq list has --state failed",
    "--group": "name it without an option, g4 or @last",
    "--no-after": "--after '' removes the dependencies",
    "--no-at": "--at '' removes the time",
    "--no-deadline": "--deadline '' removes it",
}
"""Options that a command does not have, or no command has, although users look for them; and what to type instead."""

WITHOUT_QUEUE = frozenset({"doctor", "config", "db", "service", "completion", "worker"})
"""The commands that run although the database was lost: they help to get it back, stop the worker, have no need of it,
or refuse in their own way."""
_LEAST_BYTES = 1 << 16
"""A smaller database has no tables."""
_HELP = frozenset({"-h", "--help"})
_MODULES = {"import": "import_:app", "gc": "gc_:app", "resume": "pause:resume_app"}
_GC_THRESHOLD = 50_000  # a command is mostly imports: garbage collection during them takes 20 to 50 ms of a submit
EXIT_INTERRUPTED = 130  # 128 + SIGINT
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE, as for a program that the signal ended


_WITH_ADDED_OPTIONS = frozenset({"report", "compare", "export"})


def commands() -> dict[str, str]:
    """Return every command and what it does, those of optional packages last."""
    return _COMMANDS | {name: command.help for name, command in extensions.commands().items()}


def _is_command(name: str) -> bool:
    return name in _COMMANDS or name in extensions.commands()


def _load(name: str) -> Any:
    if name in _COMMANDS:
        module, _, attribute = _MODULES.get(name, f"{name}:app").partition(":")
        command = get_command(getattr(import_module(f"queue_runner.cli.{module}"), attribute))
    else:
        command = get_command(import_module(extensions.commands()[name].module).app)
    command.name = name
    if name in _WITH_ADDED_OPTIONS:
        command.params += [_option(added) for added in extensions.options(name)]
    return command


def _option(added: AddedOption) -> TyperOption:
    def keep(ctx: Any, param: Any, value: Any) -> None:
        if value:
            ctx.meta.setdefault(ADDED, []).append((added, value))

    return TyperOption(
        param_decls=[added.flag],
        type=str,
        metavar=added.metavar,
        help=added.help,
        multiple=added.multiple,
        expose_value=False,
        callback=keep,
    )


class Commands(TyperGroup):
    """The commands by name; a command's module is imported when that command is used."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args[:1] == ["help"]:
            args = [*(word for word in args[1:] if word != "all"), "--help"]
        ctx.meta["argv"] = list(args)  # the whole command line: a submission stores it
        rest: list[str] = super().parse_args(ctx, args)
        return rest

    def list_commands(self, ctx: Any) -> list[str]:
        return list(commands())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        name = ALIASES.get(cmd_name, cmd_name)
        return _load(name) if _is_command(name) else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = ALIASES.get(args[0], args[0])
        if not _is_command(name):
            raise _unknown(name, commands(), "mpsq")
        if name not in WITHOUT_QUEUE and not _HELP.intersection(args):
            _refuse_lost_queue()
        return super().resolve_command(ctx, [name, *args[1:]])

    def format_help(self, ctx: Any, formatter: Any) -> None:
        columns = [[line for title in titles for line in _section(title)] for titles in _COLUMNS]
        if formatter.width >= 2 * _COLUMN_WIDTH - 2:  # click leaves two columns free
            lines = [f"{left:<{_COLUMN_WIDTH}}{right}".rstrip() for left, right in zip_longest(*columns, fillvalue="")]
        else:
            lines = [line for column in columns for line in column]
        formatter.write("Usage: mpsq COMMAND ...  One accelerator, one job at a time.\n")
        formatter.write("\n".join(lines) + "\n")
        formatter.write("Ids: job 12, run 12.3, group g4, @last (newest), or a name.\n")
        formatter.write("mpsq COMMAND --help explains one; mpsq --version.\n")

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise typer.Exit(EXIT_BROKEN_PIPE) from None


app = typer.Typer(
    cls=Commands,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _unknown(name: str, known: Sequence[str] | Mapping[str, str], path: str) -> UsageError:
    """Return the error for a word that is not a command, or none of the `known` ones below that of the `path`."""
    line = f"{path} {name}".removeprefix("mpsq ")
    if new := RENAMED.get(line):
        return UsageError(f"mpsq {line} is now mpsq {new}", f"mpsq {new.split()[0]} --help explains it")
    if path == "mpsq config":
        from queue_runner.config_file import KEYS

        if name in KEYS:
            return UsageError(f'unknown command "{line}"', f"mpsq config set {name} VALUE changes the setting")
    return UsageError(f'unknown command "{line}"', did_you_mean(name, known, f"see {path} --help for all commands"))


def _section(title: str) -> list[str]:
    added = {name: command.help for name, command in extensions.commands().items() if command.section == title}
    return [f"{title}:", *(f"  {name:<11}{text}" for name, text in (SECTIONS[title] | added).items())]


def _refuse_lost_queue() -> None:
    """Raise DamageError where the database is missing or empty but there are runs or backups of its queue."""
    from queue_runner import paths

    db = paths.layout().db
    try:
        if db.stat().st_size >= _LEAST_BYTES:
            return
    except OSError:
        pass
    from queue_runner.store import read

    read.is_there(db)


def _version(value: bool) -> None:
    if value:
        from queue_runner import __version__

        print(f"mpsq {__version__}")
        raise typer.Exit()


@app.callback()
def _mpsq(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """An experiment queue for training benchmarks: one accelerator, one job at a time, numbers you can trust."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit code; an error that a user can fix never shows a traceback."""
    if argv is None:
        gc.set_threshold(_GC_THRESHOLD)
    arguments = list(sys.argv[1:] if argv is None else argv)
    is_bare, arguments = not arguments, arguments or _overview()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 shows "?" instead of failing
    code = _run(arguments)
    if is_bare and not code:
        print(f"\nnext: {_next_step(arguments)}", file=sys.stderr)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = EXIT_BROKEN_PIPE
    if code == EXIT_BROKEN_PIPE:
        with contextlib.suppress(OSError, ValueError):  # the interpreter's flush at exit must not fail, too
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _overview() -> list[str]:
    """Return what mpsq alone runs: the status of the queue, or without one the help."""
    from queue_runner import paths

    try:
        return ["status"] if paths.layout().db.exists() else ["--help"]
    except MpsqError:
        return ["--help"]


def _next_step(arguments: Sequence[str]) -> str:
    """Return the command that a user most likely needs after `arguments`, of `_overview`."""
    if arguments != ["status"]:
        return "mpsq run nanogpt --config tiny, or mpsq run 'sleep 0.2' 'sleep 0.4'"
    from queue_runner import paths
    from queue_runner.monitor import queue_status, status_text

    return status_text.next_step(queue_status.read_status(paths.layout(), waiting=1))


def _run(arguments: list[str]) -> int:
    try:
        code = get_command(app).main(args=arguments, prog_name="mpsq", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except MpsqError as error:
        return _complain(error.message, error.hint, _error_code(arguments) or error.exit_code)
    except typer.TyperException as error:
        return _misused(error, arguments)
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1
    except BrokenPipeError:
        return EXIT_BROKEN_PIPE
    except OSError as error:
        return _refused(error, _error_code(arguments) or 1)
    except Exception:
        if (error_code := _error_code(arguments)) is None:
            raise
        sys.excepthook(*sys.exc_info())
        return error_code


def _error_code(arguments: Sequence[str]) -> int | None:
    """Return the exit code that an added command has for its errors."""
    added = extensions.commands().get(arguments[0])
    return None if added is None else added.error_code


def _complain(message: str, hint: str, code: int) -> int:
    from queue_runner.text import plain

    sys.stdout.flush()
    print(f"error: {plain(message)}", file=sys.stderr)
    if hint:
        print(f"\nhint: {plain(hint)}", file=sys.stderr)
    return code


_NO_COMMAND = re.compile(r"No such command '([^']*)'\.")
_EXTRA = re.compile(r"Got unexpected extra argument\S* \((.*)\)")
_NO_NUMBER = re.compile(r"'(.*)' is not a valid (int|int range|float|float range)\.?")


def _misused(error: typer.TyperException, arguments: Sequence[str]) -> int:
    """Print what typer reports about a command line, in the style of our messages."""
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message())
        return 0
    context = getattr(error, "ctx", None)
    command = ALIASES.get(arguments[0], arguments[0])  # typer names none where an option lacks its value
    path = context.command_path if context is not None else f"mpsq {command}" if _is_command(command) else "mpsq"
    suggestions = getattr(error, "possibilities", None) or ()  # typer's: also names that share three letters
    if unknown := _NO_COMMAND.match(error.format_message()):
        refused = _unknown(unknown[1], context.command.list_commands(context) if context is not None else (), path)
        return _complain(refused.message, refused.hint, refused.exit_code)
    if extra := _EXTRA.fullmatch(error.format_message()):
        return _complain(f'{path} does not take "{extra[1]}"', f"see {path} --help", error.exit_code)
    option = getattr(error, "option_name", None) or ""
    near = _nearest(option, suggestions)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    if new := RENAMED_OPTIONS.get(f"{path.removeprefix('mpsq ')} {option}", RENAMED_OPTIONS.get(option)):
        hint = f"{new}; "
    message = error.message if suggestions else error.format_message()
    message = message.strip().removesuffix(".")
    param, number = getattr(error, "param", None), _NO_NUMBER.fullmatch(error.message)
    if param is not None and number:
        flag, kind = param.opts[0], "number" if number[2] == "float" else "whole number"
        return _complain(
            f'{flag}: "{number[1]}" is not a {kind}', f"{flag} {param.metavar}: {param.help}", error.exit_code
        )
    return _complain(message[:1].lower() + message[1:], f"{hint}see {path} --help", error.exit_code)


def _nearest(word: str, suggestions: Sequence[str]) -> list[str]:
    """Return at most two suggestions that are similar to a word, or begin with it."""
    from difflib import get_close_matches

    longer = sorted(name for name in suggestions if name.startswith(word))
    return get_close_matches(word, suggestions, n=2, cutoff=0.7) or longer[:2]


def _refused(error: OSError, code: int) -> int:
    """Print what the operating system refused, as a sentence."""
    where = f": {error.filename}" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return _complain(
            f"the disk is full{where}", "free some space and run the command again; mpsq doctor checks the disk", code
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return _complain(
            f"permission denied{where}", "check its owner and mode, or set MPSQ_HOME to a folder of your own", code
        )
    return _complain(f"{(error.strerror or str(error)).lower()}{where}", "mpsq doctor checks this machine", code)


def entry() -> NoReturn:
    """Run the `mpsq` command. It exits without finalizing the interpreter, which would cost submit 40 of its 330 ms:
    everything written is committed, and nothing here needs an exit handler."""
    code = main()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    entry()
