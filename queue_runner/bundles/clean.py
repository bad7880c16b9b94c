"""Cleaning of what leaves the machine: no token, no value of an environment variable, no path of a home.

Tokens are those that `redact` finds. In the place of each, and of a variable's value, is a keyed hash: equal values
stay equal, so that the rows of a report are the same, and nobody without this queue can try which value it was.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args, get_type_hints

from msgspec.structs import asdict

from queue_runner.bundles.rows import MOST_TEXT, QUESTION, Json, Name, Prose, Table
from queue_runner.events import MAX_INT
from queue_runner.host import redact
from queue_runner.ingest.event_lines import MAX_DEPTH
from queue_runner.paths import Layout
from queue_runner.spec import MOST_NAME, JobSpec
from queue_runner.tables import json_value
from queue_runner.text import one_line, plain

HOME = "[home]"
_ANY_HOME = r"/(?:home|Users)/[^/\s\"'<>:;,()\[\]{}|\\]+|(?<![\w./-])/root(?![\w-])"
_HIDDEN = re.compile(r"\[hidden-[0-9a-f]{12}\]")
_ASSIGNED = re.compile(r"(--env=)?[A-Za-z_]\w*=", re.ASCII)
_ENVIRONMENT = frozenset({"env", "environ", "environment"})
"""Keys of a trainer's own report under which variables are."""


class Cleaner:
    """Cleans texts. `key` is known to this queue alone; `homes` are folders whose paths are hidden, besides every
    folder of a user. Without a key nothing is hidden, and values only get the form that a bundle needs."""

    def __init__(self, key: bytes | None, homes: Iterable[str] = ()) -> None:
        self._key = key
        folders = {path.rstrip("/") for path in homes if path.count("/") > 1 or path.startswith("/root")}
        named = [f"{re.escape(path)}(?![\\w-])" for path in sorted(folders, key=len, reverse=True)]
        self._home = re.compile("|".join([*named, _ANY_HOME]) if key is not None else "(?!)")

    def hidden(self, value: str) -> str:
        """Return what stands in the place of a value; of one that is hidden already, itself."""
        if self._key is None or _HIDDEN.fullmatch(value):
            return value
        return f"[hidden-{hmac.new(self._key, value.encode('utf-8', 'replace'), hashlib.sha256).hexdigest()[:12]}]"

    def words(self, words: Sequence[str]) -> list[str]:
        """Clean the words of a command line, and hide the values that it gives to variables: `--env A=1`, `env A=1`."""
        cleaned, sets = [], False
        for before, word in pairwise(["", *words]):
            assigns = _ASSIGNED.match(word)
            if assigns and (sets or before == "--env" or assigns[1]):
                word = word[: assigns.end()] + self.hidden(word[assigns.end() :])
            sets = word.rpartition("/")[2] == "env" or (sets and assigns is not None)
            cleaned.append(word)
        return [self._text(word) for word in redact.replaced(cleaned, self.hidden)]

    def command(self, line: str) -> str:
        """Clean a command line in one text."""
        try:
            words = shlex.split(line)
        except ValueError:  # a quotation that does not end
            words = line.split()
        return self._text(" ".join(self.words(words)))

    def text(self, text: str) -> str:
        """Clean a text of several lines, and shorten it."""
        return self._text(redact.replaced([text], self.hidden)[0])

    def name(self, text: str | None) -> str | None:
        """Clean a name: one line without what a page would take for markup."""
        if text is None:
            return None
        line = re.sub("[<>]", "_", one_line(self.text(text)))
        return "".join(letter for letter in line if letter.isprintable())[:MOST_NAME]

    def _text(self, text: str) -> str:
        text = self._home.sub(HOME, plain(text.encode("utf-8", "replace").decode()))
        return text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 1] + "…"

    def tree(self, value: Any, name: str = "", depth: int = 0) -> Any:
        """Clean a JSON value: texts and keys, and whole values under a key that names the environment."""
        hides = name in _ENVIRONMENT
        if isinstance(value, str):
            assigns = _ASSIGNED.match(value)
            if hides and assigns:
                return value[: assigns.end()] + self.hidden(value[assigns.end() :])
            return self.text(value)
        if isinstance(value, Mapping):
            if depth >= MAX_DEPTH - 2:
                return {}
            return {
                self.text(str(key)): self.hidden(str(item)) if hides else self.tree(item, str(key), depth + 1)
                for key, item in value.items()
            }
        if isinstance(value, list):
            return [self._item(item, name, depth + 1) for item in value] if depth < MAX_DEPTH - 2 else []
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) > MAX_INT:
            return str(value)
        return json_value(value)

    def _item(self, value: Any, name: str, depth: int) -> Any:
        """Clean an item of a list of that name: of variables their names stay, of `A=1`."""
        if name in _ENVIRONMENT and not isinstance(value, Mapping | list):
            text = str(value)
            return self.tree(text, name) if _ASSIGNED.match(text) else self.hidden(text)
        return self.tree(value, name, depth)

    def names(self, value: Any) -> Any:
        """Clean a JSON value in which every text is a name."""
        if isinstance(value, Mapping):
            return {self.name(key): self.names(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.names(item) for item in value]
        return self.name(value) if isinstance(value, str) else value

    def of(self, table: Table) -> Callable[[tuple[Any, ...]], tuple[Any, ...]] | None:
        """Return what cleans a stored row of results; None for a table of numbers."""
        by_type: dict[Any, Callable[[str], str | None]] = {Json: self._json, Name: self.name, Prose: self.text}
        hints = get_type_hints(table.row, include_extras=True).values()
        cleans = [next((by_type[kind] for kind in (hint, *get_args(hint)) if kind in by_type), None) for hint in hints]
        if not any(cleans):
            return None
        return lambda row: tuple(
            value if clean is None or value is None else clean(value) for clean, value in zip(cleans, row, strict=True)
        )

    def _json(self, text: str) -> str:
        fields = json.loads(text)
        fields.pop("boot_id", None)
        return json.dumps(self.tree(fields), sort_keys=True)

    def spec(self, spec: JobSpec) -> dict[str, Any]:
        """Return the question of a job."""
        fields = {name: value for name, value in asdict(spec).items() if name in QUESTION}
        named = ("name", "workload", "framework", "config", "device", "dtype", "parser", "env_name")
        cleaned: dict[str, Any] = self.tree({**fields, "argv": [], "template": [], "env_name": ""})
        names = {name: self.name(fields[name]) for name in named}
        variables = {self.name(name): self.hidden(value) for name, value in spec.variables.items()}
        words = {"argv": self.words(spec.argv), "template": self.words(spec.template)}
        return {**cleaned, **names, **words, "variables": variables}


NOTHING_HIDDEN = Cleaner(None)


def of_queue(layout: Layout, tokens: Sequence[str], environments: Iterable[Mapping[str, str]]) -> Cleaner:
    """Return the cleaner of a queue: its key is the random token of its first run, which nothing shows."""
    homes = {str(layout.home), os.path.realpath(layout.home), str(Path.home()), os.path.realpath(Path.home())}
    homes |= {value for env in environments if (value := env.get("HOME"))}
    return Cleaner("\0".join(["mpsq bundle", *tokens[:1]]).encode(), homes)
