"""The command line by hand: what is refused, with which exit code, and how the program ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from queue_runner import paths
from queue_runner.errors import MpsqError
from queue_runner.workloads import catalog, manifest
from tests.jobs.conftest import SCRIPT, Run, read, spawn

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "max_iter=3"], 'did you mean "max_iters"?'),
        (["--set", "wings=2"], 'no key "wings"'),
        (["--set", "max_iters"], "is not KEY=VALUE"),
        (["--set", "max_iters=many"], '"many" is not a whole number'),
        (["--set", "max_iters=3.5"], "is not a whole number"),
        (["--set", "max_iters=-1"], "cannot be less than 0"),
        (["--set", "log_interval=0"], "cannot be less than 1"),
        (["--set", "lr=fast"], "is not a number"),
        (["--set", "lr=nan"], "is not a number"),
        (["--set", "lr=-1"], "lr=-1.0: it cannot be less than 0"),
        (["--set", "bias=perhaps"], "is not true or false"),
        (["--set", "dropout=1"], "less than 1"),
        (["--set", "n_head=3"], "n_embd=16 is not divisible by n_head=3"),
        (["--set", "batch_size=0"], "cannot be less than 1"),
        (["--set", "threads=100000"], "threads=100000: this machine has"),
        (["--set", "adamw=quick"], 'adamw cannot be "quick"'),
        (["--set", "tokens=chars"], 'did you mean "char"? tokens is char or bpe'),
        (["--set", "data=no/such/file"], "cannot be read: No such file"),
        (["--set", "data=~no-such-user/file"], "a user that does not exist"),
        (["--set", "checkpoint_interval=5"], "give --out DIR"),
        (["--config", "shakespear_char"], 'did you mean "shakespeare_char"?'),
        (["--device", "gpu"], 'no device "gpu"'),
        (["--device", "cuda:x"], 'no device "cuda:x"'),
        (["--dtype", "fp64"], 'no dtype "fp64"'),
        (["--compile", "maybe"], "it is off, on or, in torch, reduce-overhead"),
        (["--seed", "-3"], "--seed -3 is not between"),
        (["--seed", "one"], "is not a whole number"),
        (["--wings"], "unrecognized arguments"),
        (["--resume"], "expected one argument"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_is_refused_in_a_sentence(run: Run, words: list[str], message: str) -> None:
    if words[0] == "--set" and "=" in words[1]:
        key, _, value = words[1].partition("=")
        ran = run(**{key: value})
    else:
        ran = run(*words)
    assert ran.code == 2
    assert ran.err.startswith("error: ") and message in ran.err and "Traceback" not in ran.err
    assert not ran.losses() and ran.events[-1]["type"] == "bye"


def test_the_queue_and_the_workload_refuse_the_same_values() -> None:
    """What is refused at submit would be refused by the run, and the other way round, in the same words."""
    from harness import command_line
    from harness.command_line import resolve
    from harness.errors import UsageError as Theirs

    n = 0
    for workload in catalog.workloads(paths.jobs_dir()):
        literal = resolve(manifest._literal(workload.file) or {})
        for name, param in workload.params.items():
            for text in _at_the_limits(param):
                ours = theirs = ""
                try:
                    catalog.value(workload, name, text)
                except MpsqError as error:
                    ours = f"{error.message} {error.hint}"
                try:
                    command_line.parse(literal, ["--set", f"{name}={text}"])
                except Theirs as error:
                    theirs = f"{error.message} {error.hint}"
                assert ours == theirs, (workload.name, name, text)
                n += bool(ours)
    assert n > 200


@pytest.mark.parametrize(
    ("words", "warmup"),
    [
        ([], 10),
        (["max_iters=10"], 4),
        (["max_iters=1"], 0),
        (["max_iters=2000"], 10),
        (["max_iters=9", "warmup_iters=8"], 8),
    ],
)
def test_a_short_run_has_half_of_its_iterations_measured(words: list[str], warmup: int) -> None:
    from harness import command_line

    literal = manifest._literal(paths.jobs_dir() / "nanogpt_torch.py") or {}
    options = command_line.parse(literal, [part for word in words for part in ("--set", word)])
    assert options.settings.warmup_iters == warmup


def _at_the_limits(param: manifest.Param) -> list[str]:
    near = [limit + step for limit in param.limits.values() for step in (-1, 0, 1)]
    words = [*param.choices, *param.each_of, "", "nan", "nope", "+".join(param.each_of), "fp32+fp99"]
    return [str(one) for one in (*near, *words, param.default)]


def test_the_literals_name_what_there_is() -> None:
    import kernels_torch

    from harness.microbench import matmul
    from harness.opcheck import samples
    from harness.torch_backend.training import FLAGS

    requested = {workload.name: workload.params for workload in catalog.workloads(paths.jobs_dir())}
    tiny = SimpleNamespace(batch=1, length=1, width=1, heads=1, channels=1, image=1)
    assert requested["kernels"]["op"].choices == ("all", *kernels_torch.ops(tiny))
    assert requested["opcheck"]["types"].each_of == tuple(samples.TYPES)
    assert requested["matmul"]["largest"].limits["least"] == matmul.PEAK_SIZES[0]
    for name, key in (("nanogpt", "adamw"), ("bert", "adamw"), ("resnet50", "sgd"), ("vgg16", "sgd")):
        assert requested[name][key].choices == ("auto", *FLAGS)


@pytest.mark.parametrize("device", ["cuda:99", "mps", "cuda"])
def test_a_device_that_is_not_there_is_exit_code_69_and_a_note(run: Run, device: str) -> None:
    from harness.torch_backend.device import why_not

    if why_not(device) is None:
        pytest.skip(f"{device} is there")
    ran = run("--device", device)
    assert ran.code == 69 and list(ran.notes()) == ["device_unavailable"]
    assert f'device "{device}" is unavailable: ' in ran.err and "compute here: cpu" in ran.err


def test_auto_takes_a_device_that_computes(run: Run) -> None:
    from harness.torch_backend.device import why_not

    ran = run("--device", "auto")
    assert ran.code == 0 and why_not(ran.hello()["device"]) is None


def test_a_device_that_computes_wrongly_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from harness.torch_backend.device import why_not

    monkeypatch.setattr(torch, "equal", lambda a, b: False)
    assert "wrong product" in str(why_not("cpu"))


def test_by_hand_without_the_queue(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--device", "cpu", "--set", "max_iters=2", "--set", "n_layer=1"],
        cwd=tmp_path,
        env={"PATH": "", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    written = {path.name for path in tmp_path.iterdir()} - {".nv"}  # CUDA's own cache
    assert "iter      0" in done.stdout and "median" not in done.stderr and not written


def test_help_lists_every_key(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--help"], capture_output=True, text=True, check=True)
    facts = ("max_iters=150 ", "=150 [iterations] (at least 0)", "adamw=auto (auto |", "| foreach | loop)")
    assert all(fact in done.stdout for fact in facts)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_at_once_and_without_a_traceback(tmp_path: Path, number: signal.Signals) -> None:
    process = spawn(tmp_path, max_iters=10_000_000, log_interval=1)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("iter"):
            break
    process.send_signal(number)
    _, err = process.communicate()
    assert process.returncode == -number and err == ""
    assert read(tmp_path / "events.jsonl")[0]["type"] == "phase"


def test_an_interpreter_without_torch_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-S", str(SCRIPT)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and done.stderr.startswith('error: "torch" ')
    assert "--python" in done.stderr
