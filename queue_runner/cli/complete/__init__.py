"""Completion: what can come next on a command line, read from the Typer commands themselves at each TAB.

It never complains: where there is nothing to offer - no queue yet, a damaged or newer database - it offers nothing.
Typer's own scripts are not used: they complete neither file names nor the command behind `--`, need bash 4.4 (macOS has
3.2), and pass words on that the shell would expand.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from queue_runner.cli.complete.values import Completion, TypedLine, is_safe, kind_of, values

if TYPE_CHECKING:
    from typer.core import TyperCommand

_HELP = ("--help", "Show this message and exit")
_DESCRIPTION_WIDTH = 60
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


def main(arguments: Sequence[str]) -> None:
    """Print the answer to `bash LINE WORDBREAKS`, `fish LINE` or `zsh WORD...`; the last word is to be completed.

    The first line tells the shell how to go on: words, nospace (words, with no blank after them), file, folder, or
    `command N` (the Nth word begins the command line of another program). The candidates follow, one per line, with
    their descriptions in the shell's syntax.
    """
    try:
        shell, *rest = arguments
        words = rest if shell == "zsh" else split(rest[0])
        reply = answer(words[1:-1], words[-1])
        start = len(words[-1]) - len(after_break(words[-1], rest[1])) if shell == "bash" else 0
        lines = [_formatted(shell, word[start:], about) for word, about in reply.candidates if is_safe(word)]
        sys.stdout.buffer.write(("\n".join([reply.how, *lines]) + "\n").encode("utf-8", "replace"))
    except Exception:
        pass  # a traceback would be written into the line that is being typed


def split(line: str) -> list[str]:
    """Return the words of an unfinished command line: the last, perhaps "", is the one to complete.

    Quotes need not be closed. Assignments before the command are left out.
    """
    lexer = shlex.shlex(line + "\0", posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        words.extend(lexer)
    except ValueError:  # an open quote: the lexer holds the word so far
        words.append(lexer.token)
    words = [word.replace("\0", "") for word in words]
    while len(words) > 1 and _ASSIGNMENT.match(words[0]):
        del words[0]
    return words


def after_break(word: str, breaks: str) -> str:
    """Return the part of `word` after the last of bash's COMP_WORDBREAKS: the only part that bash replaces."""
    at = max((word.rfind(letter) for letter in breaks if letter in "=:"), default=-1)
    return word[at + 1 :]


def _formatted(shell: str, value: str, about: str) -> str:
    from queue_runner.text import plain

    about = " ".join(plain(about).split())
    about = about if len(about) <= _DESCRIPTION_WIDTH else about[: _DESCRIPTION_WIDTH - 1].rstrip() + "…"
    if shell == "bash" or not about:
        return value.replace(":", "\\:") if shell == "zsh" else value
    return f"{value}\t{about}" if shell == "fish" else value.replace(":", "\\:") + f":{about}"


def answer(words: Sequence[str], current: str) -> Completion:
    """Return what can complete `current`, given the words before it (without `mpsq` itself)."""
    how, candidates = _answer(list(words), current)
    return Completion(how, [candidate for candidate in candidates if candidate[0].startswith(current)])


def _answer(words: list[str], current: str) -> Completion:
    from typer.main import get_command

    from queue_runner.cli.main import ALIASES, app, commands

    root: Any = get_command(app)
    while words and words[0].startswith("-"):
        del words[0]
    if not words:
        options = [(word, option.help or "") for option in root.params for word in option.opts]
        return Completion("words", [*options, _HELP] if current.startswith("-") else list(commands().items()))
    words[0] = ALIASES.get(words[0], words[0])
    if words[0] not in commands():
        return Completion("words", [])
    command, at = root.get_command(None, words[0]), 1
    if below := getattr(command, "commands", None):
        if len(words) == 1:
            return Completion("words", [(name, _first_sentence(subcommand.help)) for name, subcommand in below.items()])
        if words[1] not in below:
            return Completion("words", [])
        command, at = below[words[1]], 2
    behind = getattr(command, "behind", "")
    if "--" in words[at:] and behind:
        rest = words[words.index("--", at) + 1 :]
        return Completion(f"command {len(rest) + 1}", []) if behind == "command" else _answer([behind, *rest], current)
    return _of_command(command, TypedLine(" ".join(words[:at]), [], {}), words[at:], current)


def _of_command(command: TyperCommand, line: TypedLine, words: Sequence[str], current: str) -> Completion:
    params: list[Any] = command.params
    options = {word: option for option in params if option.param_type_name == "option" for word in option.opts}
    wanting = _read(options, words, line)
    if wanting is not None:
        return values(kind_of(line.command, options[wanting]), current, line)
    name, equals, value = current.partition("=")
    if equals and name in options and not options[name].is_flag:
        how, candidates = values(kind_of(line.command, options[name]), value, line)
        return Completion(how, [(f"{name}={word}", about) for word, about in candidates])
    if not current.startswith("-"):
        arguments = [option for option in params if option.param_type_name == "argument"]
        next_ = [option for n, option in enumerate(arguments) if n == len(line.arguments) or option.nargs == -1]
        offered = values(kind_of(line.command, next_[0]), current, line) if next_ else Completion("words", [])
        if current or offered.how != "words" or offered.candidates:
            return offered
    left = [
        (w, _first_sentence(option.help)) for w, option in options.items() if w not in line.options or option.multiple
    ]
    more = [("--", "a command line follows")] if getattr(command, "behind", "") else []
    return Completion("words", [*left, _HELP, *more])


def _read(options: dict[str, Any], words: Sequence[str], line: TypedLine) -> str | None:
    """Sort the words of a command into `line`; return the option whose value comes next, if one does."""
    waiting = None
    for word in words:
        if waiting is not None:
            line.options[waiting].append(word)
            waiting = None
        elif word.startswith("-") and word != "-":
            option, equals, value = word.partition("=")
            line.options.setdefault(option, []).extend([value] if equals else [])
            if not equals and option in options and not options[option].is_flag:
                waiting = option
        else:
            line.arguments.append(word)
    return waiting


def _first_sentence(text: str | None) -> str:
    return " ".join((text or "").split()).split(". ")[0].rstrip(".")
