"""Which failures another job repeats, and where they lead."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from queue_runner.model import parse_selector
from queue_runner.monitor import explanation, group_summary, run_view
from queue_runner.store import read
from tests.reports.report_fixture import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Job 1, whose second run failed, repeated by jobs 2 (failed) and, through that, 3 (waits)."""
    made = Store(tmp_path / "home")
    made.run()
    made.run(outcome="FAILED", exit_code=1)
    made.run(group=2, outcome="FAILED", exit_code=1, ended_at=2e9)
    made.run(group=3, outcome=None, ended_at=3e9)
    made.db.execute("UPDATE jobs SET created_at = id * 1e9 + 1, rerun_of = nullif(id - 1, 0)")
    yield made
    made.db.close()


def repeated(store: Store) -> dict[str, int]:
    with read.reading(store.layout.db) as connection:
        failed = run_view.runs(connection, "state = 'DONE' AND outcome <> 'SUCCEEDED'")
        by_id = read.repeated_by(connection, [run.run_id for run in failed])
        return {run.run: by_id[run.run_id].job for run in failed if run.run_id in by_id}


def whys(store: Store, *runs: str) -> list[tuple[bool, str]]:
    with read.reading(store.layout.db) as connection:
        explained = explanation.explain_all(store.layout, connection, [parse_selector(run) for run in runs])
        return [("repeats it" in why.sentence, why.next_step) for why in explained]


def test_the_newest_job_that_was_submitted_after_the_failure_repeats_it(store: Store) -> None:
    assert repeated(store) == {"1.2": 3, "2.1": 3}
    store.db.execute("UPDATE runs SET ended_at = 4e9 WHERE job_id = 1 AND number = 2")
    assert repeated(store) == {"2.1": 3}, "a run of a round that was added later"


def test_a_job_that_was_cancelled_repeats_nothing(store: Store) -> None:
    store.db.execute("UPDATE runs SET state = 'DONE', outcome = 'CANCELLED' WHERE job_id = 3")
    assert repeated(store) == {"1.2": 2}


def test_a_deleted_job_only_links_others(store: Store) -> None:
    store.db.execute("UPDATE jobs SET deleted_at = 1 WHERE id = 2")
    assert repeated(store)["1.2"] == 3
    store.db.execute("UPDATE jobs SET deleted_at = 1 WHERE id = 3")
    assert repeated(store) == {}


def test_only_a_failure_leads_to_the_job_that_repeats_it(store: Store) -> None:
    """A run that had succeeded, or was held, led there when it was asked about together with a failed one."""
    (good, first), (bad, then) = whys(store, "1.1", "1.2")
    assert (good, bad) == (False, True) and "report g1" in first and then == "mpsq why 3"
    store.db.execute("UPDATE runs SET state = 'DONE', outcome = 'SUCCEEDED', ended_at = 4e9 WHERE job_id = 3")
    assert [step for _, step in whys(store, "1.2")] == ["mpsq report g3 shows its numbers"]
    store.run(outcome=None)
    store.db.execute("UPDATE runs SET state = 'HELD' WHERE job_id = 1 AND number = 3")
    _, held = whys(store, "1.2", "1.3")
    assert held[0] is False and "mpsq resume 1" in held[1]


def test_a_stored_page_knows_when_the_repetition_ends_or_is_deleted(store: Store) -> None:
    versions = []
    for change in ("runs SET state = 'DONE', outcome = 'SUCCEEDED'", "jobs SET deleted_at = 1"):
        with read.reading(store.layout.db) as connection:
            versions.append(group_summary.version(connection, 1))
        store.db.execute(f"UPDATE {change} WHERE {'job_id' if 'runs' in change else 'id'} = 3")
    with read.reading(store.layout.db) as connection:
        versions.append(group_summary.version(connection, 1))
    assert len({*map(str, versions)}) == 3


def test_a_repetition_that_succeeded_at_its_second_attempt_is_a_success(store: Store) -> None:
    """The first page left the failure out, and `mpsq why` called the new job one that only repeats it."""
    store.db.execute("UPDATE runs SET state = 'DONE', outcome = 'LOST', ended_at = 4e9 WHERE job_id = 3")
    retry = store.run(group=3, ended_at=5e9)
    store.db.execute("UPDATE runs SET job_id = 3, number = 2, repeat = 1, attempt = 2 WHERE id = ?", [retry])
    assert [step for _, step in whys(store, "1.2")] == ["mpsq report g3 shows its numbers"]
