"""Every line once, whatever the job does to its file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from unittest import mock

import pytest

from queue_runner.errors import MpsqError
from queue_runner.host.run_dir import RunDir
from queue_runner.ingest.ingest import Ingest
from queue_runner.model import RunId
from queue_runner.paths import Layout
from queue_runner.spec import JobSpec, NewJob
from queue_runner.store import jobs, results
from queue_runner.store.engine import Engine, looking, open_engine, writing
from queue_runner.store.jobs import Claimed
from tests.store_support import claim_next

LINE = '{"type":"iter","t":%d.5,"i":%d,"dur_s":0.01,"loss":4.2,"synced":true,"phase":"measure"}\n'


class Case:
    """A claimed run, its folder, and what is stored of it."""

    def __init__(self, layout: Layout, engine: Engine, parser: str | None = None) -> None:
        self.engine = engine
        spec = JobSpec(kind="command", name="x", parser=parser)
        with writing(engine) as connection:
            jobs.submit(connection, "test", 0, [NewJob(spec)], [(0, 1)])
            run = claim_next(connection)
        assert run
        self.run: Claimed = run
        self.folder = RunDir(layout.run_dir(RunId(1, 1)))
        self.folder.path.mkdir(parents=True)

    def ingest(self) -> Ingest:
        return Ingest(self.engine, self.run, self.folder)

    def append(self, *numbers: int, end: str = "") -> None:
        with self.folder.events.open("a") as stream:
            stream.write("".join(LINE % (i, i) for i in numbers) + end)

    def numbers(self) -> list[int]:
        with looking(self.engine) as connection:
            return [i for (i,) in results.rows_of(connection, "iterations", ["i"], self.run.run_id)]

    def state(self, source: str = "events") -> results.IngestState:
        with looking(self.engine) as connection:
            return results.ingest_state(connection, self.run.run_id, source)

    def notes(self) -> dict[str, str]:
        with looking(self.engine) as connection:
            return results.note_texts(connection, self.run.run_id)


@pytest.fixture
def case(layout: Layout) -> Iterator[Case]:
    engine = open_engine(layout.db, keep_open=True)
    yield Case(layout, engine)
    engine.dispose()


def test_lines_are_taken_once_by_one_worker_or_many(case: Case) -> None:
    case.append(0, 1)
    first = case.ingest()
    assert first.step() and not first.step()
    case.append(2)
    case.ingest().step()  # another worker adopts the run
    case.append(3)
    case.ingest().finish()
    assert case.numbers() == [0, 1, 2, 3]


def test_a_torn_last_line_is_judged_after_the_end(case: Case) -> None:
    half = LINE % (1, 1)
    case.append(0, end=half[:30])
    reader = case.ingest()
    reader.step()
    assert (case.numbers(), case.state().torn) == ([0], 0)
    with case.folder.events.open("a") as stream:
        stream.write(half[30:] + half[:10])
    reader.finish()
    case.ingest().finish()  # as of the next worker, where the first died before it stored the end
    assert (case.numbers(), case.state().torn) == ([0, 1], 1)


def test_a_reboot_may_give_the_disk_another_number(case: Case) -> None:
    case.append(0, 1)
    case.ingest().step()
    with writing(case.engine) as connection:
        connection.change("UPDATE ingests SET device = device + 1")
    case.append(2)
    case.ingest().finish()
    assert case.numbers() == [0, 1, 2] and case.notes() == {}


def test_a_resumed_job_repeats_numbers(case: Case) -> None:
    case.append(0, 1, 2, 1, 2, 3)
    case.ingest().finish()
    assert case.numbers() == [0, 1, 2, 1, 2, 3]


def rewrite(case: Case) -> None:
    case.folder.events.write_text(LINE % (9, 9))


def replace(case: Case) -> None:
    other = case.folder.path / "other"
    other.write_text(case.folder.events.read_text())
    other.replace(case.folder.events)


def change(case: Case) -> None:
    with case.folder.events.open("r+b") as stream:
        stream.seek(10)
        stream.write(b"!")


def remove(case: Case) -> None:
    case.folder.events.unlink()


def link(case: Case) -> None:
    remove(case)
    case.folder.events.symlink_to("/etc/hosts")


def fifo(case: Case) -> None:
    remove(case)
    os.mkfifo(case.folder.events)


@pytest.mark.parametrize("attack", [rewrite, replace, change, remove, link, fifo])
def test_a_file_that_was_tampered_with_is_read_no_further(case: Case, attack: object) -> None:
    case.append(0, 1)
    reader = case.ingest()
    reader.step()
    attack(case)  # type: ignore[operator]
    reader.step()
    assert "log_rewritten" in case.notes()
    if not case.folder.events.is_fifo() and not case.folder.events.is_symlink():
        case.append(2, 3)
    case.ingest().finish()
    assert case.numbers() == [0, 1] and case.state().rewritten == 1


def test_garbage_is_counted_and_exit_lines_are_forged(case: Case) -> None:
    case.append(0)
    with case.folder.events.open("ab") as stream:
        stream.write(b'\xff\xfe\n{"type":"exit","t":1,"code":0}\nnot json\n{"type":"new_thing","t":2}\n')
    case.append(1)
    case.ingest().finish()
    state = case.state()
    assert (case.numbers(), state.bad, state.forged, state.unknown) == ([0, 1], 2, 1, 1)


def test_another_protocol_version_is_a_sentence_in_the_notes(case: Case) -> None:
    case.folder.events.write_text('{"type":"hello","t":0,"v":7}\n')
    case.ingest().finish()
    assert "version 7" in case.notes()["log_rewritten"]


def test_nan_is_noted_once_and_stored_as_missing(case: Case) -> None:
    with case.folder.events.open("a") as stream:
        for i in range(3):
            stream.write((LINE % (i, i)).replace("4.2", '"nan"'))
    case.ingest().finish()
    assert case.notes()["nan_loss"].endswith("from iteration 0 on")


@pytest.mark.parametrize(
    ("line", "other"),
    [
        ('{"type":"note","t":1,"kind":"epoch","text":5}\n', "epoch"),
        ((LINE % (0, 0)).replace("4.2", '"nan","allocated_bytes":1.5'), "nan_loss"),
    ],
    ids=["a note", "the first iteration without a loss"],
)
def test_a_line_with_a_note_of_its_own_may_lack_a_field(case: Case, line: str, other: str) -> None:
    case.folder.events.write_text(line)
    case.append(1)
    case.ingest().finish()
    assert case.notes().keys() == {other, "field_dropped"}
    assert case.numbers()[-1] == 1 and not case.state().rewritten


def test_a_parser_reads_stdout_and_its_state_survives_the_worker(layout: Layout) -> None:
    engine = open_engine(layout.db, keep_open=True)
    case = Case(layout, engine, parser="nanogpt")
    log = (
        "step 0: train loss 4.1, val loss 4.2\n"
        "iter 0: loss 4.18, time 900.00ms, mfu -100.00%\n"
        "iter 1: loss 4.1, time 30.00ms, mfu -100.00%\n"
    )
    for end in (40, 90, len(log)):  # cut in the middle of lines, each piece read by another worker
        case.folder.stdout.write_text(log[:end])
        os.utime(case.folder.stdout)
        case.ingest().step()
    case.ingest().finish()
    assert case.numbers() == [0, 1]
    assert case.state("stdout").offset == len(log)
    engine.dispose()


def test_a_parser_that_is_gone_stops_the_reading_and_not_the_queue(layout: Layout) -> None:
    engine = open_engine(layout.db, keep_open=True)
    case = Case(layout, engine, parser="of-yesterday")
    case.folder.stdout.write_text("iter 1\n")
    case.ingest().finish()
    assert "unknown parser" in case.notes()["log_rewritten"]
    engine.dispose()


@pytest.mark.parametrize("parser", [None, "trainer"], ids=["events", "log"])
def test_what_the_store_refuses_is_read_again_as_if_for_the_first_time(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, parser: str | None
) -> None:
    engine = open_engine(layout.db, keep_open=True)
    case = Case(layout, engine, parser)
    case.append(0, 1, 2)
    case.folder.stdout.write_text("{'loss': nan, 'grad_norm': 0.5, 'learning_rate': 1e-05, 'epoch': 0.5}\n")
    reader = case.ingest()
    with monkeypatch.context() as patched:
        patched.setattr(results, "save_events", mock.Mock(side_effect=MpsqError("the disk is full", "free some")))
        for _ in range(2):
            with pytest.raises(MpsqError):
                reader.step()
    refused, chunk = reader.read(), case.ingest().read()
    assert refused and refused == chunk, "another worker would find the same"
    reader.finish()
    assert ("nan_loss" in case.notes()) == (parser is not None)
    engine.dispose()


def test_no_file_is_no_event(case: Case) -> None:
    case.ingest().finish()
    assert case.numbers() == [] and case.notes() == {}


def test_a_large_file_is_taken_in_chunks(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queue_runner.ingest.ingest.CHUNK_BYTES", 250)
    case.append(*range(50))
    case.ingest().finish()
    assert case.numbers() == list(range(50))
