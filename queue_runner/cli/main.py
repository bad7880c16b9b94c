"""The `mpsq` command: the only place that turns errors into messages and exit codes. Imports commands when used."""

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

from queue_runner.errors import MpsqError, UsageError, did_you_mean

SECTIONS: dict[str, dict[str, str]] = {
    "Run": {
        "submit": "Queue a workload or a command, over a grid of settings.",
        "run": "Submit jobs, follow their output, and report.",
        "worker": "Run the queue, one job at a time.",
        "rerun": "Queue jobs again, with exactly the code that they ran.",
        "cancel": "Cancel waiting and running jobs.",
        "retry": "Retry runs that did not succeed, as new runs of the same jobs; the old runs are kept.",
        "wait": "Wait until jobs have ended: the named ones, else the newest group, which is said.",
        "schedule": "Submit on a schedule: every night, every Monday.",
    },
    "Arrange": {
        "hold": "Hold waiting jobs until they are released.",
        "release": "Release held jobs.",
        "move": "Change the order of waiting jobs.",
        "edit": "Change the dependencies, times, priority, names, notes and tags of jobs.",
        "pause": "Start no job until mpsq resume. Running jobs continue: mpsq suspend stops them.",
        "resume": "Resume the lane after mpsq pause or mpsq drain.",
        "suspend": "Suspend running jobs until mpsq continue; they keep the lane and their memory.",
        "continue": "Continue jobs that mpsq suspend stopped.",
        "drain": "Let the running job finish, start no other, and report when nothing runs.",
    },
    "Look": {
        "status": "Show running and waiting jobs, and whether there is a worker.",
        "list": "List jobs.",
        "show": "Show everything known about a job or a run, or the summary of a group.",
        "why": "Explain why a job is in its state, and what to do next.",
        "logs": "Print or follow the output of a job.",
        "web": "Show the queue in a browser on this machine: what runs, the history, comparisons, logs.",
    },
    "Measure": {
        "bench": "Queue a workload over this machine's devices and modes, with repeats.",
        "report": "Answer a question from the stored runs.",
        "gallery": "Show the machines side by side, this one and those of merged bundles; never as a ratio.",
        "import": "Import the logs of runs made elsewhere.",
        "merge": "Add the runs of other machines, from their bundles, as tables of their own.",
        "plot": "Draw the rows of a report: their runs, speedups with intervals, time and loss over iterations.",
        "sql": "Ask the database: one SELECT over its views and tables, which cannot change anything.",
        "export": "Write runs, iterations and metrics to files of other tools, or a bundle for another machine.",
        "workloads": "List the workloads, show the settings of one, or create your own.",
        "env": "Manage named environments: other versions of torch, other frameworks.",
    },
    "Keep": {
        "delete": "Remove the files of ended jobs and hide the jobs.",
        "gc": "Remove files that are no longer needed.",
        "doctor": "Check this machine: python, torch, devices, compiler, store.",
        "service": "Run the worker as a service of launchd or systemd.",
        "config": "Show and change the settings.",
        "db": "Maintain the database.",
        "completion": "Print the script that completes commands, options, ids and names with TAB.",
        "help": "List all commands, or explain one.",
    },
}
"""Every command and its line in `mpsq help all`; a test compares the lines with the commands' own."""
FIRST = (
    *("submit", "run", "worker", "status", "list", "show", "why", "logs", "cancel", "report", "workloads", "doctor"),
)
"""The commands of `mpsq --help`."""

COMMANDS = {name: line for section in SECTIONS.values() for name, line in section.items()}

WITHOUT_QUEUE = frozenset({"help", "doctor", "config", "db", "service", "completion", "worker"})
"""The commands that run although the database was lost: they help to get it back, stop the worker, have no need of it,
or refuse in their own way."""
_LEAST_BYTES = 1 << 16
"""A smaller database has no tables."""
_HELP = frozenset({"-h", "--help"})
_MODULES = {"import": "import_", "continue": "continue_", "gc": "gc_"}
_GC_THRESHOLD = 50_000  # a command is mostly imports: garbage collection during them takes 20 to 50 ms of a submit
EXIT_INTERRUPTED = 130  # 128 + SIGINT
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE, as for a program that the signal ended


class Commands(TyperGroup):
    """The commands by name; a command's module is imported when that command is asked for."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta["argv"] = list(args)  # the whole command line: a submission stores it
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
            raise UsageError(
                f'unknown command "{args[0]}"', did_you_mean(args[0], COMMANDS, "mpsq help all lists them")
            )
        if args and args[0] not in WITHOUT_QUEUE and not _HELP.intersection(args):
            _refuse_lost_queue()
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name]) for name in FIRST])
        formatter.write(f"\nmpsq help all lists all {len(COMMANDS)} commands, mpsq help COMMAND explains one.\n")

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


def _refuse_lost_queue() -> None:
    """Raise: DamageError where the database is gone or empty but its queue has left runs or backups."""
    from queue_runner import paths

    db = paths.layout().db
    try:
        if db.stat().st_size >= _LEAST_BYTES:
            return
    except OSError:
        pass
    from queue_runner.store import read

    read.is_there(db)


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


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit code; an error that a user can fix never shows a traceback."""
    if argv is None:
        gc.set_threshold(_GC_THRESHOLD)
    arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 shows "?" instead of failing
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
    """Print what typer reports about a command line, in the style of our messages."""
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
    """Return those of typer's suggestions that are similar: it accepts names with three equal letters."""
    from difflib import get_close_matches

    return get_close_matches(said, near, n=2, cutoff=0.7) or sorted(near)[:2]


def _refused(error: OSError) -> int:
    """Print what the operating system refused, as a sentence."""
    where = f": {error.filename}" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return _complain(
            f"the disk is full{where}", "free some space and run the command again; mpsq doctor checks the disk", 1
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return _complain(
            f"permission denied{where}", "check its owner and mode, or set MPSQ_HOME to a folder of your own", 1
        )
    return _complain(f"{(error.strerror or str(error)).lower()}{where}", "mpsq doctor checks this machine", 1)


def _silence(stream: TextIO) -> None:
    """Redirect the interpreter's flush at exit to /dev/null, once the reader has gone."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


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
