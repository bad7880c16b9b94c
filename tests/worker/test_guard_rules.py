"""Which waiting runs a failure holds or skips: in the store, without processes."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import select

from queue_runner.control import pausing
from queue_runner.model import Ending, Outcome, Verb, parse_selector
from queue_runner.paths import Layout
from queue_runner.spec import JobSpec, NewJob, Terms
from queue_runner.store import engine as store_engine
from queue_runner.store import jobs, retries
from queue_runner.store.engine import Engine, looking, open_engine, writing
from queue_runner.store.schema import runs
from queue_runner.worker.group_guard import guard
from tests.cli_support import SPEC
from tests.store_support import claim_next, statements_of

pytestmark = pytest.mark.process

FAILED = Ending(Outcome.FAILED, 1, reason="ImportError: no module named torch")
SILENT = Ending(Outcome.FAILED, 1, reason="it wrote nothing to stderr")
NO_DEVICE = Ending(Outcome.DEVICE_UNAVAILABLE, 69, reason="no cuda here")
OK = Ending(Outcome.SUCCEEDED, 0)
NANOGPT = JobSpec(kind="workload", name="nanogpt", workload="nanogpt", framework="torch", script="n.py", device="cuda")


@pytest.fixture
def engine(layout: Layout) -> Iterator[Engine]:
    made = open_engine(layout.db)
    yield made
    made.dispose()


def submit(engine: Engine, *specs: JobSpec, repeats: int = 1, terms: Terms | None = None) -> None:
    """Queue a group of jobs, repeat by repeat."""
    new = [NewJob(spec, repeats, terms or Terms()) for spec in specs]
    with writing(engine) as connection:
        order = [(k, n) for n in range(1, repeats + 1) for k in range(len(new))]
        jobs.submit(connection, "t", 0, new, order)


def end(engine: Engine, *endings: Ending, limit: int = 3) -> None:
    """End the next runs as a worker does."""
    for ending in endings:
        with writing(engine) as connection:
            run = claim_next(connection, token="ab" * 16, now=time.time() + 1000)
            assert run is not None, states(engine)
            jobs.move(connection, run.run_id, Verb.FINISH, actor="worker", ending=ending, ended_at=time.time())
            retries.retry_as_agreed(connection, run.run_id, ending, time.time())
            guard(connection, run, ending, limit, time.time())


def states(engine: Engine) -> str:
    """Return the first letter of each run's outcome or state, in the order of submission."""
    with looking(engine) as connection:
        rows = connection.execute(select(runs.c.state, runs.c.outcome).order_by(runs.c.id)).all()
    return "".join((row.outcome or row.state)[0] for row in rows)


def reason(engine: Engine, run_id: int) -> str | None:
    with looking(engine) as connection:
        return connection.execute(select(runs.c.blocked_reason).where(runs.c.id == run_id)).scalar_one()


def command(*argv: str, **changes: object) -> JobSpec:
    return replace(SPEC, argv=argv, params={}, **changes)  # type: ignore[arg-type]


# -- a missing device ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"framework": "jax"},
        {"workload": "vit"},
        {"script": "other.py"},
        {"device": "cpu"},
        {"python": "/opt/python"},
        {"env_name": "nightly"},
        {"env": {"CUDA_VISIBLE_DEVICES": "1"}},
        {"cwd": "/elsewhere"},
        {"mps": {"fallback": "1"}},
    ],
)
def test_a_device_may_be_there_for_another_setting(engine: Engine, changes: dict[str, object]) -> None:
    submit(engine, NANOGPT, replace(NANOGPT, dtype="bf16"), replace(NANOGPT, **changes))  # type: ignore[arg-type]
    end(engine, NO_DEVICE)
    assert states(engine) == "DSQ"


def test_a_command_tells_nothing_of_another_one(engine: Engine) -> None:
    submit(engine, command("train", device="cuda"), command("true", device="cuda"), repeats=2)
    end(engine, NO_DEVICE)
    assert states(engine) == "DQSQ"


def test_a_hold_of_the_user_outlasts_a_missing_device(engine: Engine, layout: Layout) -> None:
    submit(engine, NANOGPT, repeats=3)
    pausing.pause(layout, [parse_selector("1.2")])
    end(engine, NO_DEVICE)
    assert states(engine) == "DHS"


# -- failures at once ---------------------------------------------------------------------------------------------


def test_agreed_retries_are_used(engine: Engine) -> None:
    submit(engine, command("sh", "-c", "test -e ready || exit 4"), terms=Terms(retries=6, backoff_s=2.0))
    end(engine, *[FAILED] * 6, OK)
    assert states(engine) == "FFFFFFS"


def test_a_run_that_a_full_disk_stopped_is_tried_again(engine: Engine) -> None:
    submit(engine, command("train"), terms=Terms(retries=2))
    end(engine, Ending(Outcome.DISK_FULL, reason="it was stopped because the disk was nearly full"), OK)
    assert states(engine) == "DS"


def test_back_off_keeps_all_repeats_going(engine: Engine) -> None:
    submit(engine, command("sh", "-c", "exit 4"), repeats=5, terms=Terms(retries=1, backoff_s=2.0))
    end(engine, *[FAILED] * 4)
    assert "H" not in states(engine)


def test_a_candidate_that_fails_does_not_hold_its_champion(engine: Engine) -> None:
    """Else its rounds would never end, and no other candidate could be judged."""
    judged = command("sh", "train.sh", within=("sealed",))
    submit(engine, judged, replace(judged, name="champion"))
    end(engine, FAILED, limit=1)
    assert states(engine) == "FQ"


def test_a_retry_is_neither_counted_nor_held(engine: Engine) -> None:
    submit(engine, command("train"), repeats=5, terms=Terms(retries=1))
    end(engine, *[FAILED] * 5)
    assert states(engine) == "FFFHHFFQ"


def test_a_clock_that_is_set_back_hides_no_failure(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    submit(engine, NANOGPT, repeats=5)
    end(engine, FAILED, FAILED)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 3600)
    end(engine, FAILED)
    assert states(engine) == "FFFHH"


def test_different_commands_have_no_common_cause(engine: Engine) -> None:
    for ending in (SILENT, FAILED):
        submit(engine, *(command("sh", "-c", f"exit {n}") for n in range(5)))
        end(engine, *[ending] * 3, OK, OK)
    assert states(engine) == "FFFSS" * 2


def test_silent_failures_count_for_the_same_job_alone(engine: Engine) -> None:
    submit(engine, *(command("python", "train.py", "--lr", str(n)) for n in range(4)))
    end(engine, *[SILENT] * 3)
    assert states(engine) == "FFFQ"
    end(engine, OK)
    submit(engine, command("python", "train.py"), repeats=4)
    end(engine, *[SILENT] * 3)
    assert states(engine)[4:] == "FFFH"


def test_a_grid_of_one_script_is_held_and_told_why(engine: Engine) -> None:
    good = command("python", "report.py")
    submit(engine, *(command("python", "train.py", "--lr", str(n)) for n in range(4)), good)
    end(engine, *[FAILED] * 3)
    assert states(engine) == "FFFHQ"
    facts = (" 1.1, 2.1, 3.1, failed", "within a second", "FAILED(1): ImportError: ", "hold_after_failures")
    assert all(fact in reason(engine, 4) for fact in facts)


@pytest.mark.parametrize(
    "template", [("python", "train.py", "--lr={lr}"), ("./train.sh", "{lr}"), ("sh", "-c", "python train.py {lr}")]
)
def test_a_swept_value_is_no_other_program(engine: Engine, template: tuple[str, ...]) -> None:
    """A whole grid of `python train.py --lr={lr}` failed, since its third word differs from cell to cell."""

    def cell(lr: str, words: tuple[str, ...]) -> JobSpec:
        return replace(command(*(word.replace("{lr}", lr) for word in words)), params={"lr": lr})

    other = cell("1e-3", ("python", "other.py", "--lr={lr}"))
    submit(engine, *(cell(lr, template) for lr in ("1e-1", "1e-2", "1e-3", "1e-4")), other)
    end(engine, *[FAILED] * 3)
    assert states(engine) == "FFFHQ"


def test_what_has_succeeded_is_not_held(engine: Engine) -> None:
    submit(engine, NANOGPT, repeats=5)
    end(engine, OK, *[FAILED] * 3)
    assert states(engine) == "SFFFQ"


def test_a_cell_alone_is_held_where_others_of_its_grid_succeed(engine: Engine) -> None:
    submit(engine, NANOGPT, replace(NANOGPT, config="huge"), repeats=5)
    end(engine, *[OK, FAILED] * 3)
    assert states(engine) == "SFSFSFQHQH"


def test_a_large_group_is_held_by_few_statements(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    submit(engine, NANOGPT, repeats=500)
    end(engine, FAILED, FAILED)
    statements = statements_of(monkeypatch)
    end(engine, FAILED)
    assert states(engine) == "FFF" + "H" * 497 and len(statements) < 40
    with looking(engine) as connection:
        found = connection.rows(
            "SELECT DISTINCT actor, verb, from_state, to_state, reason FROM job_events WHERE verb = 'hold'"
        )
    assert [tuple(row) for row in found] == [("worker", "hold", "QUEUED", "HELD", reason(engine, 4))]


def test_a_failure_reads_no_specification_of_a_run_that_waits(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each failed run of a group of 20,000 jobs holds the worker up for a third of a second."""
    looked: list[str] = []

    def json_extract(text: str, path: str) -> object:
        looked.append(path)
        return json.loads(text).get(path.removeprefix("$."))

    usual = store_engine._connect

    def connect(*given: Any) -> sqlite3.Connection:
        driver = usual(*given)
        driver.create_function("json_extract", 2, json_extract, deterministic=True)  # as an index needs it
        return driver

    submit(engine, *(replace(NANOGPT, config=f"c{k}") for k in range(40)))
    monkeypatch.setattr(store_engine, "_connect", connect)
    end(engine, FAILED)
    assert states(engine) == "F" + "Q" * 39 and 0 < len(looked) <= 2 * 4  # of the failed run alone
