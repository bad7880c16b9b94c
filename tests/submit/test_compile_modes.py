"""--compile with modes of torch.compile: each is a cell, off and on stay the questions that they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from queue_runner.cli.complete.values import _FIXED
from queue_runner.errors import UsageError
from queue_runner.spec import COMPILE_MODES, JobSpec
from queue_runner.submit import expand, grid
from queue_runner.submit.plan import plan
from queue_runner.workloads.command_line import build_argv
from tests.cli_support import use_toy_workloads
from tests.submit_support import requested


@pytest.fixture(autouse=True)
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_toy_workloads(tmp_path / "jobs", monkeypatch)
    monkeypatch.chdir(tmp_path)


def test_each_mode_is_a_cell_with_its_own_hash_label_and_command_line(tmp_path: Path) -> None:
    specs = expand.expand(requested(workload="toy", device="cpu", compile=f"both,{','.join(COMPILE_MODES)}"))
    assert [(spec.compile, spec.compile_mode) for spec in specs] == [
        (False, ""),
        (True, ""),
        *((True, mode) for mode in COMPILE_MODES),
    ]
    assert len({spec.content_hash() for spec in specs}) == 5
    written = [build_argv(spec, tmp_path) for spec in specs]
    assert [words[words.index("--compile") + 1] for words in written] == ["off", "on", *COMPILE_MODES]
    assert specs[3].label().endswith(" compiled(max-autotune)")
    assert [JobSpec.from_json(spec.to_json()) for spec in specs] == specs


@pytest.mark.parametrize(
    ("compiles", "digest"),
    [
        (True, "1e3fc43751b06a855fa57a5c6931c2918fb57c063e6cc93bc271b16ab30dd3ca"),
        (False, "8cd7668a4aa518516bcfdc06884a0f7617954a55a60ad6c690b13bfb56b6eee3"),
    ],
)
def test_off_and_on_keep_the_hashes_of_version_0_1(compiles: bool, digest: str) -> None:
    spec = JobSpec(
        kind="workload",
        name="x",
        workload="nanogpt",
        framework="torch",
        script="nanogpt_torch.py",
        device="cpu",
        compile=compiles,
        dtype="fp32",
        config="tiny",
        seed=1337,
    )
    assert spec.content_hash() == digest


def test_torchs_own_names_are_understood() -> None:
    assert grid.compiles(["max-autotune-no-cudagraphs", "default", "off"]) == ["no-cudagraphs", True, False]
    with pytest.raises(UsageError, match='cannot be "max-autotun"') as refused:
        grid.compiles(["max-autotun"])
    assert 'mean "max-autotune"?' in str(refused.value.hint)


def test_a_framework_without_modes_refuses_them() -> None:
    with pytest.raises(UsageError, match=r"reduce-overhead is a mode of torch\.compile, and mlx has no modes"):
        expand.expand(requested(workload="toy", framework="torch,mlx", compile="reduce-overhead"))


def test_a_command_gets_the_mode_where_it_has_compile_in_braces() -> None:
    request = requested(argv=("sh", "x.sh", "--mode={compile}"), compile="off,max-autotune")
    assert [(spec.argv[-1], spec.compile, spec.compile_mode) for spec in expand.expand(request)] == [
        ("--mode=off", False, ""),
        ("--mode=max-autotune", True, "max-autotune"),
    ]
    with pytest.raises(UsageError, match=r"train\.py has no compile modes"):
        expand.expand(requested(argv=("sh", "--compile={compile}"), compile="max-autotune", parser="nanogpt"))


def test_a_mode_that_adds_nothing_on_the_device_is_said_to(tmp_path: Path) -> None:
    notes = plan(requested(workload="toy", device="cpu", compile="on,reduce-overhead")).warnings
    assert any("reduce-overhead" in note and "CUDA graphs" in note for note in notes)
    assert not any("CUDA graphs" in note for note in plan(requested(workload="toy", device="cpu")).warnings)


def test_completion_offers_the_modes() -> None:
    assert {*COMPILE_MODES} <= {*_FIXED["compile"]}
