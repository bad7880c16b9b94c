"""Which jobs wait for a quiet machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from queue_runner.errors import UsageError
from queue_runner.host import nvidia
from queue_runner.submit import plan
from tests.submit_support import requested


def gates(tmp_path: Path, *argv: str, **options: Any) -> list[tuple[bool, float | None]]:
    planned = plan.plan(requested(argv=argv or ("true",), cwd=str(tmp_path), **options))
    return [(job.spec.gate, job.spec.gate_s) for job in planned.jobs]


def test_a_comparison_waits_and_a_single_command_does_not(tmp_path: Path) -> None:
    assert gates(tmp_path) == gates(tmp_path, repeats=4) == [(False, None)]
    assert gates(tmp_path, measures=True) == [(True, None)], "mpsq bench, mpsq run"
    assert gates(tmp_path, "echo", "{lr}", sets=("lr=1,2",)) == [(True, None)] * 2
    assert gates(tmp_path, gate_timeout_s=60.0) == [(True, 60.0)]
    assert gates(tmp_path, "echo", "{n}", find_max="n=8:9", measures=True) == [(False, None)], "nothing is timed"


def test_the_gate_can_be_left_open(tmp_path: Path) -> None:
    assert gates(tmp_path, "echo", "{lr}", sets=("lr=1,2",), no_gate=True) == [(False, None)] * 2
    assert gates(tmp_path, measures=True, no_gate=True) == [(False, None)]
    with pytest.raises(UsageError, match="contradict"):
        gates(tmp_path, no_gate=True, gate_timeout_s=60.0)
    with pytest.raises(UsageError, match="contradict"):  # said before the number of runs, as ever
        gates(tmp_path, no_gate=True, gate_timeout_s=60.0, repeats=200_000)


def test_it_is_no_part_of_the_question(tmp_path: Path) -> None:
    one, other = (plan.plan(requested(argv=("true",), cwd=str(tmp_path), measures=gate)) for gate in (False, True))
    assert one.jobs[0].spec.content_hash() == other.jobs[0].spec.content_hash()


def test_a_note_on_a_long_word_that_names_the_folder(tmp_path: Path) -> None:
    script = f"path='{tmp_path}'; {'true; ' * 1000}"
    notes = plan.plan(requested(argv=("sh", "-c", script), cwd=str(tmp_path))).warnings
    assert any(f"names {tmp_path}:" in note for note in notes)


@pytest.mark.parametrize(
    ("name", "is_noted"), [("12", True), ("g4", True), ("12.3", True), ("@last", True), ("gpt2", False)]
)
def test_a_note_on_a_name_that_commands_read_as_an_id(tmp_path: Path, name: str, is_noted: bool) -> None:
    notes = plan.plan(requested(argv=("true",), cwd=str(tmp_path), name=name)).warnings
    assert any(f'mpsq reads "{name}" as an id' in note for note in notes) is is_noted


@pytest.mark.parametrize(
    ("argv", "is_noted"),
    [
        (("python", "train.py", "7"), True),
        (("python3.12", "{n}.py"), True),
        (("python", "there.py"), False),
        (("python", "-m", "train.py"), False),
        (("sh", "train.py"), False),
    ],
)
def test_a_note_on_a_script_that_is_not_there(tmp_path: Path, argv: tuple[str, ...], is_noted: bool) -> None:
    """A night's runs failed for a word that was typed wrongly; one that is still to be written may be submitted."""
    (tmp_path / "there.py").touch()
    sets = {"n": ("there", "train")} if "{n}.py" in argv else {}
    notes = plan.plan(requested(argv=argv, cwd=str(tmp_path), sets=sets)).warnings
    assert any(f"train.py in {tmp_path}: " in note for note in notes) is is_noted


def test_the_remedy_for_an_empty_value_is_accepted() -> None:
    """It was `--set lr a,b`, which is refused."""
    with pytest.raises(UsageError) as refused:
        plan.plan(requested(argv=("echo", "{lr}"), sets=("lr=",)))
    assert refused.value.hint.endswith("--set lr=a,b")


def test_a_note_on_a_warm_up_that_leaves_nothing_to_measure() -> None:
    sets = ("max_iters=10", "warmup_iters=9")
    notes = plan.plan(requested(workload="nanogpt", device="cpu", sets=sets)).warnings
    assert any("measures no iteration" in note and "max_iters to 11" in note for note in notes)
    notes = plan.plan(requested(workload="nanogpt", device="cpu", sets=("max_iters=11", "warmup_iters=9"))).warnings
    assert not any("measures no iteration" in note for note in notes)


@pytest.mark.parametrize("has_driver", [False, True])
def test_a_note_on_a_cuda_device_that_is_not_here(monkeypatch: pytest.MonkeyPatch, has_driver: bool) -> None:
    """It was accepted without a word, and its runs ended as DEVICE_UNAVAILABLE. Another machine may run it."""
    monkeypatch.setattr(nvidia, "has_driver", lambda: has_driver)
    monkeypatch.setattr("queue_runner.submit.notes.AMD_DRIVER", Path("nowhere"))
    for given in ({"workload": "nanogpt"}, {"argv": ("true",)}):
        warnings = plan.plan(requested(device="cuda:1", **given)).warnings
        assert any("no GPU for cuda" in note for note in warnings) is not has_driver
        assert not any("no GPU for cuda" in note for note in plan.plan(requested(device="cpu", **given)).warnings)
