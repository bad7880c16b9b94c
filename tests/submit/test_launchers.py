"""Training command lines: several processes, and flags that a Trainer no longer has."""

from __future__ import annotations

from pathlib import Path

import pytest

from queue_runner.errors import UsageError
from queue_runner.paths import jobs_dir
from queue_runner.submit import launchers, plan
from queue_runner.workloads import catalog
from tests.submit_support import requested

SEVERAL = [
    ("torchrun --nproc_per_node=4 train.py", "torchrun --nproc_per_node=4"),
    ("torchrun --nproc-per-node 2 train.py", "torchrun --nproc_per_node=2"),
    ("/opt/venv/bin/torchrun --nnodes 1:2 train.py", "torchrun --nnodes=1:2"),
    ("python -m torch.distributed.run --nproc_per_node 8 train.py", "torch.distributed.run --nproc_per_node=8"),
    ("caffeinate -i accelerate launch --num_processes 2 run_glue.py", "accelerate --num_processes=2"),
    ("accelerate launch --multi_gpu run_glue.py", "accelerate launch --multi_gpu"),
    ("torchrun --nproc_per_node=cpu train.py", "torchrun --nproc_per_node=cpu"),
]
ONE = [
    "torchrun train.py",
    "torchrun --nproc_per_node=1 train.py --nproc_per_node=4",
    "torchrun --nproc_per_node=gpu train.py",
    "accelerate launch run_glue.py --num_processes 4",
    "accelerate config --num_processes 4",
    "python train.py --num_processes 4",
    "python torchrun_like.py -np 4",
    "python -m torch.distributed.run train.py",
    "deepspeed train.py --num_gpus 2",
]


@pytest.mark.parametrize(("command", "how"), SEVERAL)
def test_several_processes_are_recognised(command: str, how: str) -> None:
    assert launchers.several(command.split()) == how
    assert launchers.several(["sh", "-c", f"cd x && {command}"]) == how
    with pytest.raises(UsageError, match="neither gloo nor nccl"):
        launchers.refuse_several_on_mps(command.split(), "mps", {})
    launchers.refuse_several_on_mps(command.split(), "cpu", {})
    launchers.refuse_several_on_mps(command.split(), None, {"WORLD_SIZE": "2"})


@pytest.mark.parametrize("command", ONE)
def test_one_process_is_left_alone(command: str) -> None:
    assert launchers.several(command.split()) is None
    launchers.refuse_several_on_mps(command.split(), "mps", {"WORLD_SIZE": "1"})


@pytest.mark.parametrize(("program", "hint"), [("torchrun", "VENV/bin/torchrun"), ("nope", "PATH")])
def test_a_launcher_that_is_not_on_the_path_has_a_remedy(program: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f'no program "{program}"') as caught:
        plan.plan(requested(argv=(program, "train.py"), env=(f"PATH={tmp_path}",)))
    assert hint in caught.value.hint


@pytest.mark.parametrize("device", ["mps", "cpu,mps", None])
def test_a_launcher_that_is_not_on_the_path_is_refused_on_mps_too(device: str | None, tmp_path: Path) -> None:
    """The remedy of a missing program would be to install what is refused then."""
    argv = ("torchrun", "--nproc_per_node=2", "train.py", "--device={device}" if device else "--device=mps")
    with pytest.raises(UsageError, match="torchrun --nproc_per_node=2: several processes"):
        plan.plan(requested(argv=argv, device=device, env=(f"PATH={tmp_path}",)))


def test_submit_refuses_them_on_mps(tmp_path: Path) -> None:
    program = tmp_path / "torchrun"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    argv = (str(program), "--nproc_per_node=2", "train.py", "--device={device}")
    with pytest.raises(UsageError, match="torchrun --nproc_per_node=2: several processes"):
        plan.plan(requested(argv=argv, device="cpu,mps"))
    assert len(plan.plan(requested(argv=argv, device="cpu")).jobs) == 1
    with pytest.raises(UsageError, match="WORLD_SIZE=3: several processes"):
        plan.plan(requested(workload="glue", device="mps", env=("WORLD_SIZE=3",)))


def test_removed_flags_get_a_sentence() -> None:
    def flags(command: str) -> list[str]:
        return [text.split()[0] for text in launchers.removed(command.split())]

    guide = "python run_glue.py --use_mps_device --output_dir /tmp/x --no_cuda --evaluation_strategy=epoch"
    assert flags(guide) == ["--evaluation_strategy", "--use_mps_device"]
    assert flags("python mnist.py --no-cuda --logging_dir x") == []  # may be anybody's
    assert flags("python x.py --per-gpu-train-batch-size 4") == ["--per_gpu_train_batch_size"]
    assert flags("python run_glue.py --use_cpu --eval_strategy epoch --output_dir x") == []
    assert "--use_cpu" in launchers.removed(["sh", "-c", "echo 'unended --use_mps_device"])[0]


def test_a_key_that_is_gone_says_what_to_write() -> None:
    glue = catalog.find(jobs_dir(), "glue")
    for key, hint in (("use_mps_device", "--device mps"), ("evaluation_strategy", "eval_strategy")):
        with pytest.raises(UsageError) as caught:
            plan.plan(requested(workload="glue", sets=(f"{key}=true",)))
        assert hint in caught.value.hint and hint in glue.gone[key]
    assert not (glue.gone.keys() | glue.aliases.keys()) & glue.params.keys()
    assert not glue.gone.keys() & glue.aliases.keys()


def test_the_words_of_run_glue_are_understood() -> None:
    """max_seq_length is max_length: one question has one name, whichever was typed."""
    typed = ("task_name=sst2", "max_seq_length=64,128", "per_device_train_batch_size=32", "learning_rate=2e-5")
    ours = ("data=sst2", "max_length=64,128", "batch_size=32", "lr=2e-5")
    a, b = ([job.spec for job in plan.plan(requested(workload="glue", sets=sets)).jobs] for sets in (typed, ours))
    assert a == b and [spec.params["max_length"] for spec in a] == [64, 128]
    with pytest.raises(UsageError, match="max_length and max_seq_length are the same setting"):
        plan.plan(requested(workload="glue", sets=("max_length=64", "max_seq_length=128")))
    (search,) = plan.plan(requested(workload="glue", find_max="per_device_train_batch_size=4")).jobs
    assert search.spec.find_max == "batch_size=4" and search.spec.params["batch_size"] == 4
    refused = pytest.raises(UsageError, match="max_length=4: it cannot be less than 8")
    with refused:
        plan.plan(requested(workload="glue", sets=("max_seq_length=4",)))
