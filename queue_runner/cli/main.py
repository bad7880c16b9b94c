"""`mpsq`: the one place where errors become sentences and exit codes. Each command is a file, read when used."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, NoReturn, TextIO

import typer
from typer.core import TyperGroup
from typer.main import get_command

from queue_runner.errors import MpsqError

SECTIONS: dict[str, dict[str, str]] = {
    "Run": {
        "submit": "Queue a workload or a command, over a grid of settings.",
        "run": "Submit, follow what the jobs write, and report.",
        "worker": "Run the queue, one job at a time.",
        "rerun": "Queue jobs once more, with the very code that they ran.",
        "cancel": "End jobs, whether they wait or run.",
        "retry": "Run again what did not succeed: new runs of the same jobs; the old ones are kept.",
        "wait": "Wait until jobs have ended.",
        "schedule": "Submit by the clock: every night, every Monday.",
    },
    "Arrange": {
        "hold": "Keep waiting jobs from starting until they are released.",
        "release": "Let held jobs go.",
        "move": "Change the order of what waits.",
        "edit": "Change what jobs wait for, when they run, and what is written on them.",
        "pause": "Let nothing start until mpsq resume. What runs goes on: mpsq suspend stops it.",
        "resume": "Let the lane go on after mpsq pause or mpsq drain.",
        "suspend": "Let running jobs stand still until mpsq continue; the lane and their memory stay taken.",
        "continue": "Let jobs go on that mpsq suspend stopped.",
        "drain": "Let the current job finish, start none, and say when nothing runs.",
    },
    "Look": {
        "status": "Show what runs, what waits, and whether a worker is there.",
        "list": "List jobs.",
        "show": "Show all that is known of a job or a run.",
        "why": "Say why a job is in its state, and what to do next.",
        "logs": "Print what a job wrote, or follow it.",
    },
    "Measure": {
        "bench": "Queue a workload over this machine's devices and modes, with repeats.",
        "report": "Answer a question from the runs that are stored.",
        "import": "Take over the logs of runs that happened elsewhere.",
        "workloads": "List the workloads, show one's settings, or begin one of your own.",
        "env": "Keep environments by name: other versions of torch, another framework.",
    },
    "Keep": {
        "delete": "Remove the files of ended jobs and hide the jobs.",
        "gc": "Remove files that are not needed any more.",
        "doctor": "Check this machine: python, torch, devices, compiler, store.",
        "service": "Run the worker as a service of launchd or systemd.",
        "config": "Read and change the settings.",
        "db": "Look after the database.",
        "completion": "Print what a shell needs to complete commands, options, ids and names with TAB.",
    },
}
"""Every command and its line in `mpsq --help`; a test compares the lines with the commands' own."""

COMMANDS = {name: line for section in SECTIONS.values() for name, line in section.items()}

_MODULES = {"import": "import_", "continue": "continue_", "gc": "gc_"}
_GC_THRESHOLD = 50_000  # a command is mostly imports: looking for garbage in them takes 20 to 50 ms of a submit
EXIT_INTERRUPTED = 130  # 128 + SIGINT
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE, what a program says that the signal ended


class Commands(TyperGroup):
    """The commands by name; a command's module is imported when that command is asked for."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta["argv"] = list(args)  # the whole command line: a submission remembers it
        rest: list[str] = super().parse_args(ctx, args)
        return rest

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        command = get_command(import_module(f"queue_runner.cli.{_MODULES.get(cmd_name, cmd_name)}").app)
        command.name = cmd_name
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS:
            raise _unknown_command(args[0])
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(list(commands.items()))

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


def _version(asked: bool) -> None:
    if asked:
        from queue_runner import __version__

        print(f"mpsq {__version__}")
        raise typer.Exit()


@app.callback(epilog="Ids: 12 is a job, 12.3 a run, g4 a group, @last the newest group. Exit codes: see docs/cli.md.")
def _mpsq(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """An experiment queue for training benchmarks: one accelerator, one job at a time, numbers you can trust."""


def _unknown_command(name: str) -> MpsqError:
    from queue_runner.errors import UsageError, did_you_mean

    return UsageError(f'no command "{name}"', did_you_mean(name, COMMANDS, "mpsq --help lists them"))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit code; an error a user can mend never shows a traceback."""
    if argv is None:
        gc.set_threshold(_GC_THRESHOLD)
    arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 shows "?" and gets on with it
    code = _run(arguments)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = EXIT_BROKEN_PIPE
    if code == EXIT_BROKEN_PIPE:
        _silence(sys.stdout)
    return code


def _run(arguments: list[str]) -> int:
    try:
        code = get_command(app).main(args=arguments, prog_name="mpsq", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except MpsqError as error:
        return _complain(error.message, error.hint, error.exit_code)
    except typer.TyperException as error:
        return _misused(error)
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1
    except BrokenPipeError:
        return EXIT_BROKEN_PIPE
    except OSError as error:
        return _refused(error)


def _complain(message: str, hint: str, code: int) -> int:
    from queue_runner.text import plain

    sys.stdout.flush()
    print(f"error: {plain(message)}", file=sys.stderr)
    if hint:
        print(f"\nhint: {plain(hint)}", file=sys.stderr)
    return code


def _misused(error: typer.TyperException) -> int:
    """What typer says of a command line, in our words' style."""
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message())
        return 0
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "mpsq"
    near = _nearest(getattr(error, "option_name", ""), getattr(error, "possibilities", None) or ())
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    message = error.message if near else error.format_message()
    message = message.strip().removesuffix(".")
    return _complain(message[:1].lower() + message[1:], f"{hint}see {path} --help", error.exit_code)


def _nearest(said: str, near: Sequence[str]) -> list[str]:
    """Of the names that typer calls near, those that are: it counts three equal letters as enough."""
    from difflib import get_close_matches

    return get_close_matches(said, near, n=2, cutoff=0.7) or sorted(near)[:2]


def _refused(error: OSError) -> int:
    """What the operating system refuses, as a sentence."""
    where = f": {error.filename}" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return _complain(
            f"the disk is full{where}", "free some space and run the command again; mpsq doctor looks at it", 1
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return _complain(
            f"permission denied{where}", "check its owner and mode, or set MPSQ_HOME to a folder of yours", 1
        )
    return _complain(f"{(error.strerror or str(error)).lower()}{where}", "mpsq doctor looks at this machine", 1)


def _silence(stream: TextIO) -> None:
    """Let the interpreter's own flush at exit go nowhere, once nobody reads any more."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except (OSError, ValueError):
        pass


def entry() -> NoReturn:
    """The `mpsq` command. It leaves without taking the interpreter apart, which would cost submit 40 of its 330 ms:
    everything that was written is committed, and nothing here waits for an exit handler."""
    code = main()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    entry()
