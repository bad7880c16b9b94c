"""--find-max: which value comes next, and a whole search in a real store, with a worker that ends after every probe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import text

from queue_runner.errors import UsageError
from queue_runner.events import Hello, Iter, Metric
from queue_runner.host.warden_records import RunEnd
from queue_runner.model import Ending, Outcome, Verb
from queue_runner.paths import Layout
from queue_runner.store import jobs, migrate, read, results, retries
from queue_runner.store.engine import open_engine, writing
from queue_runner.submit import expand
from queue_runner.submit import plan as submit
from queue_runner.submit.find_max import next_probe, search
from queue_runner.submit.find_max.search import Probe, SearchRange, state
from tests.store_support import claim_next
from tests.submit_support import requested

pytestmark = pytest.mark.process

MEMORY = 2.0**34


def walk(
    asked: SearchRange, most: int, per_value: float = 0.0, memory: float | search.Limit | None = None
) -> tuple[list[int], str]:
    """The values that are tried on a device that holds `most`, and the last sentence."""
    probes: list[Probe] = []
    limit = memory if isinstance(memory, search.Limit) else search.of_machine(memory)
    while (at := state(asked, probes, limit)).following is not None:
        value = at.following
        assert value not in [probe.value for probe in probes] and len(probes) < 60
        fits = value <= most
        used = round(2e8 + per_value * value) if per_value else None
        probes.append(Probe(value, fits, "" if fits else "OUT_OF_MEMORY: no room", used_bytes=used if fits else None))
    return [probe.value for probe in probes], at.sentence(asked.key)


@pytest.mark.parametrize("first", [1, 3, 12, 64, 5000])
@pytest.mark.parametrize("most", [1, 2, 3, 12, 63, 100, 777])
def test_the_largest_is_found_wherever_it_begins(first: int, most: int) -> None:
    tried, answer = walk(SearchRange("batch_size", first), most)
    assert answer.startswith(f"batch_size {most} is the largest")
    assert f" {most + 1} does not" in answer and "OUT_OF_MEMORY" in answer
    assert {most, most + 1} <= {*tried} and tried[0] == first and len(tried) < 26


def test_the_order_of_the_values() -> None:
    assert walk(SearchRange("batch_size", 8), 40)[0] == [8, 16, 32, 64, 48, 40, 44, 42, 41]


@pytest.mark.parametrize("most", [4, 6, 383, 384, 390, 700, 1538, 5000])
def test_only_multiples_of_the_step_are_tried(most: int) -> None:
    tried, answer = walk(SearchRange("n_embd", 384, step=6), most)
    assert all(value % 6 == 0 for value in tried) and len(tried) < 26
    best = most // 6 * 6
    if best:
        assert {best, best + 6} <= {*tried} and answer.startswith(f"n_embd {best:,} is the largest")
    else:
        assert tried[-1] == 6 and answer.startswith("not even n_embd 6")


def test_the_ends_of_a_search_in_steps() -> None:
    tried, answer = walk(SearchRange("n", 8, 30, 4), 100)
    assert tried == [8, 16, 28] and "n 28 works" in answer and "largest allowed" in answer
    _, answer = walk(SearchRange("n", 8, step=8), 10**6, per_value=1e8, memory=MEMORY)
    assert "would need more" in answer and int(answer.split("; ")[1].split()[0].replace(",", "")) % 8 == 0


@pytest.mark.parametrize("said", ["n_embd=384::6", "n_embd=384:768:6", "n_embd", "n_embd=8", "n_embd=8:512", "n=:64"])
def test_a_search_is_stored_as_it_was_asked_for(said: str) -> None:
    assert str(search.parse(said)) == said


def test_the_ends_of_a_search() -> None:
    tried, answer = walk(SearchRange("n", 8, 20), 100)
    assert tried == [8, 16, 20] and "n 20 works" in answer and "largest allowed" in answer
    tried, answer = walk(SearchRange("n", 4), 0)
    assert tried == [4, 2, 1] and "not even n 1" in answer and "OUT_OF_MEMORY" in answer


def test_what_would_not_fit_into_the_machine_is_not_tried() -> None:
    """On the CPU nothing but the machine's own memory is the limit, and reaching it hurts other programs."""
    tried, answer = walk(SearchRange("batch_size", 8), 10**9, per_value=1e8, memory=MEMORY)
    limit = (0.9 * MEMORY - 2e8) / 1e8
    assert max(tried) <= limit < max(tried) + 1 and tried[:4] == [8, 16, 32, 64]
    assert all(x in answer for x in ("smaller values", "90 % of", "16.0 GiB"))
    assert walk(SearchRange("batch_size", 8), 40, per_value=1.0, memory=MEMORY)[0][-1] == 41


def test_what_metal_does_not_recommend_is_not_tried_on_mps() -> None:
    """torch alone would take 1.7 times as much, which macOS serves from swap, and MLX whatever there is."""
    metal = search.of_metal(1.1e10, 1.0, MEMORY)
    tried, answer = walk(SearchRange("batch_size", 8), 10**9, per_value=1e8, memory=metal)
    assert max(tried) == (1.1e10 - 2e8) / 1e8
    assert all(x in answer for x in ("than the 10.2 GiB", "Metal", "smaller values"))
    assert "1.2 times the 10.2 GiB" in walk(SearchRange("n", 8), 10**9, 1e8, search.of_metal(1.1e10, 1.2, MEMORY))[1]
    for ratio in (1.7, float("inf")):  # asked for: no more than the machine has
        assert search.of_metal(1.1e10, ratio, MEMORY) == search.of_machine(MEMORY)


def test_a_value_that_uses_more_than_the_limit_is_not_doubled() -> None:
    """MLX, and torch with a range, do not stop there by themselves: twice 12 GB on a Mac of 16 GB goes through swap."""
    metal = search.of_metal(1.1e10, 1.0, MEMORY)
    at = state(SearchRange("n", 12), [Probe(12, True, "", used_bytes=12 * 10**9)], metal)
    assert (at.largest, at.too_large, at.following) == (12, 13, None) and "10.2 GiB that Metal" in at.why_not
    grown = [Probe(12, True, "", used_bytes=12 * 10**9), Probe(24, True, "", used_bytes=12 * 10**9)]
    assert state(SearchRange("n", 12), grown, metal).following is None, "no slope, and over the limit"


def test_the_second_value_is_no_larger_than_the_first_allows() -> None:
    """One value tells no line; what a value needs is at most in proportion to a smaller one."""
    metal = search.of_metal(1.1e10, 1.0, MEMORY)
    assert state(SearchRange("n", 12), [Probe(12, True, "", used_bytes=7 * 10**9)], metal).following == 18
    assert state(SearchRange("n", 12), [Probe(12, True, "", used_bytes=5 * 10**9)], metal).following == 24
    assert state(SearchRange("n", 12, step=6), [Probe(12, True, "", used_bytes=9 * 10**9)], metal).following == 18
    assert state(SearchRange("n", 12, 20), [Probe(12, True, "", used_bytes=5 * 10**9)], metal).following == 20
    untold = [Probe(12, True, "", used_bytes=7 * 10**9), Probe(24, True, "")]
    assert state(SearchRange("n", 12), untold, metal).following == 25, "never below what works"
    tried, answer = walk(SearchRange("n", 60), 10**9, per_value=1e8, memory=metal)
    assert (
        tried[:2] == [60, 106] and max(tried) == 108 and answer.startswith("n 108 is the largest") and " 109 " in answer
    )


def mps_row(value: int, **more: Any) -> read.ProbeRow:
    spec = replace(plan(device="mps", find_max="batch_size=8").jobs[0].spec, find_max="batch_size=8")
    spec = replace(search.with_value(spec, "batch_size", value), env=more.pop("env", spec.env))
    note = {"device": "mps", "reserved_bytes": value * 10**8, "recommended_bytes": 11 * 10**9, "swapped": 0}
    ended = {"state": "DONE", "outcome": "SUCCEEDED", "exit_code": 0, "signal": None, "reason": None}
    recorded = {"job_id": value, "machine_hash": None, "max_rss_bytes": 10**8}
    return read.ProbeRow(**{"spec_json": spec.to_json(), **recorded, **note, **ended, **more})


def test_a_search_on_mps_is_judged_by_what_the_driver_reserved() -> None:
    rows = [mps_row(value) for value in (8, 16, 32, 64)]
    at = next_probe.state_of(SearchRange("batch_size", 8), rows, MEMORY)
    assert at.following == 87 and "10.2 GiB that Metal" in at.why_not

    def following(asked: SearchRange, **row: Any) -> int | None:
        return next_probe.state_of(asked, [mps_row(value, **row) for value in (8, 16, 32, 64)], None).following

    assert following(SearchRange("batch_size", 8), env={"PYTORCH_MPS_HIGH_WATERMARK_RATIO": "0.0"}) == 128
    assert following(SearchRange("batch_size", 8, 4096), env={}) == 128
    assert following(SearchRange("batch_size", 8), env={}) == 87
    assert following(SearchRange("batch_size", 8), recommended_bytes="much") == 128
    footprint = {"reserved_bytes": None, "max_rss_bytes": 14 * 10**9}
    for device in ("mps", None):  # a command that reports nothing: on a Mac the GPU's memory is its process's
        rows = [mps_row(8, device=device, recommended_bytes=None, **footprint)]
        assert next_probe.state_of(SearchRange("batch_size", 8), rows, MEMORY).following == 9


def test_probes_on_mps_end_where_metal_recommends() -> None:
    """Unless a range or a watermark was asked for."""
    planned = plan(find_max="batch_size", device="cpu,mps")
    cpu, mps = (job.spec for job in planned.jobs)
    assert cpu.mps == {} and mps.mps == {"high_watermark": "1.0", "low_watermark": "1.0"}
    assert mps.env["PYTORCH_MPS_HIGH_WATERMARK_RATIO"] == "1.0" and "that Metal recommends" in planned.warnings[-1]
    assert plan(workload="bert", find_max="block_size", config="toy", device="mps").jobs[0].spec.mps
    assert plan(find_max="batch_size=8:512", device="mps").jobs[0].spec.mps == {}
    asked = plan(find_max="batch_size", device="mps", mps=["high_watermark=0"]).jobs[0].spec
    assert asked.mps["high_watermark"] == "0.0"
    (mlx,) = plan(find_max="batch_size", device="mps", framework="mlx").jobs
    assert mlx.spec.mps == {}
    (fast,) = plan(find_max="batch_size", device="mps", mps=["fast_math=on"]).jobs
    assert sorted(fast.spec.mps) == ["fast_math", "high_watermark", "low_watermark"]


def test_a_probe_that_failed_otherwise_stops_the_search() -> None:
    probes = [Probe(8, True, ""), Probe(16, None, "FAILED(1): no data")]
    at = state(SearchRange("n", 8), probes)
    assert at.following is None and at.stopped is not None
    assert all(x in at.sentence("n") for x in ("n 8 works", "stopped at 16", "FAILED(1): no data"))
    assert state(SearchRange("n", 8), [Probe(8, None, "", over=False)]).sentence("n").endswith("8 is pending")


def test_a_value_that_failed_below_one_that_works_is_no_limit() -> None:
    at = state(SearchRange("n", 8), [Probe(8, False, "another program"), Probe(16, True, "")])
    assert (at.largest, at.following) == (16, 32)


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("batch_size", SearchRange("batch_size")),
        ("batch_size=8", SearchRange("batch_size", 8)),
        ("batch_size=8:512", SearchRange("batch_size", 8, 512)),
        ("batch_size=:512", SearchRange("batch_size", None, 512)),
    ],
)
def test_what_may_be_asked(said: str, found: SearchRange) -> None:
    assert search.parse(said) == found == search.parse(str(found))


@pytest.mark.parametrize(
    "said",
    [
        "",
        "batch_size=",
        "batch_size=0",
        "8",
        "batch_size=9:8",
        "batch_size=a",
        "n=1:",
        "n=1::",
        "n=7::2",
        "n=2::0",
        "n=::9:9",
        "n=8:12:16",
    ],
)
def test_what_may_not_be_asked(said: str) -> None:
    with pytest.raises(UsageError) as error:
        search.parse(said)
    assert error.value.hint


def plan(**said: Any) -> submit.Plan:
    return submit.plan(requested(**{"workload": "nanogpt", "device": "cpu", **said}))


def test_probes_are_brief_and_begin_at_the_preset() -> None:
    (job,) = plan(find_max="batch_size").jobs
    assert job.spec.params == {"max_iters": 10, "warmup_iters": 2, "eval_interval": 0, "batch_size": 12}
    assert job.spec.find_max == "batch_size=12"
    (job,) = plan(find_max="batch_size", config="shakespeare_char", set=["max_iters=3"]).jobs
    assert (job.spec.params["batch_size"], job.spec.params["max_iters"]) == (64, 3)
    (job,) = plan(find_max="batch_size=:8").jobs
    assert job.spec.params["batch_size"] == 8
    (job,) = plan(find_max="batch_size", set=["batch_size=5"]).jobs
    assert job.spec.find_max == "batch_size=5"
    assert "each batch_size" in " ".join(plan(find_max="batch_size").warnings)


def test_a_search_ends_at_the_most_that_a_key_takes() -> None:
    planned = plan(workload="bert", find_max="block_size", config="toy")
    (job,) = planned.jobs
    assert job.spec.find_max == "block_size=16:512" and "ends at 512" in planned.warnings[-1]
    (job,) = plan(workload="bert", find_max="block_size=8:64", config="toy").jobs
    assert job.spec.find_max == "block_size=8:64"
    (job,) = plan(workload="bert", find_max="classes").jobs
    assert job.spec.params["classes"] == 2


def test_what_is_said_of_a_search_in_steps() -> None:
    """n_embd is searched for in multiples of its heads, which are no end of it: it said "It ends at :6"."""
    for asked in ("n_embd", "n_embd=384::6"):
        answer = " ".join(plan(find_max=asked, config="shakespeare_char", device="mps").warnings)
        assert "that Metal recommends" in answer and "multiples of 6" in answer and "ends at :" not in answer
    answer = " ".join(plan(find_max="n_embd=384:768:6", config="shakespeare_char", device="mps").warnings)
    assert "ends at" not in answer and "Metal" not in answer


def test_a_probe_asks_what_any_job_asks() -> None:
    """Its results stand beside those of jobs that were submitted with that value by hand."""
    (probe,) = plan(find_max="batch_size=8", set=["max_iters=10", "warmup_iters=2", "eval_interval=0"]).jobs
    (plain,) = plan(set=["max_iters=10", "warmup_iters=2", "eval_interval=0", "batch_size=8"]).jobs
    assert probe.spec.content_hash() == plain.spec.content_hash()


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"find_max": "batchsize"}, 'did you mean "batch_size"'),
        ({"find_max": "dropout"}, "not a whole number"),
        ({"find_max": "block_size=8:600", "workload": "bert"}, "block_size=600: it cannot be more than 512"),
        ({"find_max": "block_size=2", "workload": "bert"}, "block_size=2: it cannot be less than 3"),
        ({"find_max": "batch_size", "repeats": 2}, "tries each value once"),
        ({"find_max": "batch_size=8", "set": ["batch_size=9"]}, "--find-max chooses batch_size"),
        ({"find_max": "batch_size", "set": ["batch_size=8,9"]}, "--find-max chooses batch_size"),
        ({"find_max": "n", "workload": None, "command": ["true"]}, "does not use {n}"),
    ],
)
def test_searches_that_cannot_be(said: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as error:
        plan(**said)
    assert words in f"{error.value.message} {error.value.hint}"


def test_a_command_has_its_value_in_braces() -> None:
    request = requested(argv=("true", "--batch={batch}"), find_max="batch=4")
    (spec,) = expand.expand(request)
    assert spec.argv == ("true", "--batch=4") and spec.params == {"batch": "4"}
    assert search.with_value(spec, "batch", 8).argv == ("true", "--batch=8")
    (plain,) = expand.expand(requested(argv=("true", "--batch={batch}"), sets=("batch=4",)))
    assert plain.content_hash() == spec.content_hash()


def end(layout: Layout, most: int) -> int | None:
    """What a worker does with the next probe, in a process of its own: nothing is remembered. Returns its value."""
    engine = open_engine(layout.db)
    with writing(engine) as connection:
        run = claim_next(connection, token="0" * 32)
        if run is None:
            return None
        value = int(run.spec.params["batch_size"])
        fits = value <= most
        ending = Ending(Outcome.SUCCEEDED, 0) if fits else Ending(Outcome.OUT_OF_MEMORY, 71, reason="no room")
        exit_ = RunEnd(real_s=1.0, max_rss_bytes=10**8)
        results.save_exit(connection, run.run_id, exit_)
        jobs.move(connection, run.run_id, Verb.FINISH, actor="worker", ending=ending, ended_at=1.0)
        if not next_probe.is_answer(run.spec, ending):
            retries.retry_as_agreed(connection, run.run_id, ending, 1.0)
        next_probe.queue_next(connection, run.id.job, run.spec, MEMORY)
    engine.dispose()
    return value


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(tmp_path)
    migrate.ensure(layout)
    return layout


def test_two_searches_of_a_group_end_one_after_the_other(layout: Layout) -> None:
    planned = plan(find_max="batch_size=4", device="cpu,mps", tag=["big"], priority=3)
    submit.store(layout, planned)
    tried = []
    while (value := end(layout, 5)) is not None:
        tried.append(value)
    assert tried == [4, 8, 6, 5] * 2
    with open_engine(layout.db).connect() as connection:
        rows = connection.execute(text("SELECT * FROM v_run ORDER BY job_id")).mappings().all()
    assert {row["group_id"] for row in rows} == {1} and {row["tags"] for row in rows} == {"big"}
    assert {row["priority"] for row in rows} == {3}
    assert len({row["asked_device"] for row in rows[:2]}) == 2
    with open_engine(layout.db).connect() as connection:
        answer = connection.execute(text("SELECT reason FROM job_events WHERE actor = 'worker' AND verb = 'submit'"))
        assert any("batch_size 4 works" in line and "8 is next" in line for line in answer.scalars())


def test_what_a_run_on_mps_reports_reaches_its_search(layout: Layout) -> None:
    submit.store(layout, plan(find_max="batch_size=8", device="mps"))
    tried = []
    engine = open_engine(layout.db)
    for _ in range(5):
        with writing(engine) as connection:
            run = claim_next(connection, token="0" * 32)
            assert run is not None
            value = int(run.spec.params["batch_size"])
            tried.append(value)
            hello = Hello(9, 0.0, device="mps", extra={"recommended_memory_bytes": 11 * 10**9})
            iters = [Iter(n, 0.1, n, 0.1, reserved_bytes=value * 10**8 - n) for n in range(3)]
            results.save_events(connection, run.run_id, [hello, *iters])
            jobs.move(
                connection, run.run_id, Verb.FINISH, actor="worker", ending=Ending(Outcome.SUCCEEDED, 0), ended_at=1.0
            )
            next_probe.queue_next(connection, run.id.job, run.spec, MEMORY)
    assert tried == [8, 16, 32, 64, 87]


def test_the_peak_that_torch_counts_is_what_was_reserved(layout: Layout) -> None:
    """From 2.13 on; an iteration is looked at when it has ended."""
    submit.store(layout, plan(find_max="batch_size=8", device="mps"))
    engine = open_engine(layout.db)
    with writing(engine) as connection:
        run = claim_next(connection, token="0" * 32)
        assert run is not None
        hello = Hello(9, 0.0, device="mps", extra={"recommended_memory_bytes": 11 * 10**9})
        peaks = [Metric(at, 0.2, "peak_reserved_bytes", value, "B") for at, value in ((30, 12e9), (40, 1e300))]
        results.save_events(connection, run.run_id, [hello, Iter(20, 0.1, 1, 0.1, reserved_bytes=10**9), *peaks])
        ending = Ending(Outcome.SUCCEEDED, 0)
        jobs.move(connection, run.run_id, Verb.FINISH, actor="worker", ending=ending, ended_at=1.0)
        assert next_probe.queue_next(connection, run.id.job, run.spec, MEMORY) is None
    with read.reading(layout.db) as connection_:
        standing_ = next_probe.state_of_job(connection_, run.id.job)
    assert standing_ is not None and (standing_.largest, standing_.too_large) == (8, 9)


def test_a_retry_lets_a_stopped_search_go_on(layout: Layout) -> None:
    submit.store(layout, plan(find_max="batch_size=4"))
    engine = open_engine(layout.db)
    with writing(engine) as connection:
        run = claim_next(connection, token="0" * 32)
        assert run is not None
        lost = Ending(Outcome.LOST, reason="reboot: gone")
        jobs.move(connection, run.run_id, Verb.FINISH, actor="worker", ending=lost, ended_at=1.0)
        assert next_probe.queue_next(connection, run.id.job, run.spec, MEMORY) is None
        retries.again(connection, run.run_id, actor="user")
    tried = []
    while (value := end(layout, 4)) is not None:
        tried.append(value)
    assert tried == [4, 8, 6, 5]


def test_reruns_and_what_is_missing_are_no_searches(layout: Layout) -> None:
    from queue_runner.control import resubmission
    from queue_runner.model import parse_selector

    submit.store(layout, plan(find_max="batch_size=4"))
    while end(layout, 4) is not None:
        pass
    resubmission.rerun(layout, [parse_selector("1")], resubmission.RerunOptions(), "test")
    with open_engine(layout.db).connect() as connection:
        spec = connection.execute(text("SELECT spec_json FROM jobs ORDER BY id DESC")).scalars().first()
    assert json.loads(str(spec))["find_max"] == "" and json.loads(str(spec))["params"]["batch_size"] == 4
    assert end(layout, 4) == 4 and end(layout, 4) is None
