"""Many jobs from a file: one object per line, each with the options of `mpsq submit` by name.

They become one plan, all or none. A line may wait for others of the file by their `name`.
"""

from __future__ import annotations

import graphlib
import itertools
import json
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, BinaryIO

from msgspec import Struct
from msgspec.structs import replace

from queue_runner import units
from queue_runner.errors import UsageError, did_you_mean
from queue_runner.host import redact
from queue_runner.model import Condition, Dependency
from queue_runner.paths import expanded
from queue_runner.spec import MOST_NAME, NewJob
from queue_runner.submit import expand, given_options, run_order
from queue_runner.submit import plan as submit
from queue_runner.submit.given_options import Fields
from queue_runner.submit.plan import Plan, Sibling
from queue_runner.submit.submit_options import Request
from queue_runner.text import one_line

MAX_BYTES = 64 << 20
"""Largest file: 100,000 jobs of 600 bytes each."""
MAX_DEPENDENCIES = 100_000
_LATER: dict[str, Any] = dict.fromkeys(("until", "by", "same_within", "budget_s"))
"""Options that are checked for all lines together."""
_EXAMPLE = 'a line is one job, as {"workload": "nanogpt", "device": "cpu", "set": {"lr": 0.001}}'
_ID = re.compile(r"@last|g?[0-9]{1,18}(\.[0-9]{1,9})?")


class Line(Struct, frozen=True):
    """A job of the file: its position ("line 3"), its name, and its JSON, or the object if it is from no file.

    The options are read again where they are needed: of 100,000 lines they would take 100 MB."""

    where: str
    name: str | None
    content: str | dict[str, Any]

    def fields(self) -> dict[str, Any]:
        """Return its own options. Raises: UsageError."""
        item = _parsed(self.content, self.where) if isinstance(self.content, str) else self.content
        return given_options.read(item)


def plan(path: str, defaults: Fields) -> Plan:
    """Return the plan of all jobs in the file, `-` for standard input. Nothing is stored.

    Runs are in rounds of drawn order, as those of a grid: in the order of the file, a line that is always first would
    look slower or faster than it is.

    Raises: UsageError, which names the line and its error, or a file that cannot be read.
    """
    lines = read(_content(path))
    if not lines:
        raise UsageError(f"{_shown(path)} contains no jobs", _EXAMPLE)
    return plan_of(lines, defaults)


def plan_of_commands(commands: Sequence[str], defaults: Fields) -> Plan:
    """Return the plan of a comparison of command lines; each is the name of its row. Raises: UsageError."""
    if "name" in defaults and len(commands) > 1:
        raise UsageError("--name cannot name several commands", "leave it out: each row is named by its command")
    names = [defaults.get("name") or _row_name(text, number) for number, text in enumerate(commands, start=1)]
    lines = [Line(f'"{name}"', name, {**_job(text), "name": name}) for name, text in zip(names, commands, strict=True)]
    planned = plan_of(lines, defaults, measures=True)
    return planned if "name" in defaults else replace(planned, names=frozenset())


def _row_name(text: str, number: int) -> str:
    """Return a command line as a name: on one line, without tokens, and short, with its number if that cuts it."""
    (name,) = redact.redact([one_line(text)])
    name = "".join(letter for letter in name if letter.isprintable())
    end = f"... ({number})"
    return name if len(name) <= MOST_NAME else name[: MOST_NAME - len(end)] + end


def _job(text: str) -> dict[str, Any]:
    """Return the command and the variables of a command line, or a shell for one that needs it. Raises: UsageError."""
    if _NEEDS_SHELL.search(text):
        return {"command": ["sh", "-c", text]}
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f'"{text}" is not a command line: {error}', "close the quotation") from error
    command = list(itertools.dropwhile(_ASSIGNMENT.match, words))
    if words and not command:
        raise UsageError(f'"{text}" sets variables and runs nothing', "write a program after them")
    assignments = words[: len(words) - len(command)]
    if any("{" in word for word in assignments):
        return {"command": ["env", *words]}  # each job has its own values in the words of its command
    return {"command": command, "env": dict(_ASSIGNMENT.split(word, 1)[1:] for word in assignments)}


_NEEDS_SHELL = re.compile(r"[|&;<>()$`*?~\n]")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=", re.ASCII)


def plan_of(lines: Sequence[Line], defaults: Fields, *, measures: bool = False) -> Plan:
    """Return the plan of all lines, in rounds of drawn order. Several lines are a measurement, one if it `measures`.

    Raises: UsageError, which names the line."""
    seed = submit.drawn(defaults.get("order_seed"))
    named: dict[str, list[int]] = {}
    for number, line in enumerate(lines):
        if line.name is not None:
            named.setdefault(line.name, []).append(number)
    shared = expand.Shared()
    jobs: list[NewJob] = []
    first: list[int] = []
    runs = 0
    warnings: dict[str, None] = {}
    names: set[str] = set()
    after: list[tuple[Dependency, ...]] = []
    waits: list[Mapping[str, Condition]] = []
    for line in lines:
        try:
            given = line.fields()
            fields = given_options.merge(defaults, given)
            siblings, stored = _siblings(line, given.get("after") or (), named, lines)
            if given.get("after"):  # names on the command line are those of stored jobs
                fields["after"] = stored
            if defaults.get("until") is not None:
                submit.refuse_search_in_rounds(fields.get("find_max"))
                fields.setdefault("preflight", False)
            request = Request(**{**fields, "order_seed": seed, "measures": measures or len(lines) > 1, **_LATER})
            planned = submit.plan(request, shared, alone=len(lines) == 1)
        except UsageError as error:
            raise UsageError(f"{line.where}: {error.message}", error.hint) from error
        first.append(len(jobs))
        runs += sum(job.repeats for job in planned.jobs)
        jobs += planned.jobs
        warnings |= dict.fromkeys(planned.warnings)
        names |= planned.names
        after.append(planned.after)
        waits.append(siblings)
        if runs > run_order.MAX_RUNS:
            raise UsageError(
                f"{line.where}: {runs:,} runs are too many",
                f"a submission can have at most {run_order.MAX_RUNS:,} runs",
            )
    _refuse_circles(waits, named, lines)
    ending: dict[str, Any] = {name: defaults.get(name) for name in _LATER}
    whole = Request(**ending, repeats=max(job.repeats for job in jobs))
    until = submit.rounds_until(whole, len(jobs))
    planned = Plan(
        defaults.get("title", Request.title),
        seed,
        tuple(jobs),
        tuple(warnings),
        own_after=_own_after(after, waits, named, [*first, len(jobs)]),
        aim=submit.aim(whole),
        names=frozenset(names),
    )
    return planned if until is None else submit.in_rounds(planned, until)


def _own_after(
    after: Sequence[tuple[Dependency, ...]],
    waits: Sequence[Mapping[str, Condition]],
    named: Mapping[str, Sequence[int]],
    first: Sequence[int],
) -> tuple[tuple[Dependency | Sibling, ...], ...]:
    """Return what each job waits for. The jobs of a line begin at `first`, and end where those of the next one begin.

    They are counted before they are made: in a file of 100,000 lines there may be billions.
    """
    jobs = {
        name: [job for line in numbers for job in range(first[line], first[line + 1])]
        for name, numbers in named.items()
    }
    others: list[tuple[Dependency | Sibling, ...]] = []
    count = 0
    for number, (stored, names) in enumerate(zip(after, waits, strict=True)):
        n_jobs = first[number + 1] - first[number]
        count += n_jobs * (len(stored) + sum(len(jobs[name]) for name in names))
        if count > MAX_DEPENDENCIES:
            raise UsageError(
                f"the jobs have more than {MAX_DEPENDENCIES:,} dependencies, which is too many",
                "let fewer jobs wait, or let each wait for fewer others",
            )
        others += [(*stored, *(Sibling(job, how) for name, how in names.items() for job in jobs[name]))] * n_jobs
    return tuple(others)


# -- dependencies within the file -------------------------------------------------------------------------------------


def _siblings(
    line: Line, after: Sequence[str], named: Mapping[str, Sequence[int]], lines: Sequence[Line]
) -> tuple[Mapping[str, Condition], tuple[str, ...]]:
    """Return what a line waits for: names of other lines of the file, and already stored jobs (still as words)."""
    siblings: dict[str, Condition] = {}
    rest = []
    for text in after:
        name, _, word = text.rpartition(":")
        how = Condition(word) if name and word in tuple(Condition) else None
        name = name if how else text
        if name not in named:
            if not _ID.fullmatch(name.partition(":")[0]):
                otherwise = '"after" takes ids (12, g4, @last) and names of jobs in this file'
                raise UsageError(f'after: no line is named "{name}"', did_you_mean(name, named, otherwise))
            rest.append(text)
            continue
        if _ID.fullmatch(name):
            raise UsageError(
                f'after: "{name}" could mean a job of the queue or {lines[named[name][0]].where}',
                "give the line another name",
            )
        if name == line.name:
            raise UsageError(f'"after" names this same line: "{name}"', "a job cannot wait for itself")
        if siblings.setdefault(name, how or Condition.OK) is not (how or Condition.OK):
            raise UsageError(f'after: "{name}" is given with two conditions', "give one of them")
    return siblings, tuple(rest)


def _refuse_circles(
    waits: Sequence[Mapping[str, Condition]], named: Mapping[str, Sequence[int]], lines: Sequence[Line]
) -> None:
    """Raise UsageError for a dependency cycle."""
    waiting = {number: names for number, names in enumerate(waits) if names}  # only these can be in a cycle
    nodes = [(name, numbers) for name, numbers in named.items() if not waiting.keys().isdisjoint(numbers)]
    graph = dict[int | str, Iterable[int | str]]([*waiting.items(), *nodes])
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        circle = [node for node in error.args[1][::-1] if isinstance(node, int)]  # between two lines is a name
        circle += circle[:1] if circle[0] != circle[-1] else []
        chain = " waits for ".join(lines[number].where for number in circle[:12])
        raise UsageError(
            f"jobs would wait for each other: {chain}{' ...' if len(circle) > 12 else ''}",
            'remove one of these from "after"',
        ) from error


# -- the file ---------------------------------------------------------------------------------------------------------


def _shown(path: str) -> str:
    return "standard input" if path == "-" else path


def _content(path: str) -> bytes:
    if path == "-":
        return _limited(sys.stdin.buffer, path)
    try:
        with expanded(path).open("rb") as stream:
            return _limited(stream, path)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"{path} cannot be read: {reason}", "--from takes a file, or - for standard input") from error
    except ValueError as error:
        raise UsageError("the name after --from contains a NUL character", "--from takes a file, or -") from error


def _limited(stream: BinaryIO, path: str) -> bytes:
    data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise UsageError(f"{_shown(path)} is larger than {units.size(MAX_BYTES)}", "submit it in several parts")
    return data


def read(data: bytes) -> list[Line]:
    """Return the jobs in a file's content. Raises: UsageError, which names the line, for invalid JSON or no job."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"line {line} is not valid UTF-8 (byte 0x{data[error.start]:02x})",
            "save the file as UTF-8; " + _EXAMPLE,
        ) from error
    # not splitlines: JSON strings may hold other characters that it takes for line ends
    rows = ((f"line {n}", row.strip("\r\t ")) for n, row in enumerate(text.split("\n"), start=1))
    return [_line(where, row) for where, row in rows if row]


def _line(where: str, content: str) -> Line:
    item = _parsed(content, where)
    if not isinstance(item, dict):
        raise UsageError(f"{where} is not a JSON object", _EXAMPLE)
    name = item.get("name")
    return Line(where, name if isinstance(name, str) else None, content)


def _parsed(text: str, where: str) -> Any:
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        what = f"{error.msg[:1].lower()}{error.msg[1:]} at column {error.colno}"
        raise UsageError(f"{where} is not valid JSON: {what}", _EXAMPLE) from error
    except UsageError as error:
        raise UsageError(f"{where}: {error.message}", error.hint) from error
    except RecursionError as error:
        raise UsageError(f"{where} is nested too deeply", _EXAMPLE) from error
    except ValueError as error:  # an integer of thousands of digits
        raise UsageError(f"{where} contains a number that is too long", _EXAMPLE) from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    item = dict(pairs)
    if len(item) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f'"{twice}" is given twice', "JSON would silently keep the last: remove one")
    return item


def _no_number(word: str) -> Any:
    raise UsageError(
        f"{word} is not a number", "JSON has no NaN and no infinities: leave it out, or write it as a string"
    )


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_number)
