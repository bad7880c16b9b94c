"""--gpus: a question of its own above 1, and a sentence where a run has one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from queue_runner.errors import UsageError
from queue_runner.paths import Layout
from queue_runner.spec import JobSpec
from queue_runner.submit import expand, gpus
from queue_runner.submit.plan import plan
from queue_runner.workloads.command_line import build_argv
from tests.submit_support import requested


def one(**fields: object) -> JobSpec:
    said: dict[str, object] = {"workload": "nanogpt", "device": "cpu", "sets": ("grad_accum=4",), **fields}
    (spec,) = expand.expand(requested(**said))  # type: ignore[arg-type]
    return spec


def test_it_is_part_of_the_question_above_one(tmp_path: Path) -> None:
    alone, two = one(), one(gpus=2)
    assert one(gpus=1) == alone and (alone.gpus, two.gpus) == (1, 2)
    assert two.label().endswith(" gpus=2")
    assert two.content_hash() != alone.content_hash()
    words = build_argv(two, tmp_path)
    assert words[words.index("--gpus") + 1] == "2" and "--gpus" not in build_argv(alone, tmp_path)


def test_a_job_of_before_is_of_one_gpu_and_has_the_hash_that_it_had() -> None:
    old = json.loads(JobSpec(kind="workload", name="x").to_json())
    del old["gpus"]
    found = JobSpec.from_json(json.dumps(old))
    assert found.gpus == 1
    assert found.content_hash() == "5de80686892f79c0da01f2f221f797179372bf5a8b0c6f1b17a7650ce0458781"


@pytest.mark.parametrize(
    ("fields", "said", "hint"),
    [
        ({"gpus": 0}, "--gpus 0 is not a number of GPUs", "1 or more"),
        ({"gpus": -2}, "--gpus -2 is not a number of GPUs", "1 or more"),
        ({"device": "mps"}, "--device mps runs on one GPU only", "--device cpu"),
        ({"device": "cuda:1"}, "cuda:1 names one GPU", "--device cuda"),
        ({"framework": "jax"}, "nanogpt in jax trains in one process", "nanogpt in torch"),
        ({"workload": "matmul", "sets": ()}, "matmul in torch trains in one process", "nanogpt in torch"),
        ({"workload": "lightning_gpt"}, "lightning_gpt in torch trains in one process", "nanogpt in torch"),
        ({"sets": ("mode=sample", "grad_accum=2")}, "mode=sample runs in one process", "remove --gpus"),
        ({"sets": ()}, "grad_accum=1 is not divisible by --gpus 2", "grad_accum=2"),
        ({"gpus": 3}, "grad_accum=4 is not divisible by --gpus 3", "grad_accum=3"),
        ({"find_max": "batch_size"}, "--find-max works with one GPU only", "remove --gpus"),
    ],
)
def test_what_it_cannot_be_is_a_sentence(fields: dict[str, object], said: str, hint: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        one(**{"gpus": 2, **fields})
    assert hint in caught.value.hint


def test_more_than_this_machine_has_is_refused_where_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_count", lambda: 1)
    with pytest.raises(UsageError, match="--gpus 2: this machine has 1"):
        one(gpus=2, device="cuda")
    assert one(gpus=2).gpus == 2, "processes of the CPU need no GPU"
    monkeypatch.setattr(gpus, "_count", lambda: 0)  # unknown
    assert one(gpus=2, device="cuda").gpus == 2


def test_a_command_keeps_its_own_launcher_and_the_number_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    argv = ("env", "torchrun", "--nproc-per-node", "2", "train.py")
    (job,) = plan(requested(argv=argv, gpus=2, cwd=str(tmp_path))).jobs
    assert job.spec.gpus == 2 and tuple(build_argv(job.spec, tmp_path)) == argv
    assert "CUDA_VISIBLE_DEVICES" not in job.spec.env
    with pytest.raises(UsageError, match="mps"):
        plan(requested(argv=argv, gpus=2, cwd=str(tmp_path), device="mps"))


def test_with_lanes_a_command_takes_the_gpus_that_it_asks_for_and_else_the_machine(layout: Layout) -> None:
    def submitted(**fields: object) -> tuple[str | None, str]:
        made = plan(requested(argv=("true",), home=str(layout.home), **fields))
        return made.jobs[0].spec.device, " ".join(made.warnings)

    assert submitted(gpus=1)[0] is None and "--gpus 1" not in submitted()[1]
    layout.config.write_text('lanes = "auto"\n')
    assert submitted()[0] is None and all(x in submitted()[1] for x in ("nothing else runs", "--gpus 1"))
    assert submitted(gpus=1)[0] == "cuda" and "takes 1 GPU" in submitted(gpus=1)[1]
    assert submitted(device="cpu")[0] == "cpu" and "alone" not in submitted(device="cpu")[1]
    layout.config.write_text('lanes = "cpu:0,cpu:1"\n')
    assert submitted(gpus=1)[0] is None
