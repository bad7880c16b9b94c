"""Every reader of bytes that others write, for a fuzzer: jobs, their logs, other machines, bundles, users' files.

`python -m tests.faults.readers` runs each for some seconds and prints how often, and how many of its lines ran. A
reader may refuse what it reads with the errors of its docstring; anything else is a defect.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from queue_runner import config_file, text
from queue_runner.bundles import reader, reading, rows, run_result
from queue_runner.errors import MpsqError
from queue_runner.host import locks, power, redact, run_dir, warden_records
from queue_runner.host.run_dir import RunDir
from queue_runner.ingest import clock, event_lines, last_words, log_parser, parsers
from queue_runner.ingest.parsers import lightning, nanochat, nanogpt, plain, trainer
from queue_runner.model import RunId
from queue_runner.remote import block, fence, json_files, link
from queue_runner.remote.block import Folder
from queue_runner.source import archive
from queue_runner.submit import cron, from_file
from queue_runner.warden import limits
from queue_runner.worker import preflight_end

GOLDEN = Path(__file__).parents[1] / "golden"


@dataclass(frozen=True)
class Reader:
    """A reader: what it does with bytes, its modules, examples to change, and the errors by which it refuses."""

    read: Callable[[bytes, Path], object]
    modules: tuple[ModuleType, ...]
    samples: tuple[bytes, ...]
    refusals: tuple[type[Exception], ...] = ()


def _events(data: bytes, folder: Path) -> None:
    events, consumed, _ = event_lines.read_chunk(data)
    assert 0 <= consumed <= len(data)
    again, _, _ = event_lines.read_chunk(data[:consumed])
    assert len(again) == len(events)
    now = clock.Clock.from_state(None)
    now.see(events)
    clock.Clock.from_state(now.state())


def _parser(name: str) -> Callable[[bytes, Path], object]:
    def read(data: bytes, folder: Path) -> None:
        parser = parsers.load(name)
        half = len(data) // 2
        _, consumed, _ = parser.read_chunk(data[:half], 0, final=False)
        other = parsers.load(name)
        other.restore(parser.state())
        other.read_chunk(data[consumed:], consumed, final=True)
        parsers.sniff(data.decode("utf-8", "replace"))

    return read


def _record(data: bytes, folder: Path) -> None:
    for name in warden_records._KINDS:
        warden_records.decode(name, data)
    list(warden_records.decode_noted(data))


def _run_folder(data: bytes, folder: Path) -> None:
    place = RunDir(folder)
    (folder / "warden").mkdir(exist_ok=True)
    for name in ("warden/started", "warden/exit.json", "warden/output_order", "warden/pids.jsonl", "spec.json"):
        (folder / name).write_bytes(data)
    assert place.started() is not None
    place.exit(), place.output_order(), [*place.noted()], place.trainer(), place.is_preparing(), place.prepared_at()


def _node(data: bytes, folder: Path) -> None:
    place = Folder(folder)
    path = place.run("1.1").path
    path.mkdir(parents=True, exist_ok=True)
    for name in ("began.json", "permitted.json"):
        (path / name).write_bytes(data)
    place.beginnings()
    place.beginning("1.1")


def _result(data: bytes, folder: Path) -> None:
    path = folder / "result.mpsq"
    path.write_bytes(data)
    run_result.read(reader.frames_of(path), RunId(1, 1))


def _bundle(data: bytes, folder: Path) -> None:
    path = folder / "b.mpsq"
    path.write_bytes(data)
    for number, frame in reader.frames_of(path):
        rows.TABLES[number].decode(frame)


def _rows_of_bundle(data: bytes, folder: Path) -> None:
    for table in rows.TABLES:
        with contextlib.suppress(rows.BadBundle):
            table.decode(data)


def _holder(data: bytes, folder: Path) -> None:
    (folder / "a.lock").write_bytes(data)
    locks.read_holder(folder / "a.lock")


def _progress(data: bytes, folder: Path) -> None:
    path = folder / "events.jsonl"
    progress = limits.EventProgress({"*": 1.0, "measure": 2.0}, str(path))
    for size in (len(data) // 3, len(data)):
        path.write_bytes(data[:size])
        progress.stalled((size, 0), 1.0)
        progress.limit()


def _settings(data: bytes, folder: Path) -> None:
    (folder / "config.toml").write_bytes(data)
    config_file.load(folder / "config.toml")


def _manifest(data: bytes, folder: Path) -> None:
    for content in (data, gzip.compress(data, 1)):
        (folder / "tree").mkdir(exist_ok=True)
        (folder / "tree" / archive.MANIFEST).write_bytes(content)
        with contextlib.suppress(archive.Damaged):
            archive.check(folder, archive.read_manifest(folder, "tree"))


def _fence(data: bytes, folder: Path) -> None:
    (folder / "fence").write_bytes(data)
    fence.has_started(folder / "fence")


def _texts(data: bytes, folder: Path) -> None:
    line = data.decode("utf-8", "replace")
    text.plain(line), text.one_line(line), text.last_line(data)
    redact.redact([line])
    last_words.NO_MEMORY.match(line)
    preflight_end.parse_memory_use(line)
    power.parse_battery(line), power.parse_low_power(line), power.parse_pressure(line)


def _cron(data: bytes, folder: Path) -> None:
    cron.Cron(data.decode("utf-8", "replace"), "UTC")


def _golden(pattern: str) -> tuple[bytes, ...]:
    return tuple(path.read_bytes()[:20_000] for path in sorted(GOLDEN.glob(pattern)) if path.is_file())


_EXIT = json.dumps(
    {
        **{"v": 1, "run": "1.1", "exit_code": 0, "signal": None, "spawn_error": None, "stop": None, "stopped": False},
        **{"real_s": 1.5, "slept_s": 0.0, "paused_s": 0.0, "user_s": 1.0, "sys_s": 0.1, "max_rss_bytes": 1 << 20},
        **{"started_at": 1.7e9, "ended_at": 1.7e9, "boot_id": "b", "oom_killed": False, "output_bytes": 3},
    }
).encode()
_LOGS = _golden("parsers/*.log") + _golden("parsers/*/*.log") + _golden("parsers/*/*.txt")
_MANIFEST = json.dumps(
    {"v": 3, "entries": {"a.py": ["100644", "0" * 40, 1, 0, 0, 9]}, "files": ["tree/0"], "left_out": [], "in_git": True}
).encode()

_DEEP = b"[" * 3000

READERS: dict[str, Reader] = {
    "events of a job": Reader(
        _events, (event_lines, clock), _golden("protocol/*.jsonl"), (event_lines.ProtocolVersionError,)
    ),
    **{
        f"log as {module.NAME}": Reader(_parser(module.NAME), (module, log_parser), _LOGS)
        for module in (lightning, nanochat, nanogpt, plain, trainer)
    },
    "records of a warden": Reader(_record, (warden_records,), (_EXIT, b'{"pid":1,"start":2.0}\n')),
    "folder of a run": Reader(_run_folder, (run_dir, warden_records), (_EXIT, _DEEP, b"1 2\n3 4\n", b'{"prepare":{}}')),
    "progress, for the warden": Reader(_progress, (limits,), _golden("protocol/*.jsonl")),
    "holder of a lock": Reader(_holder, (locks,), (_DEEP, b'{"pid":1,"home":"/x","run":"1.1"}\n')),
    "beginning of a run on a node": Reader(
        _node, (block, json_files), (b'{"\\ud800":1.0}', b'{"at":1.0,"started":2.0}')
    ),
    "result of a node": Reader(
        _result,
        (run_result, reading, rows),
        _golden("bundles/*.mpsq"),
        (rows.BadBundle,),
    ),
    "fence of a block": Reader(_fence, (fence,), (b'{"host":"a","pid":1}', b'{"void":"x"}')),
    "answer through ssh": Reader(
        lambda data, folder: link.answer_in(io.BytesIO(data)), (link,), (b"motd\n" + link.MARK + b'{"a":1}\n',)
    ),
    "bundle": Reader(_bundle, (reader, rows), _golden("bundles/*.mpsq"), (rows.BadBundle,)),
    "rows of a bundle": Reader(
        _rows_of_bundle, (rows, reading), (b"\x91\x93\x01\xa1a\xc0", b"\x91\x93\x01\xa1\x80\xc0")
    ),
    "manifest of a snapshot": Reader(_manifest, (archive,), (_MANIFEST, gzip.compress(_MANIFEST, mtime=0))),
    "settings": Reader(
        _settings, (config_file,), (b'lanes = "cpu:0"\npoll_s = 1.0\n[on.a]\nfolder = "x"\n',), (MpsqError,)
    ),
    "file of jobs": Reader(
        lambda data, folder: from_file.read(data), (from_file,), (b'{"argv":["a"]}\n', b'{"name":"a"}'), (MpsqError,)
    ),
    "line of a crontab": Reader(_cron, (cron,), (b"0 3 * * 1-5", b"@daily"), (MpsqError,)),
    "words of programs": Reader(_texts, (text, redact, last_words), (b"ghp_0123456789abcdefgh \x1b[31m", b"5, 10")),
}


@st.composite
def changed(draw: st.DrawFn, samples: tuple[bytes, ...]) -> bytes:
    """Draw bytes: any, or a sample in which parts were replaced, removed, repeated or cut."""
    if not samples or draw(st.integers(0, 4)) == 0:
        return draw(st.binary(max_size=400))
    data = draw(st.sampled_from(samples))
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, len(data)))
        length = draw(st.sampled_from((0, 1, 2, 8, 64)))
        what = draw(st.integers(0, 4))
        if what == 0:
            data = data[:at] + draw(st.binary(max_size=8)) + data[at + length :]
        elif what == 1:
            data = data[:at] + draw(st.sampled_from(_PIECES)) + data[at + length :]
        elif what == 2:
            data = data[:at] + data[at : at + length] * draw(st.sampled_from((0, 2, 50))) + data[at + length :]
        elif what == 3:
            data = data[:at]
        else:
            other = draw(st.sampled_from(samples))
            data = data[:at] + other[draw(st.integers(0, len(other))) :]
    return data[:200_000]


_PIECES = (
    *(b"\n", b"\r\n", b"\0", b'"', b"{", b"}", b"[", b"null", b"-1", b"1e999", b"NaN", b"9" * 400, b"\xff\xfe"),
    *(b"\xed\xa0\x80", b"[" * 3000, b'{"a":' * 2000, b"true", b"0.0", b'"type":"iter"', "\u202e".encode()),
    b"x" * 70_000,
)


def try_reader(name: str, folder: Path, examples: int, number: int = 0) -> None:
    """Give a reader so many examples, others for each number. Raises: what it raises and must not."""
    each = READERS[name]

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(changed(each.samples))
    def read(data: bytes) -> None:
        with contextlib.suppress(*each.refusals):
            each.read(data, folder)

    read()


# -- coverage -------------------------------------------------------------------------------------------------


def _lines_of(code: CodeType) -> Iterator[tuple[str, int]]:
    for _, _, line in code.co_lines():
        if line is not None and line != code.co_firstlineno:
            yield code.co_filename, line
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _lines_of(constant)


def _functions_of(module: ModuleType) -> Iterator[CodeType]:
    assert module.__file__ is not None
    code = compile(Path(module.__file__).read_text(), module.__file__, "exec")
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant


@contextlib.contextmanager
def covering(modules: tuple[ModuleType, ...]) -> Iterator[set[tuple[str, int]]]:
    """Yield the lines of these modules that run, as they do."""
    names = {module.__file__ for module in modules}
    visited: set[tuple[str, int]] = set()

    def local(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            visited.add((frame.f_code.co_filename, frame.f_lineno))
        return local

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        return local if frame.f_code.co_filename in names else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield visited
    finally:
        sys.settrace(before)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.readers", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="processor time for each reader")
    options = parser.parse_args()
    print("| reader | executions | lines of its functions that ran |\n|---|--:|--:|")
    for name, each in READERS.items():
        with tempfile.TemporaryDirectory(prefix="mpsq-readers-") as folder:
            with covering(each.modules) as visited:
                try_reader(name, Path(folder), 400)
            n_executions, began, size = 400, time.process_time(), 500
            while time.process_time() - began < options.seconds:
                try_reader(name, Path(folder), size, n_executions)
                n_executions += size
                size *= 2
        everything = {line for module in each.modules for code in _functions_of(module) for line in _lines_of(code)}
        print(f"| {name} | {n_executions:,} | {len(visited & everything):,} of {len(everything):,} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
