"""The file: lines of JSON, compressed by gzip (RFC 1952), with the hash of each part and of the whole at the end.

The same content gives the same bytes. Reading is bounded in every dimension before anything is believed.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from queue_runner import __version__
from queue_runner.bundles.parts import PARTS, BadBundle, word
from queue_runner.bundles.scratch import Scratch
from queue_runner.ingest.storable import BadLine
from queue_runner.units import size

VERSION = 1
MOST_FILE_BYTES = 64 << 20
MOST_BYTES = 512 << 20
"""Size of the expanded lines."""
MOST_LINE_BYTES = 4 << 20
MOST_ROWS = 5_000_000
_GZIP = 31
"""zlib's window bits for a gzip header and trailer."""
_TAKES_PART = ("analysis", "ingest", "reports")
"""Wings whose code decides what a report says of the same points."""


@dataclass(frozen=True)
class Head:
    """The statements of a bundle about itself. `hash` is the sha256 of its lines: the same for the same content."""

    hash: str
    mpsq: str
    statistics: str
    report: dict[str, Any]

    @property
    def comparable(self) -> bool:
        """Whether this code makes the same report of the same points."""
        return self.statistics == statistics()


@cache
def statistics() -> str:
    """Return a hash of the code that turns points into a report."""
    package = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for wing in _TAKES_PART:
        for path in sorted((package / wing).rglob("*.py")):
            digest.update(f"{path.relative_to(package).as_posix()}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def pack(content: Scratch) -> bytes:
    """Return the bundle of a database whose runs are judged. Raises: BadBundle where it is too large."""
    packer = zlib.compressobj(9, zlib.DEFLATED, _GZIP)
    whole, packed, n_bytes, n_rows = hashlib.sha256(), bytearray(), 0, 0
    parts: dict[str, list[Any]] = {}

    def put(value: Any) -> bytes:
        nonlocal n_bytes
        line = _line(value)
        packed.extend(packer.compress(line))
        n_bytes += len(line)
        if n_bytes > MOST_BYTES or len(packed) > MOST_FILE_BYTES or len(line) > MOST_LINE_BYTES:
            raise BadBundle(f"it would be larger than {size(MOST_BYTES)}", "export fewer submissions at once")
        return line

    whole.update(put({"mpsq_bundle": VERSION, "mpsq": __version__, "statistics": statistics()}))
    for part in PARTS:
        whole.update(put({"part": part.name}))
        digest, before = hashlib.sha256(), n_rows
        for row in content.rows(part):
            digest.update(line := put(row))
            whole.update(line)
            n_rows += 1
        if n_rows > MOST_ROWS:
            raise BadBundle(f"it would have more than {MOST_ROWS:,} rows", "export fewer submissions at once")
        parts[part.name] = [n_rows - before, digest.hexdigest()]
    whole.update(put({"report": content.report()}))
    put({"end": {"parts": parts, "sha256": whole.hexdigest()}})
    return bytes(packed + packer.flush())


def _line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"), sort_keys=True).encode() + b"\n"


def unpack(data: bytes, into: Scratch) -> Head:
    """Read a bundle into an empty database, checking every value. Raises: BadBundle."""
    try:
        return _unpack(data, into)
    except (BadLine, RecursionError) as error:
        raise BadBundle(str(error) if isinstance(error, BadLine) else "nested too deeply") from error


def _unpack(data: bytes, into: Scratch) -> Head:
    if len(data) > MOST_FILE_BYTES:
        raise BadBundle(f"it is larger than {size(MOST_FILE_BYTES)}", "ask for fewer submissions in one bundle")
    if not data:
        raise BadBundle("it is empty", "mpsq export --bundle g4 > g4.mpsq writes one")
    if not data.startswith(b"\x1f\x8b\x08"):
        raise BadBundle("it is not a file of mpsq export --bundle", "name the file that mpsq export --bundle wrote")
    lines = _BundleLines(data)
    begun = lines.object({"mpsq_bundle", "mpsq", "statistics"}, "it does not begin as a bundle of mpsq")
    if begun["mpsq_bundle"] != VERSION or type(begun["mpsq_bundle"]) is not int:
        raise BadBundle(
            f"its format is version {str(begun['mpsq_bundle'])[:20]!a}, this mpsq reads {VERSION}",
            "use the mpsq that made it, or a newer one",
        )
    parts: dict[str, list[Any]] = {}
    named = lines.object({"part"}, "it has no parts")
    for part in PARTS:
        if named != {"part": part.name}:
            raise BadBundle(f"its part {part.name} is missing, doubled or not in its place")
        digest, n = hashlib.sha256(), 0
        while type(row := lines.next()) is list:
            digest.update(lines.last)
            into.add(part, row)
            n += 1
        parts[part.name] = [n, digest.hexdigest()]
        named = row
    report = named.get("report") if type(named) is dict and named.keys() == {"report"} else None
    if type(report) is not dict:
        raise BadBundle("it has no report")
    sha256 = lines.whole.hexdigest()
    ended = lines.object({"end"}, "it does not end as a bundle")["end"]
    if type(ended) is not dict or ended.keys() != {"parts", "sha256"} or type(ended["parts"]) is not dict:
        raise BadBundle("it does not end as a bundle")
    for name, counted in parts.items():
        if ended["parts"].get(name) != counted:
            raise BadBundle(f"its part {name} is damaged (its hash or its number of rows is not that of its rows)")
    if ended["sha256"] != sha256 or ended["parts"].keys() != parts.keys():
        raise BadBundle("it is damaged: its hash is not that of its lines")
    lines.end()
    into.check()
    made_by, computed_by = (word(40)(begun[name], name) for name in ("mpsq", "statistics"))
    return Head(sha256, made_by, computed_by, report)


class _BundleLines:
    """The lines of a compressed file, a JSON value each: `last` as it is written, `whole` the hash of all so far. They
    have at most MOST_BYTES in all; of one line never more than MOST_LINE_BYTES are held."""

    def __init__(self, data: bytes) -> None:
        self._file = gzip.GzipFile(fileobj=io.BytesIO(data))
        self.last = b""
        self.whole = hashlib.sha256()
        self._n = self._n_bytes = 0

    def next(self) -> Any:
        try:
            self.last = self._file.readline(MOST_LINE_BYTES + 1)
        except EOFError as error:
            raise BadBundle("it is cut off") from error
        except (OSError, zlib.error) as error:
            raise BadBundle("it is damaged: it cannot be expanded") from error
        self._n, self._n_bytes = self._n + 1, self._n_bytes + len(self.last)
        if self._n > MOST_ROWS + 100:
            raise BadBundle(f"it has more than {MOST_ROWS:,} rows")
        if self._n_bytes > MOST_BYTES:
            raise BadBundle(f"it expands to more than {size(MOST_BYTES)}")
        if len(self.last) > MOST_LINE_BYTES:
            raise BadBundle(f"a line is longer than {size(MOST_LINE_BYTES)}")
        if not self.last.endswith(b"\n"):
            raise BadBundle("it is cut off")
        self.whole.update(self.last)
        try:
            return json.loads(self.last, parse_constant=_no_constant, object_pairs_hook=_once)
        except RecursionError as error:
            raise BadBundle("nested too deeply") from error
        except ValueError as error:
            raise BadBundle(f"line {self._n} is not JSON") from error

    def object(self, keys: set[str], otherwise: str) -> dict[str, Any]:
        value = self.next()
        if type(value) is not dict or value.keys() != keys:
            raise BadBundle(otherwise)
        return value

    def end(self) -> None:
        try:
            follows = self._file.read(1) != b""
        except (OSError, EOFError, zlib.error):
            follows = True
        if follows:
            raise BadBundle("something follows its end")


def _no_constant(_: str) -> None:
    raise ValueError("no number")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    by_key = dict(pairs)
    if len(by_key) != len(pairs):
        raise ValueError("a key comes twice")
    return by_key
