"""What could come next on a command line of mpsq: the answer to a TAB, in a few hundredths of a second.

Neither typer nor sqlalchemy is imported for it. It never complains: where there is nothing to say - no queue yet, a
damaged database, a newer one - it says nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from queue_runner.cli.complete_line import split, text_behind_break
from queue_runner.cli.complete_table import COMMANDS, GROUPS
from queue_runner.cli.complete_values import Answer, Line, safe, values
from queue_runner.text import plain

_HELP = ("-h", "Show the help and exit")
_DESCRIPTION_WIDTH = 60


def main(arguments: Sequence[str]) -> None:
    """Print the answer for `bash LINE WORDBREAKS`, `fish LINE` or `zsh WORD...`; the last word is the one to complete.

    The first line is how: words, nospace (no blank behind the word), file, folder, or `command N` (the Nth word begins
    the command line of another program). Then come the candidates, with what they mean as the shell takes it.
    """
    try:
        shell, *said = arguments
        words = list(said) if shell == "zsh" else split(said[0])
        found = answer(words[1:-1], words[-1])
        cut = len(words[-1]) - len(text_behind_break(words[-1], said[1])) if shell == "bash" else 0
        lines = [_line(shell, value[cut:], about) for value, about in found.candidates if safe(value)]
        text = "\n".join([found.how, *lines])
        sys.stdout.buffer.write(text.encode("utf-8", "replace") + b"\n")
    except Exception:
        pass  # a TAB is no place for an error


def _line(shell: str, value: str, about: str) -> str:
    about = " ".join(plain(about).split())
    about = about if len(about) <= _DESCRIPTION_WIDTH else about[: _DESCRIPTION_WIDTH - 1].rstrip() + "…"
    if shell == "bash" or not about:
        return value.replace(":", "\\:") if shell == "zsh" else value
    return f"{value}\t{about}" if shell == "fish" else value.replace(":", "\\:") + f":{about}"


def answer(words: Sequence[str], current: str) -> Answer:
    """What fits `current`, behind the words that are there already (without mpsq itself)."""
    return _fitting(_answer(list(words), current), current)


def _fitting(found: Answer, current: str) -> Answer:
    return Answer(found.how, [pair for pair in found.candidates if pair[0].startswith(current)])


def _answer(words: list[str], current: str) -> Answer:
    while words and words[0].startswith("-"):
        del words[0]
    if not words:
        if current.startswith("-"):
            return Answer("words", [("--version", "Print the version and exit"), ("--help", _HELP[1])])
        return Answer("words", [(name, about) for name, about in _names("")])
    name = words.pop(0)
    if name in GROUPS:
        if not words:
            return Answer("words", list(_names(name + " ")))
        name = f"{name} {words.pop(0)}"
    if name not in COMMANDS:
        return Answer("words", [])
    if "--" in words and COMMANDS[name].behind:
        at = words.index("--")
        behind = words[at + 1 :]
        if COMMANDS[name].behind == "command":
            return Answer(f"command {len(behind) + 1}", [])
        return _answer(["submit", *behind], current)
    return _of_command(name, words, current)


def _names(prefix: str) -> list[tuple[str, str]]:
    """The commands, or those of a group, with their help."""
    if prefix:
        return [(name.removeprefix(prefix), said.help) for name, said in COMMANDS.items() if name.startswith(prefix)]
    return list(
        dict.fromkeys((words.split()[0], GROUPS.get(words.split()[0], said.help)) for words, said in COMMANDS.items())
    )


def _of_command(name: str, words: list[str], current: str) -> Answer:
    _about, arguments, repeats, options, behind = COMMANDS[name]
    line, wanting = _read(name, words)
    if wanting is not None:
        return values(wanting, current, line)
    option, equals, value = current.partition("=")
    if equals and option in options and options[option][0] is not None:
        found = values(str(options[option][0]), value, line)
        return Answer(found.how, [(f"{option}={word}", about) for word, about in found.candidates])
    if not current.startswith("-"):
        at = len(line.arguments)
        kind = arguments[min(at, len(arguments) - 1)] if arguments and (repeats or at < len(arguments)) else None
        found = values(kind, current, line) if kind is not None else Answer("words", [])
        if current or found.how != "words" or found.candidates:
            return found
    left = [(word, said[2]) for word, said in options.items() if word not in line.options or said[1]]
    more = [("--", "a command line follows")] if behind else []
    return Answer("words", [*left, ("--help", _HELP[1]), *more])


def _read(name: str, words: Sequence[str]) -> tuple[Line, str | None]:
    """The words of a command by what they are, and the kind of value that the next has to be, if it has to."""
    options = COMMANDS[name].options
    line, waiting = Line(name, [], {}), None
    for word in words:
        if waiting is not None:
            line.options.setdefault(waiting, []).append(word)
            waiting = None
        elif word.startswith("-") and word != "-":
            option, equals, value = word.partition("=")
            line.options.setdefault(option, []).extend([value] if equals else [])
            if not equals and options.get(option, (None,))[0] is not None:
                waiting = option
        else:
            line.arguments.append(word)
    return line, None if waiting is None else str(options[waiting][0])
