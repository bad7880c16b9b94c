"""The options of a submission on the command line: submit, run, bench and schedule add have the same."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Sequence
from inspect import Parameter, Signature, signature
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from queue_runner.errors import UsageError
from queue_runner.submit.submit_options import GROUPS, OPTIONS, REMOVED, Kind, Option, Request


class WithCommand(TyperCommand):
    """A command that leaves what follows `--` unread: the command line of the job."""

    behind = "command"
    usage = "[WORKLOAD | -- COMMAND ...]"
    takes = "one workload"
    n_names = 0
    """How many words belong to this command before that of the job, such as the name of a contest."""
    gathers = False
    """Whether its options are recognized behind a command whose -- is missing, too."""
    lists_options = True
    """Whether the help lists the options of a submission, or refers to those of mpsq submit."""

    def lacks(self) -> tuple[str, ...]:
        """Return the options of mpsq submit that it does not take."""
        return ()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            args, ctx.meta["command"] = args[:at], tuple(args[at + 1 :])
        ctx.meta["options"] = args
        try:
            rest: list[str] = super().parse_args(ctx, [*args])
        except typer.TyperException as error:
            _, command = self.apart(args)
            is_program = any(not word.startswith("-") and shutil.which(word) for word in command[:1])
            if type(error).__name__ == "NoSuchOption" and "command" not in ctx.meta and is_program:
                raise UsageError(
                    f"{ctx.command_path} read the options of the command {shlex.join(command)} as its own",
                    self.where_it_goes(ctx, args),
                ) from error
            flag = str(getattr(error, "option_name", ""))
            if removed := REMOVED.get(flag.strip("-").replace("-", "_")):
                raise UsageError(f"{flag} was removed: {removed[0]}", removed[1]) from error
            raise
        return rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except UsageError as error:  # whose examples are those of mpsq submit
            for example in ("mpsq submit -- ", "mpsq submit nanogpt"):
                path = ctx.command_path if self.behind else "mpsq run"
                error.hint = error.hint.replace(example, f"{path}{example.removeprefix('mpsq submit')}")
            raise

    def apart(self, args: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the words of this command, and those of a command of the job, whose -- is missing.

        That begins with the first word that is neither an option of this command, nor the value of one, nor a name.
        What follows it belongs to it; but, with `gathers`, not the options of this command that are not swept."""
        takes_value = {
            name: not getattr(param, "is_flag", False)
            for param in self.params
            if param.param_type_name == "option"
            for name in (*param.opts, *param.secondary_opts)
        }
        swept = {option.flag for option in OPTIONS.values() if option.kind is Kind.LIST}
        behind = takes_value.keys() - {*swept, *self.lacks()} if self.gathers else ()
        words: list[str] = []
        command: list[str] = []
        n_names, rest = self.n_names, iter(args)
        for word in rest:
            name, equals, _ = word.partition("=")
            if name in (behind if command else takes_value):
                words += [word, *islice(rest, takes_value[name] and not equals)]
            else:
                (words if n_names > 0 else command).append(word)
                n_names -= 1
        return words, command

    def where_it_goes(self, ctx: Any, args: Sequence[str]) -> str:
        """Return a hint with the command line in which what follows the options is a command. If -- is there already,
        the hint names the options."""
        if "command" in ctx.meta:
            return f"before --, give options: {ctx.command_path} --help lists them"
        words, command = self.apart(args)
        if not self.behind:
            return f"for a command, use mpsq run -- {shlex.join(command)}"
        return f"{GOES_AFTER}: {ctx.command_path} {shlex.join([*words, '--', *command])}"

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["[OPTIONS]", self.usage]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options in groups, those that people use most first."""
        titles = ("Arguments", *GROUPS, "How it is measured", "Options")
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in titles}
        for param in self.get_params(ctx):
            record, is_shared = param.get_help_record(ctx), param.name in _SHARED
            if record is None or (is_shared and not self.lists_options):
                continue
            title = "Arguments" if param.param_type_name == "argument" else "Options"
            if self.lists_options and title == "Options":
                title = _GROUP_OF.get(str(param.name), "How it is measured" if is_shared else title)
            sections[title].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
        if not self.lists_options:
            flags = {name for param in self.params if param.name not in _SHARED for name in param.opts}
            *others, final = (option for option in self.lacks() if option not in flags)
            listed = f"{', '.join(others)} and {final}" if others else final
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(f"It also takes what mpsq submit --help lists, except {listed}.")


GOES_AFTER = "a command goes after --"


class LikeSubmit(WithCommand):
    """The same for a command whose help lists only the options that submit does not have."""

    lists_options = False

    def lacks(self) -> tuple[str, ...]:
        return "--from", "--dry-run"


class OfWorkload(LikeSubmit):
    """The same for a command that takes a workload only."""

    behind = ""
    usage = "WORKLOAD"


_TYPES = {
    Kind.NUMBER: int | None,
    Kind.FLAG: bool,
    Kind.SWITCH: bool | None,
    Kind.WORDS: list[str] | None,
    Kind.PAIRS: list[str] | None,
}


def submit_option(name: str) -> Any:
    """Return the declaration of an option of a submission, for a command that has it, too."""
    option = OPTIONS[name]
    words = f"{option.flag}/--no-{option.flag[2:]}" if option.kind is Kind.SWITCH else option.flag
    return typer.Option(words, metavar=option.metavar or None, help=option.help)


def _parameter(option: Option) -> Parameter:
    """Return the parameter of a command's function for an option. None has a default here: a file may give it."""
    declared = submit_option(option.name)
    default = False if option.kind is Kind.FLAG else None
    type_ = _TYPES.get(option.kind, str | None)
    if option.name == "workload":
        declared, type_ = typer.Argument(metavar=option.metavar, help=option.help), list[str] | None
    return Parameter(option.name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[type_, declared])


_SHARED = {option.name: _parameter(option) for option in OPTIONS.values() if option.kind is not Kind.COMMAND}


_GROUP_OF = {name: group for group, names in GROUPS.items() for name in names.split()}


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give `command(ctx, fields, ...)` the options of a submission, as fields of a Request."""

    def run(ctx: typer.Context, **values: Any) -> None:
        command(ctx, _fields(ctx, {name: values.pop(name) for name in _SHARED}), **values)

    return declared(run, command, "fields", _SHARED.values())


def declared(
    run: Callable[..., None], command: Callable[..., None], name: str, options: Iterable[Parameter]
) -> Callable[..., None]:
    """Return `run`, declared as `command` is, with `options` in the place of the parameter `name`."""
    parameters = [
        parameter.replace(kind=Parameter.KEYWORD_ONLY)
        for old in signature(command, eval_str=True).parameters.values()
        for parameter in (options if old.name == name else [old])
    ]
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


def _fields(ctx: typer.Context, values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of the options that were given, and the title. Raises: UsageError."""
    from queue_runner.submit import given_options

    words = values.pop("workload") or []
    commands = words if ctx.info_name == "run" and _are_commands(words, values["cwd"]) else []
    if commands and "command" in ctx.meta:
        remedy = "to compare several commands, quote each and leave out --; to run one, write it after --"
        raise UsageError(f'two commands were given: "{commands[0]}", and another one after --', remedy)
    if len(words) > 1 and not commands:
        raise UsageError(
            f'{ctx.info_name} takes {ctx.command.takes}, not "{" ".join(words)}"',  # type: ignore[attr-defined]
            _instead_of_words(ctx, words),
        )
    given = {
        name: value
        for name, value in values.items()
        if value not in (None, []) and (value is not False or OPTIONS[name].kind is Kind.SWITCH)
    }
    flags = [word.partition("=")[0] for word in ctx.meta["options"]]
    for option in map(OPTIONS.__getitem__, given):
        if option.kind is Kind.LIST and flags.count(option.flag) > 1:
            raise UsageError(f"{option.flag} is given twice", f"write one list: {option.flag} A,B")
    if words and not commands:
        given["workload"] = words[0]
    if command := ctx.meta.get("command"):
        given["command"] = command
    line = title(ctx)  # which refuses a line that is not text
    fields = {**given_options.read(given, whole=True), "title": line}
    return fields | {"commands": commands} if commands else fields


def _instead_of_words(ctx: Any, words: Sequence[str]) -> str:
    """Return a hint for several words in the place of a workload: they may be a command, or several of one word each,
    or workloads."""
    if ctx.command.takes == "one workload" and shutil.which(words[0]) is None and _WORKLOAD.fullmatch(words[0]):
        return f"run {ctx.command_path} once for each workload"
    hint: str = ctx.command.where_it_goes(ctx, ctx.meta["options"])
    programs = [*filter(None, map(shutil.which, words))]
    if ctx.info_name == "run" and len(programs) == len(words) and not _RUNS_OTHERS.fullmatch(words[0]):
        hint += f"; to compare these programs, give their paths: mpsq run {shlex.join(programs)}"
    return hint


_WORKLOAD = re.compile(r"\w+")


def _are_commands(words: list[str], cwd: str | None) -> bool:
    """Return whether words are commands to compare: one is quoted, or each is the path of a program. Not python
    ./train.py nor make test, although both words of these may be programs: they are one command."""
    if any(any(map(str.isspace, word)) for word in words):
        return True
    if len(words) < 2 or not all("/" in word for word in words) or _RUNS_OTHERS.fullmatch(Path(words[0]).name):
        return False
    from queue_runner.submit.expand import folder

    start = folder(Request(cwd=cwd))
    return all(shutil.which(start / word) for word in words)


_RUNS_OTHERS = re.compile(
    r"python[\d.]*|pypy[\d.]*|uv|env|time|nice|(ba|da|z|k|fi)?sh|node|perl|ruby|julia|torchrun|accelerate"
)
"""Programs whose first argument is another one."""


def title(ctx: typer.Context) -> str:
    """Return the command line as it may be stored and shown. Raises: UsageError for one that is not text."""
    from queue_runner.host.redact import without_env_values

    line = shlex.join(["mpsq", *without_env_values(ctx.meta["argv"])])
    try:
        line.encode()
    except UnicodeEncodeError as error:
        message = "the command line contains an argument that is not valid UTF-8"
        raise UsageError(message, "rename the file, or name it in a script that the job runs") from error
    return line
