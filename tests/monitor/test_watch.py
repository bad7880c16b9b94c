"""status --watch: what a screen shows, what a look reads, what is printed where there is no screen."""

from __future__ import annotations

import io
import itertools
import os
import sqlite3
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.console import Console

from queue_runner.events import Iter, Phase
from queue_runner.model import Ending, Outcome
from queue_runner.monitor import poll, queue_state, queue_status, run_view, watch
from queue_runner.monitor.dashboard import ASCII_BARS, BARS, frame, sparkline, tables
from queue_runner.monitor.eta import Eta
from queue_runner.monitor.progress import NEWEST, RunProgress, Tracker
from queue_runner.monitor.queue_state import QueueState
from queue_runner.monitor.queue_status import Observation, Status
from queue_runner.monitor.waiting import Reason
from queue_runner.paths import Layout
from queue_runner.store import read, results
from queue_runner.store.engine import open_engine, writing
from queue_runner.text import width
from tests.cli_support import Cli, end_running_run, full_queue

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def keep_the_priority_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "nice", lambda _more: 0)


@pytest.fixture
def queue(home: Path) -> Layout:
    return full_queue(home)


NEWEST_S = [0.02] * 20 + [0.021] * 20 + [0.5] + [0.0205] * 9


@pytest.fixture
def found(queue: Layout) -> Status:
    whole = queue_status.read_status(queue)
    assert whole.running is not None
    progress = RunProgress("measure", 20, 40, 0.02, 2.1, 63.0, 0.4)
    return replace(
        whole,
        running=replace(whole.running, progress=progress),
        queue=QueueState(True, 4711, None, None),
        free_bytes=7 << 30,
        reasons={6: Reason("turn", "its turn, after 4.1", "", ""), 7: Reason("time", "22:30", "", "")},
        eta=Eta(),
    )


SCREEN = """\
worker   process 4711
running  4.1  running  cpu, eager, tiny, lr=0.1
         ━━━━━━━━━━━━━━━━━━━━                      20 of 40, 50 %
         phase measure, 20.00 ms/iter, loss 2.1000
         1 min 03 s so far, about 1 s of training left
         ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁█████████████████████▅▅▅▅▅▅▅▅▅
         the last 50 iterations: 20.00 to 21.00 ms, 1 slower: up to 500.0 ms
waiting  2 runs
disk     7.00 GiB free

#  run  name    settings                     waits for
-  ---  ------  ---------------------------  -------------------
1  5.1  waits1  mps, compiled, tiny, lr=0.1  its turn, after 4.1
2  6.1  waits2  mps, compiled, tiny, lr=0.1  22:30

run  name    settings                  outcome    took
---  ------  ------------------------  ---------  ------
3.1  killed  cpu, eager, tiny, lr=0.1  KILLED(9)  1.50 s
2.1  failed  cpu, eager, tiny, lr=0.1  FAILED(3)  1.50 s
1.2  ok      cpu, eager, tiny, lr=0.1  SUCCEEDED  1.50 s
1.1  ok      cpu, eager, tiny, lr=0.1  SUCCEEDED  1.50 s


Ctrl-C quits; the queue continues
"""


def screen(status: Status, columns: int = 80, rows: int = 24, *, encoding: str = "utf-8", colour: bool = False) -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding, errors="replace")
    system: Literal["standard"] | None = "standard" if colour else None
    console = Console(file=file, width=columns, height=rows, color_system=system, force_terminal=colour)
    console.print(frame(status, NEWEST_S, tables(status), console), end="")
    file.flush()
    drawn = file.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]
    return "".join(f"{line.rstrip()}\n" for line in drawn.splitlines())


def test_a_screen_of_80_columns(found: Status) -> None:
    shown = screen(found)
    assert shown == SCREEN
    plain = screen(found, encoding="ascii")
    assert plain.isascii() and "-" * 20 + " " * 22 + "20 of 40" in plain
    assert "_" * 20 + "#" * 21 + "=" * 9 in plain


def test_a_screen_colours_how_runs_ended(found: Status) -> None:
    drawn = screen(found, colour=True)
    assert "\x1b[32mSUCCEEDED" in drawn and "\x1b[31mKILLED(9)" in drawn


@pytest.mark.parametrize("columns", [1, 20, 40, 79, 80, 200])
@pytest.mark.parametrize("rows", [1, 3, 10, 16, 24, 60])
def test_every_screen_fits(found: Status, columns: int, rows: int) -> None:
    lines = screen(found, columns, rows).split("\n")[:-1]
    assert len(lines) == rows and max(map(width, lines)) <= columns


def test_what_does_not_fit_is_counted(found: Status) -> None:
    many = replace(found, waiting=list(found.waiting) * 15, waiting_count=500)
    shown = screen(many)
    assert "... and 497 more" in shown and shown.count("outcome") == 1 and "3.1  killed" in shown


def test_a_row_of_several_lines_is_one_run(found: Status, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a narrow terminal each line was counted as a run, and a row was cut between its lines."""
    monkeypatch.setenv("COLUMNS", "60")
    many = replace(found, waiting=list(found.waiting) * 15, waiting_count=500)
    lines = screen(many, 60, 40).splitlines()
    top = next(at for at, line in enumerate(lines) if line.split()[:1] == ["#"]) + 2
    end = next(at for at, line in enumerate(lines) if line.startswith("... and "))
    n_runs = sum(bool(line[:2].strip()) for line in lines[top:end])
    assert end - top == 2 * n_runs > 2, "each row has two lines, and the last one is whole"
    assert lines[end] == f"... and {500 - n_runs} more"


def test_names_can_do_a_terminal_no_harm(found: Status) -> None:
    assert found.running is not None
    evil = {"name": "\x1b[2J\x1b]0;t\x07漢字\n\r\u202eworse", "blocked_reason": "\x1b[31mred\nreason"}
    harmed = replace(
        found,
        queue=QueueState(True, 1, "\x1b[2Jblocked\r\nby it", None),
        running=replace(found.running, run=replace(found.running.run, **evil)),
        waiting=[replace(run, **evil) for run in found.waiting],
        reasons={run.run_id: Reason("blocked", "\x1b[31mred\nreason", "", "") for run in found.waiting},
        ended=[replace(run, **evil) for run in found.ended],
    )
    shown = screen(harmed)
    assert not any((ord(c) < 32 and c != "\n") or 127 <= ord(c) < 160 or c == "\u202e" for c in shown)
    assert max(map(width, shown.split("\n"))) <= 80 and "漢字 worse" in shown and "red reason" in shown
    columns = {line[: line.index("mps,")] for line in shown.split("\n") if "mps," in line}
    assert len({width(before) for before in columns}) == 1


def test_a_queue_in_trouble_says_so(found: Status) -> None:
    gone = replace(found, queue=QueueState(False, None, None, 1.0))
    shown = screen(gone)
    assert "none; start one" in shown and "lost its supervisor" in shown and "nothing starts until" in shown
    assert "running  nothing" in screen(replace(found, running=None))


@given(st.lists(st.floats(0, 1e6) | st.just(float("nan")), max_size=80))
def test_a_sparkline_has_a_bar_for_each_iteration(times: list[float]) -> None:
    real = [t for t in times if t == t]
    for ascii, letters in ((False, BARS), (True, ASCII_BARS)):
        spark = sparkline(times, ascii=ascii)
        assert (spark is None) == (not real)
        if spark is not None:
            assert len(spark.bars) == len(real) and set(spark.bars) <= set(letters)
            assert spark.low_s == min(real) <= spark.high_s <= spark.max_s == max(real)


def test_one_slow_iteration_does_not_flatten_the_rest() -> None:
    spark = sparkline([0.010, 0.012, 0.011, 0.013] * 5 + [9.0])
    assert spark is not None and (spark.beyond, spark.max_s) == (1, 9.0) and spark.high_s < 0.02
    assert len(set(spark.bars[:-1])) == 4 and spark.bars[-1] == "█"
    steady = sparkline([0.010, 0.0100001] * 20)
    assert steady is not None and set(steady.bars) == {"▁"}


def add_iterations(layout: Layout, first: int, count: int) -> None:
    engine = open_engine(layout.db, check=False)
    iterations = [
        Iter(10_000 + n, float(n), n, 0.01 * (n % 7 + 1), loss=1 / (n + 1)) for n in range(first, first + count)
    ]
    with writing(engine) as connection:
        run_id = connection.value("SELECT id FROM runs WHERE state = 'RUNNING'")
        phases = [Phase(9_000 + first, 0.0, "eval", "begin"), Phase(9_001 + first, 0.0, "eval", "end")]
        results.save_events(connection, run_id, [*iterations, *phases])
    engine.dispose()


def test_a_tracker_knows_what_a_whole_look_finds(queue: Layout) -> None:
    tracker = Tracker()
    with read.reading(queue.db) as connection:
        (run,) = run_view.runs(connection, "state = 'RUNNING'")
        for first in (0, 3, 10, 2000):
            add_iterations(queue, first, 3 if first < 3 else 250 if first > 10 else 7)
            again, anew = tracker.look(connection, run), Tracker().look(connection, run)
            assert replace(again, elapsed_s=0) == replace(anew, elapsed_s=0)
            assert again.phase == "measure" and again.iters > 20
        assert len(tracker.newest_s) == NEWEST
        (other,) = run_view.runs(connection, "run = '1.1'")
        assert tracker.look(connection, other).iters == 20


@pytest.fixture
def looks(queue: Layout, monkeypatch: pytest.MonkeyPatch) -> Iterator[Generator[Observation | None]]:
    clock = itertools.count(1000.0, 0.25)
    times = SimpleNamespace(monotonic=lambda: next(clock))
    monkeypatch.setattr(watch, "time", times)
    monkeypatch.setattr(poll, "time", times)
    observations = watch.observe(queue, 10)
    yield observations
    observations.close()


def test_a_look_reads_no_more_than_what_changed(
    queue: Layout, looks: Generator[Observation | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = next(looks)
    assert first is not None and first.turn == 1 and len(first.newest_s) == 20
    whole = []
    monkeypatch.setattr(watch.status_view, "look", lambda *a, look=queue_status.look: whole.append(a) or look(*a))
    add_iterations(queue, 0, 5)
    seen = [next(looks) for _ in range(4)]
    assert [s is not None for s in seen] == [False, True, False, True] and not whole  # progress, once a second
    assert seen[1] is not None and seen[1].turn == 1 and len(seen[1].newest_s) == 25
    end_running_run(queue, Ending(Outcome.SUCCEEDED, 0))
    ended = next(looks)
    assert ended is not None and ended.turn == 2 and ended.status.running is None and len(whole) == 1
    assert [next(looks) for _ in range(19)] == [None] * 19  # nothing runs, nothing changes
    assert next(looks) is not None and len(whole) == 2  # now and then all of it, for what time alone changes


def test_a_job_that_goes_on_is_no_longer_said_to_be_stopped(
    looks: Generator[Observation | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal is no change of the queue: each look at the progress asks again."""
    pids = iter([7, None])
    monkeypatch.setattr(queue_state, "stopped_trainer", lambda _folder: next(pids))
    seen = [observed.status.running for observed in (next(looks) for _ in range(3)) if observed is not None]
    assert [running and running.supervision.stopped for running in seen] == [7, None]


def test_another_database_in_its_place_is_read(queue: Layout, looks: Generator[Observation | None]) -> None:
    assert next(looks) is not None
    copy = queue.db.with_suffix(".copy")
    with sqlite3.connect(queue.db) as connection:
        connection.execute("VACUUM INTO ?", [str(copy)])
    copy.replace(queue.db)
    observation = next(looks)
    assert observation is not None and observation.turn == 2


def test_without_a_terminal_it_prints_each_change_once(queue: Layout) -> None:
    program = "import sys; from queue_runner.cli.main import main; sys.exit(main(['status', '--watch']))"
    env = {**os.environ, "FORCE_COLOR": "1", "TTY_COMPATIBLE": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdout=pipe, stderr=pipe, env=env, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        head = [process.stdout.readline() for _ in range(9)]
        assert head[1].startswith("worker   none;") and any("4.1  running" in line for line in head)
        end_running_run(queue, Ending(Outcome.FAILED, 3, reason="no"))
        for line in process.stdout:
            assert "\x1b" not in line
            if line.startswith("running  nothing"):
                break
        process.stdout.close()
        assert process.wait() == 141 and process.stderr.read() == ""


def test_watch_refuses_what_it_cannot_do(queue: Layout, mpsq: Cli) -> None:
    ran = mpsq("status", "--watch", "--json")
    assert ran.code == 2 and "mpsq status --json" in ran.err
    (queue.home / "mpsq.db").unlink()
    assert "still has 5 runs" in mpsq("status", "--watch").err
