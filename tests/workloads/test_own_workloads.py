"""The user's own workloads: found beside ours, kept apart from them in snapshots, never in their place."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from queue_runner import paths
from queue_runner.errors import MpsqError
from queue_runner.workloads import catalog, manifest, template
from tests.cli_support import TOY, Cli, empty_queue, use_toy_workloads

pytestmark = pytest.mark.process


@pytest.fixture
def own(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    use_toy_workloads(tmp_path / "jobs", monkeypatch)
    monkeypatch.chdir(tmp_path)
    empty_queue(home)
    return home / "workloads"


def test_a_new_one_is_found_at_once(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mpsq = Cli(capsys)
    ran = mpsq.ok("workloads", "new", "mine")
    assert Path(ran.out.strip()) == own / "mine_torch.py" and "mpsq run mine" in ran.err
    assert "mine" in mpsq.ok("workloads").out and "width" in mpsq.ok("workloads", "mine").out
    assert "--set width=64" in mpsq.ok("submit", "mine", "--set", "width=64", "--dry-run").out
    twice = mpsq("workloads", "new", "mine")
    assert twice.code == 2 and str(own / "mine_torch.py") in twice.err


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("toy", "of its own"),
        ("../x", "cannot be named"),
        ("New", "cannot be named"),
        ("new", "cannot be named"),
    ],
)
def test_names_that_cannot_be(own: Path, name: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    ran = Cli(capsys)("workloads", "new", name)
    assert ran.code == 2 and said in ran.err and not own.exists()


@pytest.mark.parametrize("words", [["new"], ["new", "a", "b"], ["toy", "mine"]])
def test_other_words(own: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert Cli(capsys)("workloads", *words).code == 2


def test_what_is_written_is_a_whole_workload(tmp_path: Path) -> None:
    file = tmp_path / "mine_torch.py"
    file.write_text(template.TEMPLATE.replace("@NAME@", "mine"))
    found = manifest.read(file)
    assert found is not None and (found.name, found.framework, list(found.configs)) == (
        "mine",
        "torch",
        ["small", "wide"],
    )
    assert all(set(values) <= set(found.params) for values in found.configs.values())
    tree = ast.parse(file.read_text())
    assert {"build", "step", "evaluate"} <= {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    ruff = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--quiet", str(file)], cwd=paths.checkout(), capture_output=True
    )
    assert ruff.returncode == 0, ruff.stdout


def test_its_snapshot_holds_it_and_no_other(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mpsq = Cli(capsys)
    own.mkdir()
    for name in ("one", "two"):
        (own / f"{name}.py").write_text(TOY.replace('"toy"', f'"{name}"'))
    (own / "helper.py").write_text("x = 1\n")
    layout = paths.layout()

    def kept(name: str) -> tuple[str, set[str]]:
        job = mpsq.ok("submit", name, "--json").json()["jobs"][0]
        (shown,) = mpsq.ok("show", job, "--json").json()["runs"]
        digest = shown["code"]["hash"]
        return digest, {path.name for path in (layout.snapshots / digest).iterdir()}

    ours = {"toy_torch.py", "toy_mlx.py", "shared.py"}
    toy, one = kept("toy"), kept("one")
    assert toy[1] == ours and one[1] == ours | {"one.py", "helper.py"}
    (own / "two.py").write_text(TOY.replace('"toy"', '"two"') + "\n# changed\n")
    assert (kept("toy"), kept("one")) == (toy, one)
    (own / "helper.py").write_text("x = 2\n")
    assert kept("toy") == toy and kept("one")[0] != one[0]


def test_a_broken_one_keeps_ours_from_nothing(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mpsq = Cli(capsys)
    own.mkdir()
    (own / "broken.py").write_text("WORKLOAD = {")
    mpsq.ok("submit", "toy")
    mpsq.ok("workloads", "new", "mine")
    ran = mpsq("workloads")
    assert ran.code == 1 and "not Python: line 1" in ran.err and str(own) in ran.err
    (own / "broken.py").write_text('WORKLOAD = {\n"name": f()}')
    ran = mpsq("workloads")
    assert ran.code == 1 and "WORKLOAD in broken.py" in ran.err and "line 2" in ran.err and "0x" not in ran.err


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"a.py": "toy"}, 'the workload "toy"'),
        ({"toy_torch.py": "mine"}, "the file toy_torch.py"),
        ({"a.py": "mine", "b.py": "mine"}, 'both "mine" in torch'),
    ],
)
def test_none_takes_the_place_of_another(own: Path, tmp_path: Path, files: dict[str, str], said: str) -> None:
    own.mkdir()
    for file, name in files.items():
        (own / file).write_text(TOY.replace('"toy"', f'"{name}"'))
    with pytest.raises(MpsqError, match=said):
        catalog.find(tmp_path / "jobs", "other", None, own)
    assert catalog.find(tmp_path / "jobs", "toy", None, own).file.parent == tmp_path / "jobs"
