"""The writer of the wire: golden files byte for byte, and what may never happen to a training that reports."""

from __future__ import annotations

import errno
import importlib.util
import json
import math
import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from queue_runner.ingest import event_lines

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "protocol"
SOURCE = ROOT / "jobs" / "mpsq_report.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mpsq_report_under_test", SOURCE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


mpsq_report = load()


def ticking(start: float = 100.0, step: float = 0.125) -> Callable[[], float]:
    """A clock that is `step` seconds later at each reading."""
    now = [start - step]

    def clock() -> float:
        now[0] += step
        return now[0]

    return clock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


@pytest.fixture
def report(path: Path) -> Any:
    return mpsq_report.Reporter(path, clock=ticking(), zero=100.0, cpu=ticking(2.5, 0.5))


def events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def write_a_training(report: Any) -> None:
    """Every type of event, in the order of a training."""
    report.begin("setup", since_start=True)
    report.hello(
        workload="nanogpt",
        framework="torch",
        versions={"python": "3.11.7", "torch": "2.13.0+cpu"},
        device="cpu",
        device_name="a processor",
        dtype="fp32",
        seed=1337,
        compile=True,
        planned_iters=5000,
        config="shakespeare_char",
    )
    report.hello(
        params=10_745_088,
        flops_per_iter=1162591961088.0,
        tokens_per_iter=16_384,
        optimizer="AdamW(fused)",
        data={"name": "shakespeare", "sha256": "86c4e6aa", "bytes": 1_115_394},
    )
    report.metric("reference_loss_cpu", 4.287433624267578, "nats")
    report.end("setup")
    with report.phase("compile"):
        report.iter(0, 21.01601, 4.2655, phase="compile")
        report.note("compile_cache", "cold", fxgraph_cache_miss=2)
    with report.phase("warmup"):
        report.iter(1, 0.25, 4.25, phase="warmup", allocated_bytes=123_456_789, reserved_bytes=223_456_789)
    with report.phase("measure"):
        report.iter(2, 0.2204998, 4.1, synced=True)
        report.iter(3, 0.2213, phase="measure", synced=False)
        with report.phase("eval"):
            report.eval(4, "train", {"loss": 4.0}, 3.25)
            report.eval(4, "val", {"loss": 4.0625, "accuracy": 0.125}, 3.125)
        with report.phase("checkpoint"):
            pass
    report.bye(ok=True)


def write_oddities(report: Any) -> None:
    """Numbers that JSON does not have, scalars of other libraries, text in other scripts, text that cannot be kept."""
    report.hello(workload="odd", path=Path("a") / "b", missing=None, deep={"a": [1, (2.5, math.inf)], 3: True})
    report.iter(0, 1e-9, math.nan)
    report.iter(1, 1255.9, -math.inf, reserved_bytes=7)
    report.iter(2, 0.0, 1e-12)
    report.metric("overflow", math.inf)
    report.metric("at", 0.5, "share", i=2)
    report.eval(3, "val", {"loss": -math.inf, "accuracy": math.nan})
    report.note("text", 'näïve "quoted" \\ new\nline 漢字 \x1b[31m')
    report.note("nul and half a pair", "a\0b \ud800")
    report.note("extra", "fields are kept, but for type and t", type="iter", t=7, more=1)
    report.hello(v=2)
    report.bye(ok=False)


SCRIPTS = {"writer_training": write_a_training, "writer_oddities": write_oddities}


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_is_written_is_the_golden_file_byte_for_byte(name: str, report: Any, path: Path) -> None:
    SCRIPTS[name](report)
    assert path.read_bytes() == (GOLDEN / f"{name}.jsonl").read_bytes()


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_reader_takes_every_line(name: str, report: Any, path: Path) -> None:
    SCRIPTS[name](report)
    result, consumed, counts = event_lines.read_chunk(path.read_bytes())
    assert len(result) == len(events(path)) and consumed == path.stat().st_size
    assert (counts.bad, counts.forged, counts.unknown) == (0, 0, 0)


def test_without_a_path_nothing_happens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MPSQ_EVENTS", raising=False)
    monkeypatch.chdir(tmp_path)
    report = mpsq_report.Reporter()
    write_a_training(report)
    assert not report.active and not list(tmp_path.iterdir())


def test_the_file_is_named_by_the_environment_and_appended_to(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setenv("MPSQ_EVENTS", str(path))
    for i in range(2):
        report = mpsq_report.Reporter()
        report.iter(i, 0.5)
        report.bye()
    assert [event.get("i") for event in events(path)] == [0, None, 1, None]
    assert path.stat().st_mode & 0o077 == 0


def test_time_counts_from_the_spawn_that_the_queue_names(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setenv("MPSQ_T0", repr(90.0))
    mpsq_report.Reporter(path, clock=lambda: 100.5).note("x")
    assert events(path)[0]["t"] == 10.5


@pytest.mark.parametrize("t0", ["", "soon", "nan", "inf", "1e300", "-1e300"])
def test_a_spawn_that_cannot_be_is_not_believed(monkeypatch: pytest.MonkeyPatch, path: Path, t0: str) -> None:
    monkeypatch.setenv("MPSQ_T0", t0)
    mpsq_report.Reporter(path).note("x")
    assert 0 <= events(path)[0]["t"] < 1e6


def test_each_event_is_one_write_of_one_line(report: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    monkeypatch.setattr(mpsq_report.os, "write", lambda fd, line: written.append(line) or len(line))
    write_a_training(report)
    assert len(written) == 23
    assert all(line.count(b"\n") == 1 and line.endswith(b"\n") and len(line) <= 65_536 for line in written)


@pytest.mark.parametrize("fail", ["full disk", "part of a line"])
def test_a_write_that_fails_ends_reporting_with_one_sentence(
    report: Any, path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fail: str
) -> None:
    report.iter(0, 0.5)

    def write(fd: int, line: bytes) -> int:
        if fail == "full disk":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return len(line) - 1

    monkeypatch.setattr(mpsq_report.os, "write", write)
    report.iter(1, 0.5)
    monkeypatch.undo()
    report.iter(2, 0.5)
    report.note("late")
    assert not report.active
    assert len(events(path)) == 1
    captured = capsys.readouterr().err
    assert captured.count("\n") == 1 and captured.startswith("mpsq_report: ") and "no longer reported" in captured


def test_a_path_that_cannot_be_opened_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = mpsq_report.Reporter(tmp_path / "no" / "such" / "folder")
    write_a_training(report)
    assert capsys.readouterr().err.count("\n") == 1


def test_a_pipe_that_nobody_reads_is_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    report = mpsq_report.Reporter(pipe)
    assert not report.active
    assert "cannot be opened" in capsys.readouterr().err


def test_a_pipe_that_is_full_is_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    report = mpsq_report.Reporter(pipe)
    while report.active:
        report.iter(0, 0.5)
    os.close(reader)
    assert "no longer reported" in capsys.readouterr().err


class Stubborn:
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


BAD_CALLS: list[Callable[[Any], None]] = [
    lambda report: report.iter(0.5, 0.5),
    lambda report: report.iter("0", 0.5),
    lambda report: report.iter(0, math.nan),
    lambda report: report.iter(0, -1.0),
    lambda report: report.iter(0, math.inf),
    lambda report: report.iter(0, None),
    lambda report: report.iter(0, 0.5, "low"),
    lambda report: report.iter(0, 0.5, phase="coffee"),
    lambda report: report.iter(0, 0.5, allocated_bytes=0.5),
    lambda report: report.begin("coffee"),
    lambda report: report.note("x", Stubborn()),
    lambda report: report.hello(numbers=list(range(100_000))),
]


@pytest.mark.parametrize("call", BAD_CALLS, ids=range(len(BAD_CALLS)))
def test_what_cannot_be_reported_is_left_out_and_said_once(
    report: Any, path: Path, capsys: pytest.CaptureFixture[str], call: Callable[[Any], None]
) -> None:
    call(report)
    call(report)
    report.iter(7, 0.5, 1.0)
    assert [event["i"] for event in events(path)] == [7]
    assert capsys.readouterr().err.count("\n") == 1


def test_a_long_text_is_cut_to_the_limit_and_marked(report: Any, path: Path) -> None:
    report.note("long", "x" * 1_000_000, other="é" * 200_000)
    report.note("many", "", texts=["y" * 2000] * 400)
    lines = path.read_bytes().splitlines(keepends=True)
    assert all(len(line) <= 65_536 for line in lines)
    assert all(json.loads(line)["cut"] is True for line in lines)
    assert all(isinstance(event_lines.parse_line(line[:-1]), event_lines.Note) for line in lines)


def test_what_nests_without_end_is_written_as_text(report: Any, path: Path) -> None:
    deep: list[Any] = []
    for _ in range(60):
        deep = [deep]
    report.note("deep", "", deep=deep)
    assert isinstance(event_lines.parse_line(path.read_bytes()[:-1]), event_lines.Note)


class Scalar:
    """Looks like a scalar of numpy or torch."""

    shape = ()

    def __init__(self, value: float) -> None:
        self.value = value

    def item(self) -> float:
        return self.value

    def __float__(self) -> float:
        return self.value

    def __format__(self, spec: str) -> str:
        return format(self.value, spec)


def test_scalars_of_other_libraries_are_numbers(report: Any, path: Path) -> None:
    report.metric("x", Scalar(1.5))
    report.iter(0, 0.5, Scalar(2.5))
    report.iter(1, 0.5, Scalar(math.nan))
    metric, first, second = events(path)
    assert (metric["value"], first["loss"], second["loss"]) == (1.5, 2.5, "nan")


@pytest.fixture
def forked(report: Any) -> Iterator[int]:
    """The exit status of a forked child that reports."""
    child = os.fork()
    if child == 0:
        report.iter(99, 0.5)
        report.note("from the child")
        report.bye()
        os._exit(0 if not report.active else 1)
    yield os.waitpid(child, 0)[1]


def test_a_forked_child_does_not_write(report: Any, path: Path, forked: int) -> None:
    report.iter(0, 0.5)
    assert forked == 0
    assert [event["i"] for event in events(path)] == [0]


def test_a_program_that_the_training_starts_does_not_inherit_the_file(report: Any, path: Path) -> None:
    fd = report._fd
    code = f"""
import os, sys
try:
    found = os.fstat({fd})
except OSError:
    sys.exit(0)
sys.exit(os.path.samestat(found, os.stat({str(path)!r})))
"""
    assert subprocess.run([sys.executable, "-I", "-S", "-c", code], close_fds=False, check=False).returncode == 0


def test_only_the_standard_library_is_needed_and_nothing_beside_it(tmp_path: Path) -> None:
    copy = tmp_path / "mpsq_report.py"
    copy.write_bytes(SOURCE.read_bytes())
    code = "import mpsq_report as m; r = m.Reporter(); r.iter(0, 0.5, 1.0); r.bye(ok=True)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=tmp_path,
        env={"MPSQ_EVENTS": "events.jsonl", "PATH": ""},
        capture_output=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == (b"", b"")
    assert [event["type"] for event in events(tmp_path / "events.jsonl")] == ["iter", "bye"]


def test_what_torch_compiles_in_a_measured_iteration_is_reported(
    report: Any, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the counters of torch._dynamo, of which this is a stand-in; what an evaluation compiles does not count."""
    dynamo = types.SimpleNamespace(counters={"frames": {"total": 1}, "graph_break": {}})
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", dynamo)
    frames, breaks = dynamo.counters["frames"], dynamo.counters["graph_break"]
    report.iter(0, 0.1, phase="compile")
    report.iter(1, 0.1)
    frames["total"] += 2
    breaks["data-dependent branch"] = 1
    report.iter(2, 0.1)
    report.iter(3, 0.1)
    with report.phase("eval"):
        frames["total"] += 1
    report.iter(4, 0.1)
    dynamo.counters["frames"] = None  # of another version of torch
    report.iter(5, 0.1)
    result = [(e["name"], e["value"], e["i"]) for e in events(path) if e["type"] == "metric"]
    assert result == [("recompilations", 2, 2), ("graph_breaks", 1, 2)]
