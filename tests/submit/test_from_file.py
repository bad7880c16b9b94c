"""submit --from: many jobs from a file, all or none, each checked as one asked for by hand."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from shutil import which
from typing import Any
from unittest import mock

import pytest

from queue_runner.errors import UsageError
from queue_runner.model import Condition, Dependency, parse_selector
from queue_runner.paths import Layout
from queue_runner.store import jobs
from queue_runner.store.engine import open_engine, writing
from queue_runner.store.read import reading
from queue_runner.submit import from_file
from queue_runner.submit import given_options as submit_options
from queue_runner.submit.submit_options import OPTIONS, Request
from queue_runner.workloads.catalog import find
from tests.cli_support import Cli, Ran, use_toy_workloads
from tests.store_support import statements_of

pytestmark = pytest.mark.process

TOY = {"workload": "toy"}
From = Callable[..., Ran]


@pytest.fixture
def mpsq(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    use_toy_workloads(tmp_path / "jobs", monkeypatch)
    monkeypatch.chdir(tmp_path)
    return Cli(capsys)


@pytest.fixture
def submit(layout: Layout, mpsq: Cli, tmp_path: Path) -> From:
    """Submit lines, or the bytes of a file."""

    def run(content: Any, *options: str) -> Ran:
        if not isinstance(content, bytes):
            content = "".join(json.dumps(line) + "\n" for line in content).encode()
        (tmp_path / "jobs.jsonl").write_bytes(content)
        return mpsq("submit", "--from", "jobs.jsonl", *options)

    return run


def query(layout: Layout, sql: str) -> list[Any]:
    with reading(layout.db) as connection:
        return [tuple(row.values()) for row in connection.execute(sql)]


def test_options_become_the_fields_of_a_request() -> None:
    fields = submit_options.read({"device": "cpu,mps", "seed": 3, "timeout": "2h", "snapshot": "copy", "set": ["a=1"]})
    expected = {"device": ("cpu", "mps"), "seed": 3, "timeout_s": 7200.0, "snapshot": "copy", "sets": {"a": ("1",)}}
    assert fields == expected and Request(**fields).device == ("cpu", "mps")


def test_an_option_declared_in_the_request_is_one_of_the_command_line_and_of_a_file(mpsq: Cli) -> None:
    shown = mpsq.ok("submit", "--help").out
    for option in OPTIONS.values():
        if option.name not in ("workload", "command"):
            assert f"{option.flag} " in shown
        with pytest.raises(UsageError, match=rf'"{option.name}(\.no)?" (is|contains) '):
            submit_options.read({option.field: {"no": None}}, whole=True)


def test_a_file_says_what_options_say(layout: Layout, mpsq: Cli, submit: From) -> None:
    by_hand = [
        "--device",
        "cpu,cuda",
        "--compile",
        "both",
        "--set",
        "lr=0.1,0.2",
        "--set",
        "fused=false",
        "--seed",
        "7",
    ]
    terms = ["--tag", "a", "--tag", "b", "--timeout", "90", "--priority", "3", "--retries", "2", "--backoff", "1.5"]
    mpsq.ok("submit", "toy", *by_hand, *terms, "--env", "X=1", "--note", "n", "--hold", "--stall", "measure=60")
    line = {
        "workload": "toy",
        "device": ["cpu", "cuda"],
        "compile": [False, True],
        "set": {"lr": [0.1, 0.2], "fused": False},
        "seed": 7,
        "tags": ["a", "b"],
        "timeout": 90,
        "priority": 3,
        "retries": 2,
        "backoff": 1.5,
        "env": {"X": 1},
        "note": "n",
        "hold": True,
        "stall": {"measure": 60},
        "cwd": None,
    }
    out = submit([line]).out
    assert out.startswith("g2: 8 jobs, 8 runs held") and "mpsq resume g2" in out
    asked = "spec_json, spec_hash, priority, retries, backoff_s, note"
    one, other = (query(layout, f"SELECT {asked} FROM jobs WHERE group_id = {g} ORDER BY spec_hash") for g in (1, 2))
    assert one == other and len(one) == 8
    assert {state for (state,) in query(layout, "SELECT state FROM runs")} == {"HELD"}


def test_options_are_defaults_of_every_line(layout: Layout, submit: From) -> None:
    lines = [
        {"set": {"lr": 0.5}, "tags": ["own"]},
        {"command": ["true"], "set": None, "repeats": 1},
        {"device": "cuda", "repeats": None, "priority": 0},
    ]
    ran = submit(
        lines, "toy", "--set", "lr=0.1", "--set", "max_iters=3", "--tag", "all", "--repeats", "2", "--priority", "5"
    )
    assert ran.code == 0, ran
    found = query(layout, "SELECT kind, device, json_extract(spec_json, '$.params') AS p, priority FROM jobs")
    assert found == [
        ("workload", "auto", '{"lr":0.5,"max_iters":3}', 5),
        ("command", None, "{}", 5),
        ("workload", "cuda", '{"lr":0.1,"max_iters":3}', 0),
    ]
    assert query(layout, "SELECT tags FROM v_run WHERE job_id = 1 LIMIT 1") == [("all,own",)]
    order = [run for (run,) in query(layout, "SELECT run FROM v_run WHERE number > 0 ORDER BY position")]
    assert sorted(order[:3]) == ["1.1", "2.1", "3.1"] and order[3] == "1.2"


def test_by_time_asks_for_no_metric(layout: Layout, submit: From) -> None:
    assert submit([TOY, {**TOY, "device": "cpu"}], "--until", "decided", "--by", "time").code == 0
    with reading(layout.db) as connection:
        assert connection.execute("SELECT aim FROM groups").fetchall() == [{"aim": None}]


def test_rounds_until_decided_have_no_preflights_and_no_search(layout: Layout, submit: From) -> None:
    tried = "SELECT count(*) FROM runs WHERE number = 0"
    assert submit([TOY, {**TOY, "device": "cpu"}], "--until", "decided").code == 0
    assert query(layout, tried) == [(0,)]
    assert submit([TOY, {**TOY, "preflight": True, "device": "cpu"}], "--until", "decided").code == 0
    assert query(layout, tried) == [(1,)]
    ran = submit([TOY, {**TOY, "find_max": "max_iters"}], "--until", "decided")
    assert ran.code == 2 and "line 2: --find-max" in ran.err and "--until" in ran.err


def test_the_jobs_of_a_file_run_in_mirrored_rounds(layout: Layout, submit: From) -> None:
    """In the order of the file, its first line would measure a machine that is still cold in each round."""
    lines = [{**TOY, "repeats": 3 if line == 7 else 2} for line in range(30)]
    ran = submit(lines, "--order-seed", "4", "--json").json()
    jobs = [int(run.partition(".")[0]) for run in ran["runs"]]
    assert jobs[:30] == jobs[30:60][::-1] and sorted(jobs[:30]) != jobs[:30] and jobs[60:] == [8] and ran["seed"] == 4
    drawn = submit(lines, "--json").json()
    assert drawn["seed"] != 4 and [int(run.partition(".")[0]) - 30 for run in drawn["runs"]] != jobs


def test_lines_wait_for_each_other_and_for_what_is_there(layout: Layout, mpsq: Cli, submit: From) -> None:
    mpsq.ok("submit", "--", "true")
    ran = submit(
        [
            {**TOY, "name": "report", "after": ["train:any", "1"]},
            {**TOY, "name": "train", "device": "cpu,cuda"},
            {**TOY, "after": "train:fail"},
        ],
        "--after",
        "@last:any",
    )
    assert ran.code == 0, ran
    waits = query(layout, "SELECT job_id, on_job_id, condition FROM dependencies ORDER BY job_id, on_job_id")
    assert waits == [
        (2, 1, "ok"), (2, 3, "any"), (2, 4, "any"),
        (3, 1, "any"), (4, 1, "any"),
        (5, 3, "fail"), (5, 4, "fail"),
    ]  # fmt: skip


def test_a_name_on_the_command_line_is_that_of_a_stored_job(layout: Layout, mpsq: Cli, submit: From) -> None:
    mpsq.ok("submit", "--name", "prepare", "--", "true")
    lines = [TOY, {**TOY, "name": "prepare"}, {**TOY, "after": "prepare:any"}, {**TOY, "after": None}]
    assert submit(lines, "--after", "prepare").code == 0
    waits = query(layout, "SELECT job_id, on_job_id, condition FROM dependencies ORDER BY job_id")
    assert waits == [(2, 1, "ok"), (3, 1, "ok"), (4, 3, "any")]
    planned = from_file.plan_of_commands(["sleep 1", "sleep 2"], {"after": ("prepare",)})
    assert planned.own_after == ((Dependency(parse_selector("prepare"), Condition.OK),),) * 2


def chain(*after: int) -> list[dict[str, Any]]:
    return [{**TOY, "name": f"n{k}", "after": [f"n{on}"]} for k, on in enumerate(after, start=1)]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([*chain(2, 3, 1)], "line 1 waits for line 2 waits for line 3 waits for line 1"),
        ([*chain(1)], 'line 1: "after" names this same line: "n1"'),
        ([*chain(2, 3, 4, 5, 4)], "line 4 waits for line 5 waits for line 4"),
        ([TOY, {**TOY, "name": "train"}, {**TOY, "after": "trian"}], 'line 3: after: no line is named "trian"'),
        ([{**TOY, "name": "12"}, {**TOY, "after": "12"}], "could mean a job of the queue or line 1"),
        ([{**TOY, "name": "a"}, {**TOY, "after": ["a", "a:fail"]}], "with two conditions"),
        ([{**TOY, "after": "77"}], "there is no job 77"),
    ],
)
def test_dependencies_that_cannot_be(layout: Layout, submit: From, lines: list[Any], said: str) -> None:
    ran = submit(lines)
    assert ran.code == 2 and said in ran.err, ran
    assert query(layout, "SELECT count(*) FROM jobs") == [(0,)]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "jobs.jsonl contains no jobs"),
        (b"\n \r\n", "jobs.jsonl contains no jobs"),
        (b'{"workload": "toy"}\n{"workload": "tyo"}', 'line 2: unknown workload "tyo"\n\nhint: did you mean "toy"?'),
        (b'{"workload": "toy", "devcie": "cpu"}', 'line 1: no option "devcie"\n\nhint: did you mean "device"?'),
        (b'{"workload": "toy", "order_seed": 1}', "applies to the whole file, not to a single job"),
        (
            b'{"workload": "toy", "set": {"lrr": 1}}',
            'line 1: workload "toy" has no key "lrr"\n\nhint: did you mean "lr"?',
        ),
        (b'{"workload": "toy", "set": {"max_iters": "x"}}', 'line 1: max_iters: "x" is not a whole number'),
        (b'{"workload": "toy", "repeats": "3"}', 'line 1: "repeats" is the string "3", not a whole number'),
        (b'{"workload": "toy", "repeats": true}', '"repeats" is true, not a whole number'),
        (b'{"workload": "toy", "repeats": 2.5}', '"repeats" is the number 2.5, not a whole number'),
        (b'{"workload": "toy", "repeats": 0}', "line 1: --repeats 0 would run nothing"),
        (b'{"workload": "toy", "hold": "yes"}', '"hold" is the string "yes", not true or false'),
        (b'{"workload": "toy", "device": {"a": 1}}', '"device" is an object, not a value or a list of values'),
        (b'{"workload": "toy", "device": ["cpu,mps"]}', 'unknown device "cpu,mps"'),
        (b'{"workload": "toy", "timeout": -1}', '"timeout" is -1, which is not a number of seconds'),
        (b'{"workload": "toy", "timeout": "soon"}', 'line 1: --timeout: "soon" is not a duration'),
        (b'{"workload": "toy", "workload": "toy"}', 'line 1: "workload" is given twice'),
        (b'{"workload": "toy", "tag": "a", "tags": "b"}', 'line 1: "tags" is given twice'),
        (b'{"workload": "toy", "set": {"lr": 1, "lr": 2}}', 'line 1: "lr" is given twice'),
        (b'{"workload": "toy", "set": {"lr": NaN}}', "line 1: NaN is not a number"),
        (b'{"workload": "toy", "set": {"lr": 1e999}}', '"set.lr" contains a number that is too large'),
        (b'{"workload": "toy", "seed": ' + b"9" * 5000 + b"}", "line 1 contains a number that is too long"),
        (b'{"workload": "toy", "seed": ' + b"9" * 30 + b"}", "more than 18 digits"),
        (b'{"workload": "toy", "name": "\\ud800"}', "unpaired surrogate"),
        (b'{"command": ["echo", "\\u0000"]}', "contains a NUL character"),
        (b'{"command": "python train.py"}', 'hint: write "command": ["python", "train.py"]'),
        (b'{"command": []}', '"command" is an empty list'),
        (b'{"command": ["a"], "env": {"": "x"}}', '"env" contains the invalid name ""'),
        (b'{"command": ["a"], "env": {"A=B": "x"}}', '"env" contains the invalid name "A=B"'),
        (b'{"command": ["a"], "set": {"": 1}}', '"set" contains the invalid name ""'),
        (b'{"command": ["a"], "set": {"x": [" "]}}', '"set.x" has an empty value'),
        (b'{"command": ["a"], "device": [""]}', '"device" has an empty value'),
        (b'{"command": ["true"], "workload": "toy"}', "line 1: give either a workload or a command"),
        (b'{"workload": "toy",}', "line 1 is not valid JSON: "),
        (b"workload=toy", "line 1 is not valid JSON: expecting value at column 1"),
        (b'\n\n"toy"', "line 3 is not a JSON object"),
        (b"[1]", "line 1 is not a JSON object"),
        (b'{"set": ' * 100_000, "line 1 is nested too deeply"),
        (b'{"workload": "toy"}\n\x89PNG\r\n\x1a\n\xff', "line 2 is not valid UTF-8 (byte 0x89)"),
        ('{"workload": "toy"}'.encode("utf-16"), "line 1 is not valid UTF-8 (byte 0xff)"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_wrong_is_said_with_its_line(layout: Layout, submit: From, content: bytes, said: str) -> None:
    ran = submit(content)
    assert ran.code == 2 and said in ran.err and "hint: " in ran.err, ran
    assert len(ran.err) < 1000
    assert query(layout, "SELECT count(*) FROM jobs") == [(0,)]


@pytest.mark.parametrize(
    "content",
    [
        b'\xef\xbb\xbf{"workload": "toy"}\r\n\r\n{"workload": "toy"}\r\n',
        '{"workload": "toy", "note": "a\u2028b"}\n{"workload": "toy"}'.encode(),
    ],
    ids=["a byte order mark and CRLF", "a line separator in a text"],
)
def test_other_ways_to_write_it(layout: Layout, submit: From, content: bytes) -> None:
    assert "2 jobs, 2 runs" in submit(content).out


def test_files_that_cannot_be_read(layout: Layout, mpsq: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no such file" in mpsq("submit", "--from", "absent").err
    assert "is a directory" in mpsq("submit", "--from", ".").err
    assert "a user that" in mpsq("submit", "--from", "~no-such-user/file").err
    monkeypatch.setattr(from_file, "MAX_BYTES", 10)
    (tmp_path / "large").write_text('{"workload": "toy"}')
    assert "larger than 10 B" in mpsq("submit", "--from", "large").err


def test_standard_input_and_dry_run(layout: Layout, mpsq: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"device": "cpu,cuda"}\n{"command": ["true"]}')))
    ran = mpsq.ok("submit", "toy", "--from", "-", "--dry-run")
    assert "row 3: true" in ran.out and {"1.1", "2.1", "3.1"} <= {*ran.out.split()}
    assert query(layout, "SELECT count(*) FROM jobs") == [(0,)]


def test_a_thousand_jobs_are_one_transaction(layout: Layout, submit: From) -> None:
    """Each waits for the next of the file: a long chain needs no recursion."""
    lines = [{**TOY, "device": "cpu", "set": {"lr": k / 1000}, "name": f"n{k}"} for k in range(1000)]
    for k in range(999):
        lines[k] |= {"after": f"n{k + 1}", "tags": [f"t{k % 7}"]}
    assert "1,000 jobs, 1,000 runs" in submit(lines).out
    assert query(layout, "SELECT count(*), count(DISTINCT group_id), max(id) FROM jobs") == [(1000, 1, 1000)]
    assert query(layout, "SELECT count(*) FROM dependencies WHERE on_job_id = job_id + 1") == [(999,)]


def test_too_many_dependencies_are_refused_before_they_are_made(
    layout: Layout, submit: From, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 100,000 lines each half may wait for the other: 2.5 billion."""
    made = mock.Mock(side_effect=from_file.Sibling)
    monkeypatch.setattr(from_file, "Sibling", made)
    monkeypatch.setattr(from_file, "MAX_DEPENDENCIES", 100)
    lines = [{**TOY, "name": "train"}] * 40 + [{**TOY, "after": "train"}] * 40
    assert "more than 100 dependencies" in submit(lines).err and made.call_count <= 100
    assert submit(lines[:42]).code == 0
    assert query(layout, "SELECT count(*) FROM dependencies") == [(80,)]


def test_lines_share_what_they_have_in_common(
    layout: Layout, mpsq: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else 100,000 lines take a gigabyte and a minute: each has the environment, and looks for its workload."""
    looked_up: list[str] = []
    monkeypatch.setattr("queue_runner.workloads.catalog.find", lambda *a, **k: looked_up.append(a[1]) or find(*a, **k))
    lines = [{**TOY, "set": {"lr": k / 100}, "tags": ["t"]} for k in range(50)]
    (tmp_path / "jobs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    planned = from_file.plan("jobs.jsonl", {})
    assert looked_up == ["toy"]
    for of_job in (lambda job: job.spec.env, lambda job: job.terms):
        assert len({id(of_job(job)) for job in planned.jobs}) == 1
    statements = statements_of(monkeypatch)
    with writing(open_engine(layout.db)) as connection:
        jobs.submit(connection, "t", 0, planned.jobs, planned.order)
    assert len(planned.jobs) == 50 and len(statements) < 10


def test_commands_share_the_look_for_their_program(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each of 100,000 lines searches PATH twice and opens the program."""
    monkeypatch.chdir(tmp_path)
    looked_for: list[object] = []
    monkeypatch.setattr(shutil, "which", lambda *a, **k: looked_for.append(a[0]) or which(*a, **k))
    Path("jobs.jsonl").write_text("".join(f'{{"command": ["sh", "-c", "echo {k}"]}}\n' for k in range(20)))
    planned = from_file.plan("jobs.jsonl", {})
    assert looked_for == ["sh", "sh"]  # for whether it is there, and for its interpreter
    assert {job.spec.python for job in planned.jobs} == {""}


def test_a_command_line_names_its_row_without_the_limits_of_a_name() -> None:
    long, token = "x" * 300, "hf_abcdefghijklmnop1234567890"
    texts = [f"echo {long}a", f"echo {long}b", "echo 1\necho 2", f"echo {token}"]
    jobs = from_file.plan_of_commands(texts, {"allow_plain": True}).jobs
    names = [job.spec.name for job in jobs]
    assert len(set(names)) == 4 and all(len(name) <= 200 and name.isprintable() for name in names)
    assert token not in names[3] and jobs[2].spec.argv == ("sh", "-c", texts[2])


def test_a_command_line_may_begin_with_variables() -> None:
    first, other = from_file.plan_of_commands(["A=1 B='2 3' sleep C=4", "D=5 sh -c 'echo $D'"], {}).jobs
    assert first.spec.argv == ("sleep", "C=4") and first.spec.variables == {"A": "1", "B": "2 3"}
    assert other.spec.argv == ("sh", "-c", "D=5 sh -c 'echo $D'")
    with pytest.raises(UsageError, match="runs nothing"):
        from_file.plan_of_commands(["A=1", "true"], {})


def test_a_variable_of_a_command_line_may_be_swept() -> None:
    line = f"T={{t}} B='2 3' {sys.executable} x.py"
    jobs = from_file.plan_of_commands([line], {"sets": {"t": ("1", "4")}}).jobs
    assert [job.spec.argv for job in jobs] == [("env", f"T={t}", "B=2 3", sys.executable, "x.py") for t in "14"]
    assert {job.spec.python for job in jobs} == {sys.executable}
    with pytest.raises(UsageError, match=r"contains \{t\}, but no option sets its value"):
        from_file.plan_of_commands([line], {})


def test_one_quoted_command_waits_for_a_quiet_machine_as_several_do() -> None:
    for commands in (["sleep 1"], ["sleep 1", "sleep 2"]):
        assert all(job.spec.gate for job in from_file.plan_of_commands(commands, {}).jobs)


def test_one_name_is_not_for_several_commands() -> None:
    with pytest.raises(UsageError, match="cannot name several commands"):
        from_file.plan_of_commands(["sleep 1", "sleep 2"], {"name": "x"})
    assert [job.spec.name for job in from_file.plan_of_commands(["sleep 1"], {"name": "x"}).jobs] == ["x"]
