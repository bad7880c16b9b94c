"""The catalog reads WORKLOAD literals without running anything."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from queue_runner import paths
from queue_runner.errors import MpsqError, UsageError
from queue_runner.workloads import catalog, manifest
from queue_runner.workloads.manifest import Workload
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
    assert found.params["lr"] == manifest.Param("lr", 1e-3, "1/step", "learning rate")


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


BOUNDED = """
WORKLOAD = {
    "name": "bounded", "framework": "torch",
    "params": {
        "mode": {"default": "train", "choices": ["train", "eval"], "help": "what it does"},
        "batch_size": {"default": 8, "unit": "examples", "least": 1, "most": 512, "help": "in one iteration"},
        "dropout": {"default": 0.0, "least": 0, "below": 1, "help": "share"},
        "limit_s": {"default": 1.0, "above": 0, "help": "time"},
        "types": {"default": "fp32+bf16", "each_of": ["fp32", "bf16", "bool"], "help": "dtypes"},
        "data": {"default": "pydoc", "path_or": ["pydoc", "shakespeare"], "help": "what it reads"},
        "size": {"default": 2, "choices": [1, 2, 4], "help": "of it"},
    },
    "configs": {"tiny": {"batch_size": 1}},
}
"""


@pytest.fixture
def bounded(tmp_path: Path) -> Workload:
    (tmp_path / "bounded_torch.py").write_text(BOUNDED)
    return catalog.find(tmp_path, "bounded")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mode=evla", 'mode cannot be "evla" did you mean "eval"? mode is train or eval'),
        ("mode=", 'mode cannot be ""'),
        ("batch_size=0", "batch_size=0: it cannot be less than 1 batch_size (examples): in one iteration"),
        ("batch_size=513", "it cannot be more than 512"),
        ("dropout=-0.1", "it cannot be less than 0"),
        ("dropout=1", "it must be less than 1"),
        ("dropout=nan", '"nan" is not a number'),
        ("limit_s=0", "it must be more than 0"),
        ("limit_s=inf", '"inf" is not a number'),
        ("types=fp32+bf61", 'it cannot hold "bf61" did you mean "bf16"? types takes these, + between: fp32 bf16 bool'),
        ("types=fp32+", 'it cannot hold ""'),
        ("size=3", "size is 1, 2 or 4"),
    ],
)
def test_a_value_that_a_key_does_not_take_is_refused(bounded: Workload, text: str, said: str) -> None:
    key, _, word = text.partition("=")
    with pytest.raises(UsageError) as error:
        catalog.value(bounded, key, word)
    assert said in f"{error.value.message} {error.value.hint}"


def test_the_limits_themselves_are_taken(bounded: Workload) -> None:
    for text in ("mode=eval", "batch_size=1", "batch_size=512", "dropout=0", "types=bool", "size=4", "limit_s=1e-9"):
        catalog.value(bounded, *text.split("="))
    takes = {name: param.takes() for name, param in bounded.params.items()}
    assert takes["mode"] == "train | eval" and takes["batch_size"] == "at least 1 and at most 512"
    assert takes["dropout"] == "at least 0 and below 1" and takes["types"] == "+ between: fp32 bf16 bool"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('["train", "eval"]', '["eval"]', 'its default: mode cannot be "train"'),
        ('["train", "eval"]', '"train"', "choices is not a list"),
        ('["train", "eval"]', "[]", "choices is not a list"),
        ('["train", "eval"]', '["train", 3]', "choices has 3, which is not of the type"),
        ('"least": 1,', '"least": "1",', "least '1' is not a number"),
        ('"least": 1,', '"least": 9,', "its default: batch_size=8: it cannot be less than 9"),
        ('"default": "train",', '"default": "train", "most": 3,', "most applies only to numbers"),
        ('"default": 1.0, "above"', '"default": 1.0, "each_of": ["x"], "above"', "each_of is for strings"),
        ('{"batch_size": 1}', '{"batch_size": 0}', "config tiny: batch_size=0: it cannot be less than 1"),
        ('"default": 1.0', '"default": [1.0]', "not a string, a number, true or false"),
        ('"default": 1.0,', "", "limit_s has no default"),
    ],
)
def test_a_wrong_key_of_a_literal_is_a_sentence(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in BOUNDED
    (tmp_path / "bounded_torch.py").write_text(BOUNDED.replace(old, new))
    with pytest.raises(MpsqError) as error:
        catalog.find(tmp_path, "bounded")
    assert said in error.value.message and "bounded_torch.py" in error.value.message and error.value.hint


def test_a_key_may_take_words_or_a_path(bounded: Workload) -> None:
    assert bounded.params["data"].takes() == "pydoc | shakespeare | PATH"


def test_a_named_workload_reads_one_file(tmp_path: Path, bounded: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other_torch.py").write_text(BOUNDED)
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "own_torch.py").write_text(BOUNDED.replace('"bounded"', '"own"'))
    (theirs / "broken_torch.py").write_text("WORKLOAD = {")
    read: list[str] = []
    monkeypatch.setattr(catalog, "read", lambda file: read.append(file.name) or manifest.read(file))
    assert catalog.find(tmp_path, "bounded", None, theirs).name == "bounded"
    assert catalog.find(tmp_path, "own", None, theirs).name == "own"
    assert read == ["bounded_torch.py", "own_torch.py"]


def test_a_twin_takes_what_its_model_takes(tmp_path: Path, bounded: Workload) -> None:
    twin = 'WORKLOAD = {"like": "bounded_torch", "name": "twin", "without": ["mode"], '
    (tmp_path / "twin_torch.py").write_text(twin + '"params": {"batch_size": {"default": 16, "most": None}}}')
    found = catalog.find(tmp_path, "twin").params["batch_size"]
    assert (found.default, found.unit, found.limits) == (16, "examples", {"least": 1})


def test_a_key_of_the_loop_needs_its_default_alone(tmp_path: Path) -> None:
    """A bare value is a default; what a file spells out itself stands as it is."""
    own = '"max_iters": 7, "lr": 0.1, "log_interval": {"default": 3, "help": "print"}, "threads": {"default": "all"}'
    (tmp_path / "bounded_torch.py").write_text(BOUNDED.replace('"params": {', f'"params": {{{own},'))
    params = catalog.find(tmp_path, "bounded").params
    assert params["max_iters"] == manifest.Param("max_iters", 7, "iterations", "number of updates", limits={"least": 0})
    assert params["log_interval"] == manifest.Param("log_interval", 3, "", "print")
    assert params["lr"] == manifest.Param("lr", 0.1, "", "") and params["threads"].default == "all"
    assert list(params)[:4] == ["max_iters", "lr", "log_interval", "threads"]
    (tmp_path / "twin_torch.py").write_text(
        'WORKLOAD = {"like": "bounded_torch", "name": "twin", "params": {"max_iters": 9, "batch_size": 4}}'
    )
    twin = catalog.find(tmp_path, "twin").params
    assert twin["max_iters"].default == 9 and twin["max_iters"].help == "number of updates"
    assert twin["batch_size"].default == 4 and twin["batch_size"].limits == {"least": 1, "most": 512}


def test_ours_can_be_read() -> None:
    for workload in catalog.workloads(paths.jobs_dir()):
        assert workload.about and workload.source and workload.configs
        for name, values in workload.configs.items():
            unknown = set(values) - set(workload.params)
            assert not unknown, f"{workload.file.name}: config {name} sets {unknown}"
        assert all(param.help for param in workload.params.values())
        modes = (manifest._literal(workload.file) or {}).get("modes")
        assert not modes or workload.params["mode"].choices == ("train", *modes)


def test_a_workload_may_have_dtypes_of_its_own(folder: Path) -> None:
    (folder / "exact_torch.py").write_text(TOY.replace('"name": "toy"', '"name": "exact", "dtypes": ["fp64"]'))
    assert catalog.find(folder, "exact").dtypes == ("fp64",)
    assert catalog.find(folder, "toy").dtypes == manifest.DTYPES


def test_a_twin_inherits_the_same_in_catalog_and_harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "jobs")
    resolve = importlib.import_module("harness.command_line").resolve
    alike = 0
    for file in sorted((ROOT / "jobs").glob("*_*.py")):
        said, found = manifest._literal(file), manifest.read(file)
        if said is not None and found is not None and "like" in said:
            alike += 1
            theirs = resolve(said)
            assert (found.name, found.framework) == (theirs["name"], theirs["framework"])
            defaults = {name: param["default"] for name, param in theirs["params"].items()}
            assert found.configs == theirs["configs"] and {k: p.default for k, p in found.params.items()} == defaults
            for name, param in found.params.items():
                told = {key: value for key, value in theirs["params"][name].items() if key in manifest.LIMITS}
                assert param.limits == told and list(param.choices) == theirs["params"][name].get("choices", [])
            assert not set(said.get("without", ())) & set(found.params)
    assert alike >= 8
    (tmp_path / "a_torch.py").write_text("WORKLOAD = {'like': 'b_torch'}\n")
    with pytest.raises(MpsqError, match="which has no complete WORKLOAD"):
        manifest.read(tmp_path / "a_torch.py")
