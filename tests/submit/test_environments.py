"""Environments by name and MPS switches: axes of a grid, parts of the question, factors of a report."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from pathlib import Path

import pytest

from queue_runner.client import Client
from queue_runner.errors import MpsqError, UsageError
from queue_runner.ingest.summarize_run import SelfDescription
from queue_runner.paths import Layout
from queue_runner.spec import NO_CODE, JobSpec
from queue_runner.store.engine import open_engine
from queue_runner.submit import expand
from queue_runner.worker import finish
from queue_runner.worker.due import DueSchedules
from queue_runner.workloads import environment_create, mps_switches, venvs
from tests.cli_support import TOY, Cli, empty_queue, stand_in_venv, use_toy_workloads
from tests.reports.report_fixture import Store, words
from tests.submit_support import requested

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def toy(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_toy_workloads(tmp_path / "jobs", monkeypatch)
    monkeypatch.chdir(tmp_path)
    for name in ("old", "new"):
        stand_in_venv(home, name, torch={"old": "2.13.0", "new": "2.14.0"}[name], numpy="2.0")


# -- the words of --mps ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("default", {}),
        ("fallback=on", {"fallback": "on"}),
        ("prefer_metal=1, fast_math=off", {"fast_math": "off", "prefer_metal": "on"}),
        ("high_watermark=0", {"high_watermark": "0.0", "low_watermark": "1.4"}),
        ("high_watermark=0.8", {"high_watermark": "0.8", "low_watermark": "0.8"}),
        ("low_watermark=1.0", {"high_watermark": "1.7", "low_watermark": "1.0"}),
        ("high_watermark=0.0,low_watermark=2", {"high_watermark": "0.0", "low_watermark": "2.0"}),
    ],
)
def test_switches_have_one_spelling_and_watermarks_are_a_pair(text: str, found: dict[str, str]) -> None:
    assert mps_switches.parse(text) == found
    assert mps_switches.parse(",".join(f"{name}={value}" for name, value in found.items()) or "default") == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "fallback"),
        ("fallback", "NAME=VALUE"),
        ("fall_back=on", "fallback"),
        ("fallback=maybe", "on or off"),
        ("fallback=on,fallback=off", "twice"),
        ("high_watermark=2.1", "0 to 2"),
        ("high_watermark=-1", "0 to 2"),
        ("low_watermark=nan", "0 to 2"),
        ("low_watermark=1.8", "above high_watermark 1.7"),
        ("high_watermark=0.5,low_watermark=0.6", "above high_watermark 0.5"),
    ],
)
def test_what_torch_would_refuse_is_refused_before(text: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        mps_switches.parse(text)
    assert said in f"{error.value.message} {error.value.hint}"


def test_the_variables_are_the_childs() -> None:
    inherited = {"PYTORCH_MPS_FAST_MATH": "1", "PATH": "/bin"}
    asked = mps_switches.parse("fallback=on,high_watermark=0,fast_math=off,layout_optimization=off")
    assert mps_switches.environment(asked, inherited) == {
        "PATH": "/bin",
        "PYTORCH_ENABLE_MPS_FALLBACK": "1",
        "PYTORCH_MPS_HIGH_WATERMARK_RATIO": "0.0",
        "PYTORCH_MPS_LOW_WATERMARK_RATIO": "1.4",
        "TORCHINDUCTOR_LAYOUT_OPTIMIZATION": "0",
    }


# -- the question ---------------------------------------------------------------------------------------------------


def test_both_are_axes_and_part_of_the_question() -> None:
    specs = expand.expand(
        requested(workload="toy", device="mps", env_name="old,new", mps=("default", "fast_math=on"), compile="both")
    )
    assert len(specs) == 8 == len({spec.content_hash() for spec in specs})
    assert {(s.env_name, s.mps.get("fast_math"), s.env.get("PYTORCH_MPS_FAST_MATH")) for s in specs} == {
        (name, *value) for name in ("old", "new") for value in ((None, None), ("on", "1"))
    }
    assert all(spec.python.endswith(f"/envs/{spec.env_name}/bin/python") for spec in specs)
    assert all(JobSpec.from_json(spec.to_json()) == spec for spec in specs)


def test_variables_that_the_user_names_are_part_of_the_question_and_others_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def spec(*env: str) -> JobSpec:
        return expand.expand(requested(argv=("true",), env=env))[0]

    plain = spec()
    assert plain.variables == {} and spec("K=1").variables == {"K": "1"}
    assert len({plain.content_hash(), spec("K=1").content_hash(), spec("K=2").content_hash()}) == 3
    monkeypatch.setenv("K", "3")
    assert spec().env["K"] == "3" and spec().content_hash() == plain.content_hash()
    assert "K=1" in spec("K=1").label()


def test_questions_that_say_neither_keep_their_hashes() -> None:
    (spec,) = expand.expand(requested(workload="toy"))
    stored = json.loads(spec.to_json())
    for name in ("env_name", "packages", "mps", "variables"):
        del stored[name]
    assert JobSpec.from_json(json.dumps(stored)).content_hash() == spec.content_hash()
    assert "packages" not in finish.of_software(SelfDescription(), spec)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"device": "cpu", "mps": ("fallback=on",)}, "has no effect on device cpu"),
        ({"device": "mps,cuda", "mps": ("fallback=on",)}, "has no effect on device cuda"),
        ({"env_name": "odl"}, 'did you mean "old"?'),
        ({"env_name": "../x"}, "mpsq env list"),
        ({"env_name": "old,"}, "empty value"),
        ({"env_name": "old", "python": "python3"}, "both name an interpreter"),
        (
            {"device": "mps", "mps": ("fallback=on",), "env": ("PYTORCH_ENABLE_MPS_FALLBACK=0",)},
            "set the same variable",
        ),
    ],
)
def test_what_cannot_be_asked(asked: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError) as error:
        expand.expand(requested(workload="toy", **asked))  # type: ignore[arg-type]
    assert said in f"{error.value.message} {error.value.hint}"


def test_a_command_finds_the_programs_of_its_environment(home: Path) -> None:
    tool = home / "envs" / "new" / "bin" / "only-there"
    tool.symlink_to("/bin/sh")
    (spec,) = expand.expand(requested(argv=("only-there", "-c", "true"), env_name="new"))
    assert spec.env["PATH"].startswith(f"{tool.parent}:") and spec.env["VIRTUAL_ENV"] == str(tool.parent.parent)
    with pytest.raises(UsageError, match="only-there"):
        expand.expand(requested(argv=("only-there",), env_name="old,new"))
    with pytest.raises(UsageError, match="names its own interpreter"):
        expand.expand(requested(argv=("/usr/bin/python3", "x.py"), env_name="old"))


def test_a_line_of_a_file_says_them_too() -> None:
    options = {"workload": "toy", "device": "mps", "env_name": ["old", "new"], "mps": ["fallback=on"]}
    assert len(expand.expand(requested(**options))) == 2


def test_from_python(home: Path) -> None:
    queue = Client(home)
    empty_queue(home)
    group = queue.submit("toy", device="mps", env_name=["old", "new"], mps="fallback=on")
    assert {(run["env_name"], run["mps"]["fallback"]) for run in queue.runs(group)} == {("old", "on"), ("new", "on")}


# -- what is kept, and who may go -----------------------------------------------------------------------------------


def test_what_is_in_it_goes_into_the_fingerprint(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layout = empty_queue(home)
    Cli(capsys).ok("submit", "toy", "--env-name", "old,new", "--device", "mps", "--mps", "fallback=on")
    with sqlite3.connect(layout.db) as connection:
        specs = [JobSpec.from_json(text) for (text,) in connection.execute("SELECT spec_json FROM jobs ORDER BY id")]
    told = [finish.of_software(SelfDescription(), spec) for spec in specs]
    assert [one["packages"]["torch"] for one in told] == ["2.13.0", "2.14.0"]
    assert [one["env"]["PYTORCH_ENABLE_MPS_FALLBACK"] for one in told] == ["1", "1"]
    shown = Cli(capsys).ok("list").out
    assert "env=old" in shown or "env=" in Cli(capsys).ok("show", "1").out
    assert "mps_fallback=on" in Cli(capsys).ok("show", "1").out


def test_a_folder_without_code_leaves_none_in_the_fingerprint(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layout, folder = empty_queue(home), tmp_path / "empty"
    folder.mkdir()
    Cli(capsys).ok("submit", "--cwd", folder, "--", "true")
    with sqlite3.connect(layout.db) as connection:
        spec = JobSpec.from_json(*connection.execute("SELECT spec_json FROM jobs").fetchone())
    assert spec.code == NO_CODE and finish.of_software(SelfDescription(), spec)["code"] is None


def test_an_environment_that_a_job_needs_stays(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mpsq, layout = Cli(capsys), empty_queue(home)
    mpsq.ok("submit", "toy", "--env-name", "old")
    mpsq.ok("submit", "toy", "--python", home / "envs" / "new" / "bin" / "python")
    for name, job in (("old", 1), ("new", 2)):
        refused = mpsq("env", "remove", name)
        assert refused.code == 1 and f"needed by job {job}" in refused.err and f"mpsq cancel {job}" in refused.err
    mpsq.ok("cancel", "1", "2")
    mpsq.ok("env", "remove", "old")
    assert [venv.name for venv in venvs.every(layout)] == ["new"]
    assert not (home / "envs" / "old").exists() and not list((home / "envs").glob(".trash-*"))
    gone = mpsq("rerun", "1")
    assert gone.code == 2 and 'unknown environment "old"' in gone.err
    assert mpsq("env", "remove", "old").code == 2


def test_an_environment_that_a_schedule_submits_to(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mpsq, layout = Cli(capsys), empty_queue(home)
    asked = ["--env-name", "old,new", "--device", "mps", "--mps", "fallback=on"]
    layout.workloads.mkdir()
    (layout.workloads / "mine_torch.py").write_text(TOY.replace('"toy"', '"mine"'))
    mpsq.ok("schedule", "add", "0 2 * * *", "--name", "nightly", "--", "mine", *asked)
    refused = mpsq("env", "remove", "new")
    assert refused.code == 1 and "schedule remove nightly" in refused.err
    with sqlite3.connect(layout.db) as connection:
        connection.execute("UPDATE schedules SET next_at = 1")
    engine = open_engine(layout.db, check=False)
    DueSchedules(layout, engine, lambda _: None).submit(patience_s=60)
    engine.dispose()
    jobs = mpsq.ok("list", "--json").json()["jobs"]
    assert [(job["env_name"], job["mps"]) for job in jobs] == [(name, {"fallback": "on"}) for name in ("old", "new")]
    mpsq.ok("schedule", "remove", "nightly")
    mpsq.ok("cancel", *(str(job["job"]) for job in jobs))
    mpsq.ok("env", "remove", "new")


def test_the_list(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "envs" / "half").mkdir()
    out = Cli(capsys).ok("env", "list").out
    assert "torch 2.14.0" in out and "half" not in out
    (home / "envs" / "old" / venvs.RECORD).write_text("{")
    broken = Cli(capsys)("env", "list")
    assert broken.code == 1 and "env remove old" in broken.err
    Cli(capsys).ok("env", "remove", "old")
    Cli(capsys).ok("env", "remove", "half")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a b"], "cannot be named"),
        (["../up"], "cannot be named"),
        (["new"], 'environment "new" already exists'),
        (["fresh", "--pip", "torch --target /tmp/x"], "--pip cannot contain --target"),
        (["fresh", "--pip", "torch -t/tmp/x"], "--pip cannot contain -t"),
        (["fresh", "--pip", "torch '"], "close the quotes"),
        (["fresh", "--python", "/no/python"], "there is no interpreter"),
    ],
)
def test_what_cannot_be_made(home: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    ran = Cli(capsys)("env", "create", *arguments)
    assert ran.code == 2 and said in ran.err
    assert "creating" not in ran.err  # printed after all checks
    assert not (home / "envs" / "fresh").exists()


def test_gc_finds_what_a_killed_maker_left(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty_queue(home)
    for name, age_s in (("half", 7200.0), ("young", 0.0)):
        (home / "envs" / name).mkdir()
        os.utime(home / "envs" / name, (time.time() - age_s,) * 2)
    Cli(capsys).ok("gc", "--yes")
    assert sorted(path.name for path in (home / "envs").glob("[!.]*")) == ["new", "old", "young"]


def test_passwords_of_addresses_are_not_shown(home: Path) -> None:
    with pytest.raises(MpsqError, match=r"index\.invalid") as error:
        environment_create.create(Layout(home), "fresh", ["--no-index", "x@https://me:secret@index.invalid/x"])
    assert "secret" not in error.value.message


def test_an_interpreter_that_is_none(home: Path) -> None:
    with pytest.raises(MpsqError, match=r"uv venv .* failed"):
        environment_create.create(Layout(home), "fresh", [], "true")
    assert not (home / "envs" / "fresh").exists()


def test_without_uv_one_sentence_says_how_to_get_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name, **_: None if name == "uv" else f"/bin/{name}")
    with pytest.raises(MpsqError, match="needs uv") as error:
        environment_create.create(Layout(home), "fresh", [], "python3")
    assert "pip install uv" in error.value.hint
    assert venvs.find(Layout(home), "old").python.is_symlink()


# -- reports --------------------------------------------------------------------------------------------------------


def software(torch: str, env: dict[str, str] | None = None, **packages: str) -> dict[str, object]:
    return {"versions": {"torch": torch}, "env": env or {}, **({"packages": packages} if packages else {})}


def test_packages_of_environments_are_named_in_one_sentence(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    many = {name: ("1.0", "2.0") for name in ("filelock", "jinja2", "networkx", "sympy", "triton")}
    for at, torch in enumerate(("2.13.0", "2.14.0")):
        packages = {name: versions[at] for name, versions in many.items()}
        for _ in range(2):
            store.run("mps", False, 0.1 + at / 10, version=torch, software=software(torch, **packages, same="1"))
    told = words(store.report())
    assert "torch=2.13.0" in told and "torch=2.14.0" in told
    assert "filelock, jinja2, networkx" in told and "networkx and 2 more" in told and "same" not in told


def test_a_switch_is_a_factor_whichever_way_it_was_set(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.run("mps", False, 0.1, software=software("2.13.0"))
    store.run("mps", False, 0.2, software=software("2.13.0", {"PYTORCH_ENABLE_MPS_FALLBACK": "1"}))
    assert {row["label"] for row in store.report().rows} == {"mps_fallback=unset", "mps_fallback=on"}


def test_rows_are_named_by_their_environments(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.run("mps", False, 0.1)
    for name, torch in (("old", "2.13.0"), ("new", "2.14.0")):
        store.run("mps", False, 0.2, version=torch, env_name=name, software=software(torch, numpy="2.0"))
    report = store.report()
    assert {row["label"] for row in report.rows} == {"env=unset", "env=old", "env=new"}
    assert "differ in torch" in words(report)
    assert len(store.report(group_by="env", vs="env=old").rows) == 3
