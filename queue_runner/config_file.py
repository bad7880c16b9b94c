"""Writing one setting into config.toml while keeping the rest, including comments, as the user wrote it.

The edit is by line; the result is parsed again and must match the intended content. Where it does not (a multi-line
value, an inline table), the file is rewritten from its content, and the old one is kept beside it.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from queue_runner.config import Value, find, from_text, parse, read, to_config
from queue_runner.errors import MpsqError

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_HEADER = re.compile(r"\s*\[")


def set_value(path: Path, name: str, text: str) -> Value:
    """Set a key, or an entry (`peak_tflops.mps`), to a value as typed. Return it as stored.

    Raises: UsageError (unknown key, bad value), MpsqError (the file is broken or cannot be written).
    """
    value = from_text(name, text)
    _change(path, name, value)
    return value


def unset(path: Path, name: str) -> None:
    """Remove a key or an entry from the file, restoring its default. Raises: as set_value."""
    find(name)
    _change(path, name, None)


def _change(path: Path, name: str, value: Value | None) -> None:
    try:
        # a separate lock file: the rename would leave the next writer holding a lock on the replaced file
        with path.with_name(path.name + ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            meant = _meant(read(path), name, value)
            to_config(meant, path)
            text = path.read_bytes().decode("utf-8-sig") if path.exists() else ""
            edited = _edited(text, name, value)
            if not _says(edited, meant, path):
                path.with_name(path.name + ".bak").write_text(text, "utf-8")
                edited = "".join(_lines(meant))
            _replace(path, edited)
    except OSError as error:
        hint = "mend its permissions, or free some space"
        raise MpsqError(f"{path} cannot be written: {error.strerror}", hint) from error


def _meant(data: dict[str, Any], name: str, value: Value | None) -> dict[str, Any]:
    first, dot, entry = name.partition(".")
    if not dot:
        rest = {k: v for k, v in data.items() if k != first}
        return rest if value is None else {**data, first: value}
    old = data.get(first, {})
    table = {k: v for k, v in (old if isinstance(old, dict) else {}).items() if k != entry}
    if value is not None:
        table[entry] = value
    return {**data, first: table} if table or first in data else data


def _edited(text: str, name: str, value: Value | None) -> str:
    """Replace, add or drop one line. A table's entry is searched as `table.entry =` and below `[table]`."""
    first, dot, entry = name.partition(".")
    lines = text.splitlines(keepends=True)
    section = ""
    end_of_top = len(lines)
    for index, line in enumerate(lines):
        if _HEADER.match(line):
            section = line.split("#")[0].strip().strip("[]").strip().strip("\"'")
            end_of_top = min(end_of_top, index)
            continue
        written = re.match(r"\s*([^=#]+?)\s*=", line)
        key = re.sub(r"[\s\"']", "", written[1]) if written else ""
        if (section == "" and key == name) or (dot and section == first and key == entry):
            comment = re.search(r"\s+#[^\"']*$", line.rstrip("\r\n"))
            shown = entry if section else name
            lines[index] = "" if value is None else _line(shown, value, comment[0] if comment else "")
            return "".join(lines)
    if value is None:
        return text
    while end_of_top and not lines[end_of_top - 1].strip():
        end_of_top -= 1  # above the blank lines before a table
    if end_of_top and not lines[end_of_top - 1].endswith("\n"):
        lines[end_of_top - 1] += "\n"
    if f"[{first}]" in (line.split("#")[0].strip() for line in lines):
        at = next(i for i, line in enumerate(lines) if line.split("#")[0].strip() == f"[{first}]") + 1
        if not lines[at - 1].endswith("\n"):
            lines[at - 1] += "\n"
        return "".join([*lines[:at], _line(entry, value), *lines[at:]])
    return "".join([*lines[:end_of_top], _line(name, value), *lines[end_of_top:]])


def _line(name: str, value: Value, comment: str = "") -> str:
    first, dot, entry = name.partition(".")
    shown = f"{first}.{_quoted(entry)}" if dot and find(first).kind == "numbers" else _quoted(name)
    return f"{shown} = {_literal(value)}{comment}\n"


def _quoted(key: str) -> str:
    return key if _BARE.fullmatch(key) else json.dumps(key, ensure_ascii=False)


def _literal(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _lines(data: dict[str, Any]) -> list[str]:
    """Return the lines of the whole file from its content, plain keys first as TOML requires."""
    tables = {name: table for name, table in data.items() if isinstance(table, dict)}
    plain = [f"{_quoted(name)} = {_literal(value)}\n" for name, value in sorted(data.items()) if name not in tables]
    for name, table in sorted(tables.items()):
        plain.append(f"\n[{_quoted(name)}]\n")
        plain += [f"{_quoted(entry)} = {_literal(number)}\n" for entry, number in sorted(table.items())]
    return plain


def _says(text: str, meant: dict[str, Any], path: Path) -> bool:
    try:
        said = parse(text, path)
    except MpsqError:
        return False
    return {k: v for k, v in said.items() if v != {}} == {k: v for k, v in meant.items() if v != {}}


def _replace(path: Path, text: str) -> None:
    descriptor, partial = tempfile.mkstemp(prefix=".config-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(partial).replace(path.resolve() if path.is_symlink() else path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
