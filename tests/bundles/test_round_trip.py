"""What a bundle carries from one queue to another, and what it leaves behind."""

from __future__ import annotations

import json
import resource
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import fields

from queue_runner import reports
from queue_runner.bundles.rows import QUESTION, BadBundle
from queue_runner.errors import MpsqError, UsageError
from queue_runner.reports._common import printing
from queue_runner.reports._common.report_options import read_options
from queue_runner.spec import Aim, JobSpec
from queue_runner.store import read
from queue_runner.store.history import History
from tests import named_rows
from tests.bundles.bundles_support import (
    ALPHA,
    FORMAT_1,
    SYSTEM,
    Sender,
    content,
    exported,
    lines_of,
    make_bundle,
    merged,
    old_rows,
    old_sealed,
    receiver,
    rows,
    sender,
    text_of,
)
from tests.reports.report_fixture import Store

pytestmark = pytest.mark.process


def report(layout: object, name: str = "devices", **options: object) -> list[dict[str, object]]:
    with read.reading(layout.db) as connection:  # type: ignore[attr-defined]
        result = reports.run(name, connection, read_options(**options))  # type: ignore[arg-type]
    found: list[dict[str, object]] = json.loads(printing.as_json(name, result))["rows"]
    return found


def test_points_arrive_bit_for_bit_and_make_the_same_report(tmp_path: Path) -> None:
    store, there = sender(tmp_path / "a"), receiver(tmp_path / "b")
    (done,) = merged(there, exported(store))
    assert (done.runs, done.jobs, done.known, done.iterations) == (6, 2, 0, 120)
    before, after = content(store.layout.db), content(there.db)
    for table in ("iterations", "evals", "metrics"):
        assert after[table] == before[table]
    for table in ("summaries", "taints"):  # as a worker makes them of these points
        store.db.execute(f"DELETE FROM {table}")
        marks = ", ".join("?" * len(after[table][0]))
        store.db.executemany(f"INSERT INTO {table} VALUES ({marks})", after[table])
    assert report(store.layout) == report(there)
    assert [row["n_valid"] for row in report(there)] == [2, 2]
    assert "wrong_result" in {row[1] for row in after["taints"]}


def test_a_run_has_the_marks_of_its_record_of_the_end(tmp_path: Path) -> None:
    store, there = sender(tmp_path / "a"), receiver(tmp_path / "b")
    record = json.dumps({"exit_code": 0, "real_s": 60.0, "started_at": 1e9, "ended_at": 1e9 + 3660.0})
    store.db.execute("UPDATE exits SET exit_json = ? WHERE run_id = 1", [record])
    merged(there, exported(store))
    assert [row[0] for row in content(there.db)["taints"] if row[1] == "clock_step"] == [1]


def test_a_quota_that_is_used_up_is_named(tmp_path: Path) -> None:
    """As for a file that is too large, SQLite calls it an I/O error."""
    store = sender(tmp_path / "a")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(MpsqError, match="a bundle cannot be written in") as caught:
            exported(store)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "quota" in caught.value.hint


def test_the_same_content_gives_the_same_bytes_and_merges_once(tmp_path: Path) -> None:
    store, there = sender(tmp_path / "a"), receiver(tmp_path / "b")
    data = exported(store)
    assert data == exported(store)
    merged(there, data)
    once = content(there.db)
    (again,) = merged(there, data)
    assert (again.runs, again.known, again.groups) == (0, 6, ["g1"])
    assert content(there.db) == once
    (first, second) = merged(receiver(tmp_path / "c"), data, data)
    assert (first.runs, second.runs, second.known) == (6, 0, 6)


def test_a_later_bundle_adds_only_what_is_new(tmp_path: Path) -> None:
    store, there = sender(tmp_path / "a"), receiver(tmp_path / "b")
    store.run("cuda", outcome=None)
    n_left = make_bundle(store.layout, ["g1"], tmp_path / "g1.mpsq")
    assert n_left == 1
    merged(there, (tmp_path / "g1.mpsq").read_bytes())
    store.db.execute("UPDATE runs SET state = 'DONE', outcome = 'CANCELLED', ended_at = 1e9 WHERE state = 'QUEUED'")
    run = store.run("mps", params={"lr": 0.1}, machine=ALPHA, tags=["a"])
    store.iterations(run, [0.25] * 20)
    (done,) = merged(there, exported(store))
    assert (done.runs, done.known, done.jobs, done.groups) == (2, 6, 0, ["g1"])
    machines = {row["machine_hash"] for row in rows_of(there.db)}
    assert len(machines) == 1, "a run that never started is of the machine of its submission"


def test_a_later_bundle_of_a_submission_on_several_nodes_is_merged(tmp_path: Path) -> None:
    """The first run to end came back last, from another node."""
    store, there = sender(tmp_path / "a"), receiver(tmp_path / "b")
    merged(there, exported(store))
    (machine,) = {row["machine_hash"] for row in rows_of(there.db)}
    store.run("cpu", params={"lr": 0.1}, machine={**ALPHA, "id": "bbbb"}, software=SYSTEM, tags=["a"], ended_at=9e8)
    store.run("cuda", outcome=None)
    store.db.execute("UPDATE runs SET state = 'DONE', outcome = 'CANCELLED', ended_at = 1e9 WHERE state = 'QUEUED'")
    (done,) = merged(there, exported(store))
    assert (done.runs, done.known, done.groups) == (2, 6, ["g1"])
    assert len({*done.machines}) == 2, "both machines of the submission are named"
    elsewhere = [(row["job_id"], row["number"]) for row in rows_of(there.db) if row["machine_hash"] != machine]
    assert elsewhere == [(1, 4)]  # the run that was never started counts as before


def rows_of(db: Path) -> list[named_rows.Row]:
    with read.reading(db) as connection:
        return named_rows.runs(connection)


def test_a_run_with_other_content_is_refused_by_name(tmp_path: Path) -> None:
    store, there = sender(tmp_path / "a"), receiver(tmp_path / "b")
    merged(there, exported(store))
    store.db.execute("UPDATE jobs SET note = 'written later', name = 'other' WHERE id = 1")
    assert merged(there, exported(store))[0].known == 6, "what an owner may edit is no other content"
    before = content(there.db)
    store.db.execute("UPDATE iterations SET dur_s = 0.2 WHERE run_id = 2 AND i = 3")
    with pytest.raises(BadBundle, match=r"its run 1\.2 is here already, as 1\.2, with other content"):
        merged(there, exported(store))
    assert content(there.db) == before


def asks_otherwise(store: Store) -> None:
    store.db.execute("UPDATE jobs SET spec_json = json_set(spec_json, '$.params.lr', 123.0) WHERE id = 1")


def is_of_other_code(store: Store) -> None:
    store.db.execute("UPDATE jobs SET spec_json = json_set(spec_json, '$.code', ?) WHERE id = 1", ["c" * 64])


def ran_elsewhere(store: Store) -> None:
    other = store.fingerprint("machine", {**ALPHA, "id": "bbbb"})
    store.db.execute("UPDATE runs SET machine_hash = ?", [other])


def ran_with_other_software(store: Store) -> None:
    store.db.execute("UPDATE runs SET software_hash = ? WHERE id = 1", [store.fingerprint("software", {})])


def said_otherwise(store: Store) -> None:
    store.db.execute("UPDATE hellos SET hello_json = json_set(hello_json, '$.settings', json('{}')) WHERE run_id = 1")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (asks_otherwise, "its job 1 is here already, as 1, with another question"),
        (is_of_other_code, "its job 1 is here already, as 1, with another question"),
        (ran_elsewhere, "its job 1 is here already, as 1, of another machine"),
        (ran_with_other_software, r"its run 1\.1 is here already, as 1\.1, with other content"),
        (said_otherwise, r"its run 1\.1 is here already, as 1\.1, with other content"),
    ],
)
def test_a_later_bundle_changes_nothing_of_an_earlier_one(
    tmp_path: Path, change: Callable[[Store], None], says: str
) -> None:
    store, there = sender(tmp_path / "a"), receiver(tmp_path / "b")
    merged(there, exported(store))
    before = content(there.db)
    add_run(store)
    change(store)
    with pytest.raises(BadBundle, match=says):
        merged(there, exported(store))
    assert content(there.db) == before
    assert merged(receiver(tmp_path / "c"), exported(store))[0].runs == 7, "all of one bundle"


def add_run(store: Store) -> None:
    run = store.run("cpu", params={"lr": 0.1}, machine=ALPHA, software=SYSTEM, tags=["a"])
    store.iterations(run, [0.25] * 20)
    assert run == 7


def test_a_bundle_of_format_1_is_the_same_as_one_of_today(tmp_path: Path) -> None:
    store, there = sender(tmp_path / "a"), receiver(tmp_path / "b")
    (old,) = merged(there, FORMAT_1.read_bytes())
    (new,) = merged(there, exported(store))
    assert (old.runs, old.jobs, old.iterations, new.runs, new.known) == (6, 2, 120, 0, 6)
    merged(elsewhere := receiver(tmp_path / "c"), exported(store))
    for table in ("iterations", "hellos", "exits", "summaries", "taints", "fingerprints"):
        assert content(there.db)[table] == content(elsewhere.db)[table]


def test_a_bundle_of_format_1_with_replaced_rounds_is_merged_without_them(tmp_path: Path) -> None:
    """Earlier versions wrote --until-valid and the drawn layout of a job, and which round a run replaces."""
    there = receiver(tmp_path / "b")
    lines = lines_of(FORMAT_1.read_bytes())
    for row in old_rows(lines, "runs"):
        row.append(1)
    for row in old_rows(lines, "jobs"):
        row[3] |= {"pairing": "", "until_valid": True, "layout_seed": 7, "randomize": False}
    assert merged(there, old_sealed(lines))[0].runs == 6
    assert "pairing" not in rows_of(there.db)[0]["spec_json"]
    assert merged(there, FORMAT_1.read_bytes())[0].known == 6
    with sqlite3.connect(there.db) as connection:  # as migrations leave runs and jobs of earlier versions
        connection.execute("UPDATE merged_runs SET content_hash = ''")
        connection.execute("UPDATE merged_jobs SET question_hash = ''")
    connection.close()
    assert merged(there, FORMAT_1.read_bytes())[0].known == 6


def test_a_bundle_without_the_aim_of_its_question_is_taken(tmp_path: Path) -> None:
    """Earlier versions wrote neither it nor `seed_by_round`."""
    there = receiver(tmp_path / "b")
    lines = lines_of(FORMAT_1.read_bytes())
    for group in old_rows(lines, "groups"):
        group.pop()
    for job in old_rows(lines, "jobs"):
        job[3].pop("seed_by_round")
    assert merged(there, old_sealed(lines))[0].runs == 6
    assert merged(there, FORMAT_1.read_bytes())[0].known == 6


def test_runs_of_the_queue_itself_are_left_as_they_are(tmp_path: Path) -> None:
    store = sender(tmp_path / "a")
    before = content(store.layout.db)
    (done,) = merged(store.layout, exported(store))
    assert (done.runs, done.from_here, done.groups) == (0, 6, [])
    assert content(store.layout.db) == before


def test_merged_runs_share_no_table_with_those_of_here_even_under_its_name(tmp_path: Path) -> None:
    store, there = sender(tmp_path / "a"), sender(tmp_path / "b")  # two queues of one machine
    there.db.execute("UPDATE groups SET created_at = 2e9")
    merged(there.layout, exported(store))
    with read.reading(there.layout.db) as connection:
        result = reports.run("devices", connection, read_options())
        gallery = reports.run("gallery", connection, read_options())
    assert len({row["machine_hash"] for row in rows_of(there.layout.db)}) == 1
    assert len(result.families) == 2
    assert sum("(merged)" in section.title for section in result.sections) == 1
    assert [row["merged"] for row in gallery.rows] == [False, False, True, True]
    assert not {key for row in gallery.rows for key in row if "speedup" in key or key in ("p", "verdict")}
    assert all(row["median_s"] and row["chip"] == "Alpha M1" and row["os"] == "macOS 26.1" for row in gallery.rows)
    assert {section.title for section in gallery.sections} == {"nanogpt tiny, eager, fp32, lr=0.1"}


@pytest.mark.parametrize("odd", [5, ["a"], {"os": [1], "os_version": 7}])
def test_the_gallery_takes_odd_fingerprints_as_unknown(tmp_path: Path, odd: object) -> None:
    store = sender(tmp_path / "a")
    data = json.dumps({"cpu": odd, "model": odd, "memory_gib": "64", "system": odd})
    store.db.execute("UPDATE fingerprints SET data_json = ?", [data])
    assert {(row["chip"], row["memory_gib"], row["os"]) for row in report(store.layout, "gallery")} == {(None,) * 3}


def test_names_of_a_fingerprint_leave_clean(tmp_path: Path) -> None:
    machine = {**ALPHA, "cpu": "<b>Alpha\u200b\n M1</b>", "gpus": [{"name": "a" * 300, "cores": 8}]}
    data = exported(sender(tmp_path / "a", machine))
    ((text,),) = rows(data, "SELECT data_json FROM fingerprints WHERE kind = 'machine'")
    found = json.loads(text)
    assert found["cpu"] == "_b_Alpha M1_/b_" and len(found["gpus"][0]["name"]) == 200


def asks(folder: Path) -> Store:
    """A queue whose submission g1 asks about `score`, within margins of its own, and whose seed changes by round."""
    store = Sender(folder)
    for n in range(6):
        for lr in (1.0, 1.05):
            real_s = lr * (1 + n / 1000)
            run = store.run(
                None, None, None, workload=None, framework=None, config=None, dtype=None, name="sleep", argv=["sleep"],
                params={"lr": lr}, ended_at=2e9 + 10 * n + lr * (-1) ** n, exit={"real_s": real_s},
                machine=ALPHA, software=SYSTEM,
            )  # fmt: skip
            store.metric(run, "score", real_s)
    store.db.execute("UPDATE jobs SET spec_json = json_set(spec_json, '$.seed_by_round', json('true'))")
    store.db.execute("UPDATE groups SET aim = ?", [Aim("score", {"": 0.2, "score": 0.1}).to_json()])
    return store


def test_a_merged_question_is_judged_by_its_own_margins(tmp_path: Path) -> None:
    store, there = asks(tmp_path / "a"), receiver(tmp_path / "b")
    merged(there, exported(store))
    (_, here), (_, arrived) = report(store.layout), report(there)
    assert (here["verdict"], here["same_within"]) == ("higher", 0.2)
    for name in ("verdict", "same_within", "metrics", "speedup_low", "given_after"):
        assert arrived[name] == here[name]


def test_a_failed_run_of_another_machine_joins_no_row_of_here(tmp_path: Path) -> None:
    there = sender(tmp_path / "b", {**ALPHA, "id": "bbbb"})
    store = sender(tmp_path / "a")
    store.db.execute("UPDATE groups SET created_at = 2e9")
    failed = store.run(
        "cpu", params={"lr": 0.1}, median_s=None, outcome="FAILED", exit_code=1, machine=ALPHA, tags=["a"]
    )
    assert failed
    here = [row["n_runs"] for row in report(there.layout)]
    merged(there.layout, exported(store))
    machine = rows_of(there.layout.db)[0]["machine_hash"]
    assert [row["n_runs"] for row in report(there.layout, where=[f"machine={machine}"])] == here


def test_forecasts_are_of_this_machine(tmp_path: Path) -> None:
    there = sender(tmp_path / "b", {**ALPHA, "id": "bbbb"})
    digest = rows_of(there.layout.db)[0]["spec_hash"]

    def expected() -> float | None:
        with read.reading(there.layout.db) as connection:
            row = named_rows.runs(connection)[0]
            return History(connection).expected(JobSpec.from_json(row["spec_json"]), digest).real_s

    before = expected()
    store = sender(tmp_path / "a")
    store.db.execute("UPDATE groups SET created_at = 2e9")
    store.db.execute("UPDATE exits SET real_s = 7777")
    merged(there.layout, exported(store))
    assert before is not None and expected() == before


SECRETS = {
    "api_key=sk-abc0123456789defghijklmn": "sk-abc0123456789defghijklmn",
    "postgres://me:hunter2@host/x": "hunter2",
    "Authorization: Bearer abcdef0123456789abcdef": "abcdef0123456789abcdef",
    'File "/home/alice/very/private.py", line 3': "alice",
    "/Users/bob/Library/x.py:12": "bob",
}


ENVIRONMENTS = {
    "environ": ["FOO=value-of-foo", "value-of-foo", ["BAR=value-of-foo"], {"name": "value-of-foo"}],
    "environment": "FOO=value-of-foo BAR=value-of-foo",
    "settings": {"env": ["FOO=value-of-foo"]},
}


def plant(store: Store, home: Path) -> set[str]:
    """Write secrets and paths into every text that a run or a job has; return what must not leave."""
    text = " ".join(SECRETS) + f" {home}/own/place.py {store.layout.home}/runs/1.1"
    hello = json.dumps(
        {"api_token": "npm_tokentokentoken9", "env": {"FOO": "value-of-foo"}, text: {"deep": [text]}, **ENVIRONMENTS}
    )
    store.db.execute("UPDATE jobs SET note = ?", [text])
    store.db.execute(
        "UPDATE groups SET title = ?", ["mpsq submit --env FOO=value-of-foo -- x --token npm_tokentokentoken9"]
    )
    store.db.execute("UPDATE hellos SET hello_json = ?, optimizer = ?, device_name = ?", [hello, text, text])
    store.db.execute("UPDATE exits SET exit_json = ?", [json.dumps({"stop": text})])
    store.db.execute("UPDATE runs SET reason = ?, token = 'feedfeedfeedfeed', boot_id = 'bootbootboot'", [text])
    store.db.execute("UPDATE evals SET split = ?", [text])
    store.db.execute("INSERT INTO job_tags VALUES (1, '/home/alice/tag')")
    for run in range(1, 7):
        store.db.execute("INSERT INTO notes VALUES (?, 5, 'op_fallback', ?)", [run, f"Traceback\n  {text}"])
        store.db.execute("INSERT INTO taints VALUES (?, 'noted', 'caveat', ?)", [run, text])
        store.db.execute("INSERT INTO conditions VALUES (?, 1e9, ?)", [run, json.dumps({"source": text})])
        store.db.execute("INSERT INTO phases VALUES (?, 5, 1.0, ?, 'begin')", [run, text])
        ingest = (run, "stdout", 0, 0, 9, text, json.dumps({"held": text}))
        columns = "run_id, source, device, inode, offset, tail_hash, parser_state"
        store.db.execute(f"INSERT INTO ingests ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", ingest)
    spec = json.loads(store.db.execute("SELECT spec_json FROM jobs WHERE id = 1").fetchone()[0])
    spec |= {"argv": ["env", "FOO=value-of-foo", "x", "--api-key", "npm_tokentokentoken9", f"{home}/x.py"]}
    spec |= {"env": {"FOO": "value-of-foo", "HOME": "/data/people/carol"}, "cwd": "/data/people/carol/project"}
    spec |= {"params": {"lr": 0.1, "hf_token": "npm_tokentokentoken9", "data": "/data/people/carol/set"}}
    store.db.execute("UPDATE jobs SET spec_json = ? WHERE id = 1", [json.dumps(spec)])
    software = {
        "env": {"OMP_NUM_THREADS": "value-of-foo"},
        "python": "/home/alice/bin/python",
        "versions": {"torch": "2"},
    }
    store.db.execute("UPDATE fingerprints SET data_json = ? WHERE kind = 'software'", [json.dumps(software)])
    return {
        *SECRETS.values(), "npm_tokentokentoken9", "value-of-foo", "carol", str(home), str(store.layout.home),
        "feedfeed", "bootboot", "inode",
    }  # fmt: skip


def test_no_secret_no_value_of_a_variable_and_no_path_of_a_home_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "people" / "dave"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    store = sender(tmp_path / "a")
    secrets = plant(store, home)
    data = exported(store)
    text = text_of(data)
    assert [secret for secret in secrets if secret.encode() in data or secret in text] == []
    (done,) = merged(receiver(tmp_path / "b"), data)
    assert done.runs == 6
    assert "[home]" in text and "OMP_NUM_THREADS" in text and '"FOO=[hidden-' in text and "/own/place.py" in text


def test_the_values_of_env_stay_here_and_keep_rows_apart(tmp_path: Path) -> None:
    store, there = sender(tmp_path / "a"), receiver(tmp_path / "b")
    for value in ("kangaroo", "wombat"):
        run = store.run("cpu", params={"lr": 0.1}, variables={"ANIMAL": value}, machine=ALPHA, software=SYSTEM, group=2)
        store.iterations(run, [0.1] * 20)
    data = exported(store, "g2")
    text = text_of(data)
    assert "ANIMAL" in text and "kangaroo" not in text and "wombat" not in text
    merged(there, data)
    assert len(report(there)) == 2


def test_equal_hidden_values_stay_equal_and_others_apart(tmp_path: Path) -> None:
    store = sender(tmp_path / "a")
    for run, threads in ((1, "4"), (2, "4"), (3, "8")):
        digest = store.fingerprint("software", {"versions": {"torch": "2.13.0"}, "env": {"OMP_NUM_THREADS": threads}})
        store.db.execute("UPDATE runs SET software_hash = ? WHERE id = ?", [digest, run])
    data = exported(store)
    stored = rows(data, "SELECT hash, data_json FROM fingerprints")
    hidden = {hash: json.loads(text).get("env") for hash, text in stored}
    of_run = [hidden[hash]["OMP_NUM_THREADS"] for (hash,) in rows(data, "SELECT software_hash FROM runs LIMIT 3")]
    assert of_run[0] == of_run[1] != of_run[2]


@pytest.mark.parametrize("name", ["1", "1.1", "g9", "@first"])
def test_only_a_submission_that_ran_here_is_exported(tmp_path: Path, name: str) -> None:
    store = sender(tmp_path / "a")
    with pytest.raises(UsageError):
        exported(store, name)


def test_a_merged_submission_is_exported_by_its_owner(tmp_path: Path) -> None:
    store, there = sender(tmp_path / "a"), receiver(tmp_path / "b")
    merged(there, exported(store))
    with pytest.raises(UsageError, match="did not run here"):
        make_bundle(there, ["g1"], tmp_path / "g1.mpsq")


def test_nothing_counts_of_a_bundle_that_cannot_be_written_whole(tmp_path: Path) -> None:
    there = receiver(tmp_path / "b")
    data = exported(sender(tmp_path / "a"))
    with sqlite3.connect(there.db) as connection:
        connection.execute(
            "CREATE TRIGGER no BEFORE INSERT ON iterations WHEN NEW.run_id = 5 BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
    connection.close()
    before = content(there.db)
    with pytest.raises(Exception, match="no"):
        merged(there, data)
    after = content(there.db)
    assert len(after.pop("merges")) == 1 and not before.pop("merges")
    assert {name: rows for name, rows in after.items() if name != "sqlite_sequence"} == {
        name: rows for name, rows in before.items() if name != "sqlite_sequence"
    }


LEFT = {
    *("cwd", "env", "env_file", "python", "script", "copy", "allow_changed", "allow_daemons", "stall_s", "root"),
    *("inside", "secrets", "preflight", "metrics", "on", "merged", "lane", "affinity", "within"),
}
"""The place, the environment, and what only matters before a run: in no bundle."""


def test_every_field_of_a_job_travels_or_is_left_on_purpose() -> None:
    assert {field.name for field in fields(JobSpec)} == {*QUESTION} | LEFT
    assert not {*QUESTION} & LEFT
