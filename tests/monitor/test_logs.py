"""logs: what is shown of what a job wrote, and how a job is followed."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from queue_runner.client import Client
from queue_runner.host.low_priority import Wait
from queue_runner.host.run_dir import RunDir
from queue_runner.host.warden_records import RunEnd
from queue_runner.model import Ending, Outcome
from queue_runner.monitor import follow, log_files
from queue_runner.monitor.log_text import LINE_BYTES, PipeText, Screen, ScreenText
from queue_runner.paths import Layout
from queue_runner.store import retries
from queue_runner.store.engine import open_engine, writing
from tests.cli_support import Cli, end_running_run, full_queue
from tests.store_support import claim_next


@pytest.fixture(autouse=True)
def keep_the_priority_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "nice", lambda _more: 0)


@pytest.fixture
def queue(home: Path) -> Layout:
    return full_queue(home)


@pytest.fixture
def piped() -> tuple[PipeText, list[bytes]]:
    out: list[bytes] = []
    return PipeText(out.append), out


@pytest.fixture
def screen() -> tuple[ScreenText, Callable[[], str]]:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    text = ScreenText(Screen(stream))

    def shown() -> str:
        raw = stream.buffer
        assert isinstance(raw, io.BytesIO)
        found = raw.getvalue().decode()
        raw.seek(raw.truncate(0))
        return found

    return text, shown


def test_a_pipe_gets_the_last_of_a_progress_bar_and_no_escapes(piped: tuple[PipeText, list[bytes]]) -> None:
    text, out = piped
    text.feed(b"\x1b[31mred\x1b[0m\n 1%\r50%\r100%\nunfin")
    assert out == [b"red\n100%\n"]
    text.pause()
    text.feed(b"ished\r\n 10%\r20%")
    text.pause()
    assert b"".join(out[1:]) == b"unfinished\n"
    text.end()
    assert out[-1] == b"20%\n"


def test_a_pause_in_a_letter_or_an_escape_shows_nothing_of_it(piped: tuple[PipeText, list[bytes]]) -> None:
    text, out = piped
    for part in (b"a\xe6\xbc", b"\xa2 \x1b[3", b"1mred \x1b]0;ti", b"tle\x07end", b" \xff\xe6\n"):
        text.feed(part)
        text.pause()
    assert b"".join(out).decode() == "a漢 red end \ufffd\ufffd\n"
    text.feed(b"a title \x1b]0;that never ends\nnext\n")
    assert out[-1] == b"a title \nnext\n"


def test_only_raw_passes_escapes_on(queue: Layout, mpsq: Cli) -> None:
    RunDir(queue.run_dir("2.1")).stdout.write_bytes(b"\x1b[31mred\x1b[0m \x1b]52;c;aGk=\x07\n")
    assert mpsq.ok("logs", "2", "--out").out == "red \n"
    assert mpsq.ok("logs", "2", "--out", "--raw").out == "\x1b[31mred\x1b[0m \x1b]52;c;aGk=\x07\n"


def test_a_terminal_gets_no_escapes(screen: tuple[ScreenText, Callable[[], str]]) -> None:
    text, shown = screen
    text.feed(b"\x1b[31mred\x1b[0m \x07bell \x1b]0;title\x07\n\x1b[2J\xff\n")
    assert shown() == "red bell \n\ufffd\n"
    text.feed(b"a title \x1b]0;that never ends\nnext\n")
    assert shown() == "a title \nnext\n"


def test_a_terminal_lets_a_progress_bar_overwrite_itself(screen: tuple[ScreenText, Callable[[], str]]) -> None:
    text, shown = screen
    text.feed(b" 10%\r 20%")
    assert shown() == "\r 20%"
    text.feed(b"\r 30% \xe6\xbc")
    assert shown() == "\r 30% "
    text.feed(b"\xa2\x1b[3")
    assert shown() == "漢"
    text.feed(b"1m\r")
    assert shown() == ""
    text.feed(b" 40% done\r\nnext\n")
    assert shown() == "\r 40% done\nnext\n"


def test_logs_on_one_terminal_do_not_continue_the_lines_of_each_other() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    screen = Screen(stream)
    first, second = ScreenText(screen), ScreenText(screen)
    first.feed(b"10 %")
    second.feed(b"a line\n")
    first.feed(b"\r20 %")
    first.end()
    second.end()
    raw = stream.buffer
    assert isinstance(raw, io.BytesIO) and raw.getvalue().decode() == "10 %\na line\n\r20 %\n"


def test_a_progress_bar_takes_no_memory(piped: tuple[PipeText, list[bytes]]) -> None:
    text, out = piped
    for percent in range(5000):
        text.feed(b"\r%5d it" % percent)
        assert len(text.pending) < 20 and not out
    text.feed(b"\ndone\n")
    assert out.pop() == b" 4999 it\ndone\n"
    text.feed(b"x" * (LINE_BYTES + 1))
    assert len(out.pop()) > LINE_BYTES


def test_a_log_of_one_endless_line_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "TAIL_MOST_BYTES", 1 << 20)
    path = tmp_path / "log"
    path.write_bytes(b"x" * (3 << 20))
    with path.open("rb") as stream:
        assert log_files.tail_offset(stream, 2) == 2 << 20


def test_a_log_is_read_on_over_its_compaction_and_anew_where_it_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = log_files.LogFile(path)
    assert log.read() == b""
    path.write_bytes(b"one\ntwo\n")
    assert (log.read(), log.read()) == (b"one\ntwo\n", b"")
    kept = path.open("ab")
    (tmp_path / "compact").write_bytes(b"o\n")
    (tmp_path / "compact").replace(path)
    kept.write(b"three\n")
    kept.close()
    assert (log.read(), log.read()) == (b"three\n", b"")
    log.close()
    again = log_files.LogFile(path)
    assert again.read() == b"o\n"
    path.write_bytes(b"")
    assert again.read() == b""
    path.write_bytes(b"n\n")
    assert again.read() == b"n\n"
    again.close()


@pytest.mark.parametrize("kind", ["fifo", "link", "folder", "nothing"])
def test_what_is_no_log_is_not_waited_for(queue: Layout, mpsq: Cli, kind: str) -> None:
    path = RunDir(queue.run_dir("2.1")).stdout
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("/etc/hostname")
    elif kind == "folder":
        path.mkdir()
    assert mpsq.ok("logs", "2", "--out").out == ""


class Scripted:
    """A wait in which things happen instead of time: one of `acts` each."""

    def __init__(self, *acts: Callable[[], object]) -> None:
        self._acts: Iterator[Callable[[], object]] = iter(acts)

    def __call__(self, _seconds: float) -> None:
        next(self._acts)()


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def script(*acts: Callable[[], object]) -> None:
        scripted = Scripted(*acts)
        monkeypatch.setattr(Wait, "__call__", lambda self, seconds: scripted(seconds))

    return script


def append(layout: Layout, run: str, text: str) -> Callable[[], object]:
    def act() -> None:
        folder = RunDir(layout.run_dir(run))
        folder.path.mkdir(parents=True, exist_ok=True)
        with folder.stdout.open("a") as stream:
            stream.write(text)

    return act


def test_a_job_is_followed_until_it_has_ended(queue: Layout, mpsq: Cli, no_waiting: Callable[..., None]) -> None:
    no_waiting(
        append(queue, "4.1", "more\n"),
        append(queue, "4.1", "and mo"),
        append(queue, "4.1", "re"),
        lambda: end_running_run(queue, Ending(Outcome.FAILED, 3, reason="no \x1b[31mdata")),
    )
    ran = mpsq.ok("logs", "4", "-f")
    assert ran.out == "hello from 4.1\nwarning\nmore\nand more"
    began, lost, advice, ended = ran.err.splitlines()
    assert began.startswith("--- run 4.1: running") and began.endswith(" lr=0.1")
    assert "lost its supervisor" in lost and "mpsq worker" in advice and "4.1: FAILED(3): no data" in ended


def test_a_job_is_followed_through_its_retries(queue: Layout, mpsq: Cli, no_waiting: Callable[..., None]) -> None:
    engine = open_engine(queue.db, check=False)

    def end_and_retry() -> None:
        with writing(engine) as connection:
            run_id = connection.value("SELECT id FROM runs WHERE state = 'RUNNING'")
        end_running_run(queue, Ending(Outcome.FAILED, 1))
        with writing(engine) as connection:
            retries.again(connection, run_id, actor="worker", first=True)

    def start() -> None:
        with writing(engine) as connection:
            claim_next(connection, token="cd" * 16)
        append(queue, "4.2", "second\n")()

    no_waiting(end_and_retry, start, lambda: end_running_run(queue, Ending(Outcome.SUCCEEDED, 0)))
    ran = mpsq.ok("logs", "4", "-f", "--tail", "0")
    engine.dispose()
    assert ran.out == "second\n"  # --tail is of the log that was there
    answer = ran.err.splitlines()
    assert [line.partition("  ")[0] for line in answer if "worker" not in line] == [
        "--- run 4.1: running",
        "--- run 4.1: FAILED(1)",
        "--- run 4.2 (attempt 2): running",
        "--- run 4.2: SUCCEEDED",
    ]
    assert any("4.2 waits: no worker" in line for line in answer)


def test_a_run_that_nobody_records_is_not_waited_for_for_ever(
    queue: Layout, mpsq: Cli, no_waiting: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "_PATIENCE_S", -1.0)
    no_waiting()
    monkeypatch.setattr(RunDir, "exit", lambda self: RunEnd(exit_code=0))
    ran = mpsq.ok("logs", "4", "-f")
    assert ran.out == "hello from 4.1\nwarning\n" and "record its result" in ran.err


def test_what_is_waited_for_is_said_again_when_it_is_another_thing(
    queue: Layout, mpsq: Cli, no_waiting: Callable[..., None]
) -> None:
    """And only then: that time passes changes nothing."""
    client = Client(queue.home)
    waiting = mpsq.ok("submit", "--", "true").out.split("(")[1].split(".")[0]
    no_waiting(
        client.pause,
        lambda: None,
        lambda: client.pause(waiting),
        lambda: client.cancel(waiting),
    )
    answer = mpsq.ok("logs", waiting, "-f").err
    note = [line.split(": ")[1] for line in answer.splitlines() if line.startswith(f"run {waiting}.1 ")]
    assert all(x in line for x, line in zip(("no worker", "paused (by hand)", "is resumed"), note, strict=True))
    assert answer.splitlines()[-1].startswith(f"--- run {waiting}.1: CANCELLED")


def test_a_reader_that_has_left_is_noticed_while_nothing_is_written() -> None:
    reads, writes = os.pipe()
    wait = Wait(writes)
    wait(0)
    os.close(reads)
    with pytest.raises(BrokenPipeError):
        wait(60)
    os.close(writes)
    Wait(None)(0)


def test_both_streams_are_shown_in_order_of_time(queue: Layout, mpsq: Cli) -> None:
    folder = RunDir(queue.run_dir("2.1"))
    folder.stdout.write_text("a\nb\nc\n")
    folder.stderr.write_text("1\n2\nTraceback\n")
    (folder.path / "warden/output_order").write_text("4 0\n4 2\n6 4\n")
    assert mpsq.ok("logs", "2").out.split() == ["a", "b", "1", "c", "2", "Traceback"]
    for lines in range(8):
        assert (
            mpsq.ok("logs", "2", "-n", lines).out.split() == ["a", "b", "1", "c", "2", "Traceback"][max(0, 6 - lines) :]
        )
    assert mpsq.ok("logs", "2", "--out").out.split() == ["a", "b", "c"]
    assert mpsq.ok("logs", "2", "--err", "-n", 2).out.split() == ["2", "Traceback"]


@pytest.mark.parametrize("order", ["4 0\n99 2\n", "4 2\n2 4\n", "x", "4 0\n4", "-4 0\n"])
def test_an_order_that_does_not_fit_the_logs_hides_nothing(queue: Layout, mpsq: Cli, order: str) -> None:
    """The job may have written it, and a long log is cut to its head and tail."""
    folder = RunDir(queue.run_dir("2.1"))
    folder.stdout.write_text("a\nb\n")
    folder.stderr.write_text("1\n2\n")
    (folder.path / "warden/output_order").write_text(order)
    assert sorted(mpsq.ok("logs", "2").out.split()) == ["1", "2", "a", "b"]


def test_a_run_without_output_says_so(queue: Layout, mpsq: Cli, no_waiting: Callable[..., None]) -> None:
    folder = RunDir(queue.run_dir("1.2"))
    folder.stdout.write_text("")
    answer = mpsq.ok("logs", "1", "--out").err
    assert answer.startswith("run 1.2 ") and answer.endswith("nothing to stdout\n")
    of_one = mpsq.ok("logs", "1")
    assert of_one.out == "warning\n" and "run 1.2, one of 2" in of_one.err
    folder.stderr.write_text("")
    assert mpsq.ok("logs", "1").err == "run 1.2 wrote nothing\n"
    RunDir(queue.run_dir("4.1")).stdout.write_text("")
    RunDir(queue.run_dir("4.1")).stderr.write_text("")
    assert "written nothing yet" in mpsq.ok("logs", "4").err
    no_waiting(lambda: end_running_run(queue, Ending(Outcome.SUCCEEDED, 0)))
    assert "SUCCEEDED, without output" in mpsq.ok("logs", "4", "-f").err
