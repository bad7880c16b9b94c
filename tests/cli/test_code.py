"""submit, show and rerun, where they tell of the code."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from queue_runner.paths import Layout
from queue_runner.store.read import reading
from tests.cli_support import Cli, schemas, use_toy_workloads

pytestmark = [pytest.mark.process, pytest.mark.needs_program("git")]

PATCH = """\
diff --git a/train.py b/train.py
--- a/train.py
+++ b/train.py
@@ -1 +1 @@
-print(1)
+print("\x1b[31m2")
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A repository with one commit and a change."""
    root = tmp_path / "code"
    root.mkdir()
    (root / "train.py").write_text("print(1)\n")
    who = ["-c", "user.name=A", "-c", "user.email=a@example.com"]
    for arguments in (["init", "-q", "-b", "main"], ["add", "-A"], [*who, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", str(root), *arguments], check=True)
    (root / "train.py").write_text('print("\x1b[31m2")\n')
    return root


@pytest.fixture
def mpsq(layout: Layout, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    use_toy_workloads(tmp_path / "jobs", monkeypatch)
    monkeypatch.chdir(tmp_path)
    return Cli(capsys)


def without_index(patch: str) -> str:
    return "".join(line for line in patch.splitlines(keepends=True) if not line.startswith("index "))


def test_the_patch_is_raw_in_a_pipe_and_harmless_on_a_terminal(
    mpsq: Cli, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mpsq.ok("submit", "--cwd", code, "--", "true")
    ran = mpsq.ok("show", "1", "--diff")
    assert without_index(ran.out) == PATCH
    assert ran.err.startswith("job 1: commit ") and ran.err.endswith(" on main\n")
    (code / "train.py").write_text("print(1)\n")
    subprocess.run(["git", "-C", str(code), "apply"], input=ran.out.encode(), check=True)
    assert "2" in (code / "train.py").read_text()
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert "\x1b" not in mpsq.ok("show", "1", "--diff").out


def test_where_there_is_no_patch_it_says_why(mpsq: Cli, code: Path, tmp_path: Path) -> None:
    (code / "train.py").write_text("print(1)\n")
    mpsq.ok("submit", "--cwd", code, "--", "true")
    assert mpsq.ok("show", "1", "--diff").err.endswith("without changes\n")
    mpsq.ok("submit", "--", "true")
    note = mpsq.ok("show", "2", "--diff").err
    assert note.startswith("job 2: ") and "not in a repository" in note
    mpsq.ok("submit", "--snapshot", "copy", "--", "true", "--cwd", tmp_path)
    assert "not in a repository" in mpsq.ok("show", "3", "--diff").err
    young = tmp_path / "young"
    young.mkdir()
    subprocess.run(["git", "-C", str(young), "init", "-q"], check=True)
    mpsq.ok("submit", "--cwd", young, "--", "true")
    assert "no commit" in mpsq.ok("show", "4", "--diff").err
    (code / "train.py").write_text("".join(f"x = {number**7}\n" for number in range(150_000)))
    mpsq.ok("submit", "--cwd", code, "--", "true")
    assert "too large" in mpsq.ok("show", "5", "--diff").err


def test_what_show_tells_of_the_code(mpsq: Cli, code: Path) -> None:
    (code / ".env").write_text("x")
    mpsq.ok("submit", "--cwd", code, "--snapshot", "copy", "--", "true")
    run = mpsq.ok("show", "1", "--json").json()
    Draft202012Validator(schemas()["mpsq.show/1"]).validate(run)
    about = run["runs"][0]["code"]
    assert about["copied"] and about["left_out"] == {".env": "may hold a secret"} and about["git_branch"] == "main"
    text = mpsq.ok("show", "1").out
    facts = "with changes", "branch main; snapshot", "left out: .env", "runs in      a copy"
    assert all(fact in text for fact in facts), text


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "if this folder's code changes before a run starts, the run uses the code as it was when you submitted"),
        ((), "these files are not copied, so that runs read the originals: .env (may hold a secret)"),
        (("--snapshot", "copy"), "each run gets a copy of the code as it is now; $MPSQ_CWD is the original"),
        (("--snapshot", "off"), "runs use the code that is there when they start (--snapshot off)"),
    ],
)
def test_what_submit_tells_of_the_code(options: tuple[str, ...], told: str, mpsq: Cli, code: Path) -> None:
    (code / ".env").write_text("x")
    assert told in " ".join(mpsq.ok("submit", "--cwd", code, *options, "--", "true").err.split())


def test_a_command_that_names_its_folder_is_told_what_it_reads_there(mpsq: Cli, code: Path) -> None:
    copied = ["submit", "--cwd", code, "--snapshot", "copy", "--"]
    notes = mpsq.ok(*copied, "sh", "-c", f"cd {code} && python train.py").err
    assert 0 <= notes.find("copy of the code") < notes.find("the command names")  # the exception comes last
    assert "the command names" not in mpsq.ok(*copied, "sh", f"{code}/train.py", f"--x={code}/train.py").err


def test_rerun_takes_over_what_was_asked(mpsq: Cli, layout: Layout, code: Path) -> None:
    asked = ["--cwd", code, "--priority", "3", "--tag", "old", "--repeats", "2", "--retries", "1", "--env", "X=1"]
    mpsq.ok("submit", *asked, "--device", "cpu,mps", "--", "true", "{device}")
    assert mpsq.ok("rerun", "g1").out.startswith("g2: 2 jobs, 4 runs queued (")
    mpsq.ok("rerun", "1.2", "--repeats", "1", "--hold")
    with reading(layout.db) as connection:
        rows = list(connection.execute("SELECT * FROM v_run ORDER BY run_id"))
    by_job = {row["job_id"]: row for row in rows}
    order = {g: [(r["device"], r["repeat"]) for r in rows if r["group_id"] == g] for g in (1, 2)}
    assert order[1] == order[2]
    old, new = (json.loads(by_job[job]["spec_json"]) for job in (1, 3))
    assert (new, by_job[3]["rerun_of"]) == (old, 1)
    same = by_job[3]
    assert (same["priority"], same["tags"], same["retries"], same["state"]) == (3, "old", 1, "QUEUED")
    again = by_job[5]
    assert (again["priority"], again["tags"], again["repeat"], again["state"]) == (3, "old", 1, "HELD")
    assert "rerun of     job 1" in mpsq.ok("show", "5").out


def test_rerun_of_a_workload_whatever_became_of_the_workloads(mpsq: Cli, layout: Layout, tmp_path: Path) -> None:
    mpsq.ok("submit", "toy", "--seed", "3")
    (tmp_path / "jobs" / "toy_torch.py").write_text("raise SystemExit")
    mpsq.ok("rerun", "1")
    first, second = (mpsq.ok("show", job, "--json").json()["runs"][0] for job in ("1", "2"))
    assert first["argv"] == second["argv"] and second["rerun_of"] == 1
    shutil.rmtree(layout.snapshots)
    ran = mpsq("rerun", "1")
    assert ran.code == 1 and "job 1 cannot" in ran.err and "submit it again" in ran.err


def test_rerun_says_what_it_cannot_do(mpsq: Cli, layout: Layout, code: Path, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("iter 0: loss 4.2874, time 2000.00ms, mfu -100.00%\n")
    mpsq.ok("import", tmp_path / "log", "--set", "device=mps")
    assert "was imported" in mpsq("rerun", "1").err
    mpsq.ok("submit", "--snapshot", "off", "--", "true")
    assert mpsq.ok("rerun", "2").out.startswith("g3: 1 job, 1 run queued (3.1)")
    (code / "train.py").write_text("print(1)\n")
    mpsq.ok("submit", "--cwd", code, "--", "true")
    (code / "train.py").write_text("other")
    ran = mpsq.ok("rerun", "4")
    assert "use a copy" in ran.err and "train.py changed" in ran.err
    assert "use a copy" not in mpsq.ok("rerun", "4", "--snapshot", "off").err
    assert "whatever changes there" in mpsq.ok("show", "6").out
    for content in layout.snapshots.glob("*/content-*"):
        content.unlink()
    ran = mpsq("rerun", "4")
    assert ran.code == 1 and "train.py changed" in ran.err and "code is gone" in ran.err and "--snapshot off" in ran.err
    ran = mpsq("submit", "--allow-changed", "--", "true")
    assert ran.code == 2 and "was removed" in ran.err and "--snapshot off" in ran.err
    for wrong in (["rerun", "99"], ["rerun", "4", "--repeats", "0"], ["rerun", "4", "--snapshot", "no"], ["rerun"]):
        assert mpsq(*wrong).code == 2
