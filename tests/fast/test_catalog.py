"""The catalog reads WORKLOAD literals without running anything."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from queue_runner import catalog, paths, workload_file
from queue_runner.errors import MpsqError, UsageError
from tests.cli_support import ROOT, TOY


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "toy_torch.py").write_text(TOY + "\nimport torch_that_is_not_there\n")
    (tmp_path / "toy_mlx.py").write_text(TOY.replace('"torch"', '"mlx"'))
    (tmp_path / "aid.py").write_text("WORKLOADS = 1\n")
    return tmp_path


def test_workloads_are_read_and_sorted(folder: Path) -> None:
    assert [(w.name, w.framework) for w in catalog.workloads(folder)] == [("toy", "mlx"), ("toy", "torch")]
    found = catalog.find(folder, "toy")
    assert found.framework == "torch" and list(found.configs) == ["tiny", "large"]
    assert found.params["lr"] == workload_file.Param("lr", 1e-3, "1/step", "learning rate")


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("max_iters", "20", 20),
        ("max_iters", "1_000", 1000),
        ("lr", "1", 1.0),
        ("lr", "1e-4", 1e-4),
        ("fused", "off", False),
        ("fused", "True", True),
        ("data", "a b", "a b"),
        ("note", "7", "7"),
    ],
)
def test_a_value_has_the_type_of_its_default(folder: Path, key: str, text: str, value: object) -> None:
    found = catalog.value(catalog.find(folder, "toy"), key, text)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("key", "text", "said"),
    [
        ("max_iter", "3", 'did you mean "max_iters"?'),
        ("max_iters", "3.5", "max_iters (iterations): how long it trains"),
        ("fused", "2", "fused"),
        ("lr", "", "learning rate"),
    ],
)
def test_a_wrong_value_says_what_the_key_is(folder: Path, key: str, text: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        catalog.value(catalog.find(folder, "toy"), key, text)
    assert said in error.value.hint


@pytest.mark.parametrize(
    "source",
    [
        "WORKLOAD = {",
        "WORKLOAD = dict(name='x')",
        "WORKLOAD = {'name': 'x'}",
        "WORKLOAD = 3",
        "WORKLOAD: dict = {'framework': 'x'}",
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, source: str) -> None:
    (tmp_path / "broken.py").write_text(source)
    with pytest.raises(MpsqError, match=r"broken\.py"):
        catalog.workloads(tmp_path)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_bytes(b"\xff\xfe")
    with pytest.raises(MpsqError, match=r"broken\.py"):
        catalog.workloads(tmp_path)


def test_ours_can_be_read() -> None:
    for workload in catalog.workloads(paths.jobs_dir()):
        assert workload.about and workload.source and workload.configs
        for name, values in workload.configs.items():
            unknown = set(values) - set(workload.params)
            assert not unknown, f"{workload.file.name}: config {name} sets {unknown}"
        assert all(param.help for param in workload.params.values())


def test_a_workload_may_have_dtypes_of_its_own(folder: Path) -> None:
    (folder / "exact_torch.py").write_text(TOY.replace('"name": "toy"', '"name": "exact", "dtypes": ["fp64"]'))
    assert catalog.find(folder, "exact").dtypes == ("fp64",)
    assert catalog.find(folder, "toy").dtypes == workload_file.DTYPES


def test_a_workload_like_another_says_what_is_apart(tmp_path: Path) -> None:
    """The catalog and the harness, which runs it, make the same of both literals."""
    spec = importlib.util.spec_from_file_location("workload_of_the_harness", ROOT / "jobs" / "harness" / "workload.py")
    assert spec is not None and spec.loader is not None
    harness = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(harness)
    alike = 0
    for file in sorted((ROOT / "jobs").glob("*_*.py")):
        said, found = workload_file._literal(file), workload_file.read(file)
        if said is not None and found is not None and "like" in said:
            alike += 1
            theirs = harness.whole(said)
            assert (found.name, found.framework) == (theirs["name"], theirs["framework"])
            defaults = {name: param["default"] for name, param in theirs["params"].items()}
            assert found.configs == theirs["configs"] and {k: p.default for k, p in found.params.items()} == defaults
            assert not set(said.get("without", ())) & set(found.params)
    assert alike >= 8
    (tmp_path / "a_torch.py").write_text("WORKLOAD = {'like': 'b_torch'}\n")
    with pytest.raises(MpsqError, match="which has no whole one"):
        workload_file.read(tmp_path / "a_torch.py")
