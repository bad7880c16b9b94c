"""resnet50, vgg16 and bert: against what is known of them, in training and in mode=eval."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from harness import command_line, errors
from harness.command_line import resolve
from harness.data import examples
from harness.data.images import read as read_image
from harness.torch_backend import classifying
from harness.torch_backend.device import open_device
from harness.torch_backend.flops import forward_flops
from harness.torch_backend.main import main
from harness.torch_backend.training import sgd
from queue_runner.paths import Layout
from tests.forked_programs import work
from tests.jobs.conftest import JOBS, Ran, read
from tests.jobs.test_through_the_queue import mpsq, rows

pytestmark = pytest.mark.slow

IMAGES = ("resnet50", "vgg16")
MODELS = (*IMAGES, "bert")
BRIEF = {"max_iters": 4, "warmup_iters": 1, "eval_interval": 0, "threads": 1}
ALL = {"resnet50": {"side": 32, "images": 36}, "vgg16": {"side": 32, "images": 36}, "bert": {"sequences": 36}}
"""Small enough for a moment: 32 examples to train on, 4 to evaluate."""


def job(name: str) -> Any:
    return importlib.import_module(f"{name}_torch")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Two threads on a machine with other work wait for each other most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def words_of(*words: str, **settings: object) -> list[str]:
    chosen = BRIEF | settings
    sets = [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]
    return ["--device", "cpu", "--config", "toy", *words, *sets]


def built(name: str, **settings: object) -> Any:
    """A Training, with nothing run."""
    options = command_line.parse(job(name).WORKLOAD, words_of(**ALL[name] | settings))
    return job(name).build(options, open_device("cpu"))


class Run:
    """Runs a model in this process: run("vgg16", "--dtype", "bf16", mode="eval")."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder, self._monkeypatch, self._capsys, self._count = folder, monkeypatch, capsys, 0

    def __call__(self, name: str, *words: str, build: Any = None, **settings: object) -> Ran:
        self._count += 1
        path = self._folder / f"events-{self._count}.jsonl"
        self._monkeypatch.setenv("MPSQ_EVENTS", str(path))
        argv = words_of(*words, **ALL[name] | settings)
        code = main(job(name).WORKLOAD, build or job(name).build, argv=argv, **classifying.PARTS)
        captured = self._capsys.readouterr()
        return Ran(code, read(path), captured.out, captured.err)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    for name in ("MPSQ_OUT", "MPSQ_T0"):
        monkeypatch.delenv(name, raising=False)
    yield Run(tmp_path, monkeypatch, capsys)


# -- against what is published --------------------------------------------------------------------------------------


def on_meta(name: str) -> Any:
    """The model of the first preset, without numbers in it."""
    s = command_line.parse(job(name).WORKLOAD, []).settings
    with torch.device("meta"):
        if name == "bert":
            return job(name).Bert(s)
        return (job(name).ResNet50 if name == "resnet50" else job(name).VGG16)(s)


@pytest.mark.parametrize(
    ("name", "n_params"), [("resnet50", 25_557_032), ("vgg16", 138_357_544), ("bert", 109_483_778)]
)
def test_models_have_the_published_number_of_parameters(name: str, n_params: int) -> None:
    assert sum(p.numel() for p in on_meta(name).parameters()) == n_params


@pytest.mark.parametrize(("name", "published"), [("resnet50", 4.09e9), ("vgg16", 15.47e9)])
def test_a_forward_is_the_published_work(name: str, published: float) -> None:
    """torchvision's documentation gives these as multiplications with an addition each."""
    image = torch.empty(1, 3, 224, 224, dtype=torch.uint8, device="meta")
    assert forward_flops(on_meta(name), image) == pytest.approx(2 * published, rel=1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_the_work_is_what_torch_counts(name: str) -> None:
    """torch.utils.flop_counter sees each product as it is computed; the backward lacks the first layer's gradient by
    the images, which is much of so narrow a network."""
    training = built(name, **({"attention": "eager"} if name == "bert" else {}))
    batch = training.pool.take("train", training.order.of_iteration(0))
    with FlopCounterMode(display=False) as forward, torch.no_grad():
        training.model(*batch)
    with FlopCounterMode(display=False) as both:
        training.model(*batch)[0].backward()
    assert 3 * forward.get_total_flops() == training.flops_per_iter
    assert both.get_total_flops() == pytest.approx(
        training.flops_per_iter, rel={"resnet50": 0.07, "vgg16": 0.02, "bert": 0.0}[name]
    )
    assert built(name, mode="eval").flops_per_iter == training.flops_per_iter / 3


@pytest.mark.parametrize("name", MODELS)
def test_presets_set_known_keys_in_the_types_of_their_defaults(name: str) -> None:
    literal = resolve(job(name).WORKLOAD)
    params = literal["params"]
    for values in (*literal["configs"].values(), *literal["modes"].values()):
        assert all(type(value) is type(params[key]["default"]) for key, value in values.items())
    batch = {"resnet50": 128, "vgg16": 64, "bert": 64}[name]
    assert command_line.parse(job(name).WORKLOAD, []).settings.batch_size == batch


# -- training -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("resnet50", {"images": 9, "side": 64, "max_iters": 16, "lr": 0.02}),
        ("vgg16", {"images": 9, "max_iters": 20, "dropout": 0.0}),
        ("bert", {"sequences": 9, "max_iters": 30, "dropout": 0.0}),
    ],
)
def test_a_model_overfits_one_batch(run: Run, name: str, settings: dict[str, object]) -> None:
    losses = run(name, **settings).losses()
    assert losses[-1] < 0.15 * losses[0], losses


@pytest.mark.parametrize(
    ("name", "known"), [("resnet50", [2.74807, 2.49403]), ("vgg16", [2.47301, 2.55533]), ("bert", [0.692545, 0.687678])]
)
def test_a_seed_gives_the_same_losses_in_every_run(run: Run, name: str, known: list[float]) -> None:
    """Known from this file's first run: weights, examples and their order follow from the seed."""
    ran, again, other = (run(name, "--seed", seed, max_iters=2) for seed in ("1", "1", "2"))
    assert ran.losses() == again.losses() != other.losses()
    assert ran.losses() == pytest.approx(known, abs=1e-3)
    assert ran.hello()["data"]["sha256"] == again.hello()["data"]["sha256"] != other.hello()["data"]["sha256"]


@pytest.mark.parametrize("name", MODELS)
def test_hello_counts_samples(run: Run, name: str) -> None:
    hello = run(name, max_iters=1).hello()
    assert hello["samples_per_iter"] == 8 and "tokens_per_iter" not in hello
    assert (hello["workload"], hello["optimizer"].partition("(")[0]) == (name, "AdamW" if name == "bert" else "SGD")
    hello = run(name, max_iters=1, mode="eval").hello()
    assert hello["workload"] == f"{name}-eval" and "optimizer" not in hello
    assert ("transformers" in hello["versions"]) or name != "bert"


@pytest.mark.parametrize("name", IMAGES)
def test_layout_and_place_of_the_images_change_nothing(run: Run, name: str) -> None:
    plain = run(name).losses()
    assert run(name, pool="host").losses() == plain
    observed: set[bool] = set()

    def build(options: Any, device: Any) -> Any:
        training = job(name).build(options, device)
        first = next(part for part in training.model.modules() if isinstance(part, nn.Conv2d))
        first.register_forward_hook(lambda m, x, y: observed.add(y.is_contiguous(memory_format=torch.channels_last)))
        return training

    ran = run(name, build=build, channels_last="true", side=64)
    assert observed == {True} and "wrong_loss" not in ran.notes()
    assert ran.losses() == pytest.approx(run(name, side=64).losses(), abs=2e-3)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_bf16_is_close(run: Run, name: str, mode: str) -> None:
    ran = run(name, "--dtype", "bf16", mode=mode, max_iters=1, **({} if name == "bert" else {"side": 64}))
    result = ran.metrics()
    assert ran.code == 0 and "wrong_loss" not in ran.notes(), ran.err
    assert result["reference_loss_device"] != result["reference_loss_cpu"], "it is not fp32"


def test_a_checkpoint_is_gone_on_from(run: Run, tmp_path: Path) -> None:
    whole = run("resnet50", max_iters=4)
    run("resnet50", "--out", str(tmp_path), max_iters=2)
    assert not (tmp_path / "weights.npz").exists(), "nothing takes it"
    resumed = run("resnet50", "--resume", str(tmp_path / "checkpoint.pt"), max_iters=4)
    assert resumed.losses() == whole.losses()[2:]
    other = run("resnet50", "--resume", str(tmp_path / "checkpoint.pt"), max_iters=4, lr=1e-5)
    assert other.losses()[0] == whole.losses()[2] and other.losses()[1] != whole.losses()[3]


# -- batch normalisation and the reference --------------------------------------------------------------------------


def test_the_reference_is_that_of_the_whole_batch_as_training_computes_it(run: Run) -> None:
    """16 images are two parts of REFERENCE_ROWS: with statistics of the parts the loss would be another one."""
    ran = run("resnet50", batch_size=16, max_iters=1)
    assert ran.metrics()["reference_loss_cpu"] == pytest.approx(ran.losses()[0], abs=1e-6)
    ran = run("resnet50", batch_size=16, max_iters=1, mode="eval")
    assert ran.metrics()["reference_loss_cpu"] == pytest.approx(ran.losses()[0], abs=1e-5)


def test_the_reference_leaves_what_batch_normalisation_keeps(run: Run) -> None:
    training = built("resnet50")
    norms = [part for part in training.model.modules() if isinstance(part, nn.BatchNorm2d)]
    assert all(bool((norm.running_mean == 0).all()) and bool((norm.running_var == 1).all()) for norm in norms)

    def build(options: Any, device: Any) -> Any:
        made = job("resnet50").build(options, device)
        made.forward = lambda *batch: made.model(*batch)  # not the model itself, so that it is checked
        return made

    assert run("resnet50", build=build, eval_interval=4).out.count("\neval ") == 2
    checked, plain = run("resnet50", build=build, eval_interval=4), run("resnet50", eval_interval=4)
    assert [e["metrics"] for e in checked.of("eval")] == [e["metrics"] for e in plain.of("eval")]


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_wrong_normalisation_is_found_in_either_mode(run: Run, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """A device whose kernel for this mode is off by a tenth of a deviation, in one layer of 53."""

    def build(options: Any, device: Any) -> Any:
        training = job("resnet50").build(options, device)
        norm = training.model.blocks[7].norm2
        norm.register_forward_hook(lambda m, x, y: y + 0.1 if m.training == (mode == "train") else y)
        training.forward = lambda *batch: training.model(*batch)
        return training

    assert "wrong_loss" in run("resnet50", build=build, mode=mode, side=64).notes()


# -- mode=eval ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_evaluation_is_the_forward_of_the_trained_model(name: str) -> None:
    """The losses of mode=eval are those of the training's model, put into evaluation, on the same batches."""
    trains, evaluates = built(name), built(name, mode="eval")
    for i in range(3):
        classifying.step(trains, i)
    evaluates.model.load_state_dict(trains.model.state_dict())
    trains.model.eval()
    for i in range(3):
        x, y = trains.pool.take("train", trains.order.of_iteration(i))
        with torch.no_grad():
            logits = trains.model.logits(x)
        with torch.inference_mode():
            assert torch.equal(evaluates.model.logits(x), logits)
        loss = classifying.infer(evaluates, i)
        assert float(loss) == pytest.approx(float(nn.functional.cross_entropy(logits, y)), abs=1e-6)
        assert loss.is_inference() and not loss.requires_grad


@pytest.mark.parametrize("name", MODELS)
def test_evaluating_changes_no_weight_and_no_statistics(run: Run, name: str) -> None:
    made: list[Any] = []

    def build(options: Any, device: Any) -> Any:
        made.append(job(name).build(options, device))
        made.append({key: value.clone() for key, value in made[0].model.state_dict().items()})
        return made[0]

    ran = run(name, build=build, mode="eval", max_iters=6, eval_interval=3)
    training, before = made
    assert all(torch.equal(value, before[key]) for key, value in training.model.state_dict().items())
    assert not training.model.training and not training.optimizer.state
    assert ran.code == 0 and len(ran.of("eval")) == 4 and len(ran.losses()) == 6
    assert [e["phase"] for e in ran.of("iter")] == ["warmup"] * 2 + ["measure"] * 4
    assert all(e["synced"] for e in ran.of("iter"))
    losses = ran.losses()
    assert losses[:4] != losses[:1] * 4, "each iteration has its own batch"


def test_untrained_statistics_do_not_blow_up_the_evaluation() -> None:
    training = built("resnet50", mode="eval", side=64)
    assert training.reference.cpu == pytest.approx(np.log(10), abs=0.5)


@pytest.mark.parametrize(
    ("words", "settings", "message"),
    [
        ([], {"mode": "evaluate"}, 'did you mean "eval"?'),
        ([], {"mode": "sample"}, "mode is train or eval"),
        (["--out", "there"], {"mode": "eval"}, "neither reads nor writes checkpoints"),
        (["--resume", "checkpoint.pt"], {"mode": "eval"}, "neither reads nor writes"),
        ([], {"mode": "eval", "checkpoint_interval": 2}, "neither reads nor writes"),
        ([], {"side": 48}, "a multiple of 32"),
        ([], {"batch_size": 0}, "cannot be less than 1"),
        ([], {"images": 1}, "cannot be less than 2"),
        ([], {"classes": 1}, "classes=1: it cannot be less than 2"),
        ([], {"pool": "disk"}, 'pool cannot be "disk"'),
        ([], {"sgd": "adam"}, "sgd is auto, fused, foreach or loop"),
        ([], {"momentum": 1}, "less than 1"),
        ([], {"data": "no/such/folder"}, "cannot be read: No such file"),
        ([], {"data": "~no-such-user/folder"}, "a user that does not exist"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_a_sentence(
    run: Run, words: list[str], settings: dict[str, object], message: str
) -> None:
    ran = run("vgg16", *words, **settings)
    assert ran.code == 2 and message in ran.err and "Traceback" not in ran.err


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_one_number_a_channel_cannot_be_normalised(run: Run, mode: str) -> None:
    ran = run("resnet50", batch_size=1, side=32, mode=mode)
    assert ran.code == 2 and "batch normalisation" in ran.err and "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"block_size": 513}, "cannot be more than 512"), ({"vocab": 100}, "it must be more than 135"),
        ({"n_head": 3}, "not divisible"),
        ({"dropout": 1}, "less than 1"), ({"attention": "flash"}, "sdpa or eager"), ({"adamw": "adam"}, "adamw cannot"),
        ({"sequences": 1}, "less than 2"),
    ],
)  # fmt: skip
def test_what_bert_cannot_be_is_a_sentence(run: Run, settings: dict[str, object], message: str) -> None:
    ran = run("bert", **settings)
    assert ran.code == 2 and message in ran.err and "Traceback" not in ran.err


def test_without_transformers_bert_says_what_to_install() -> None:
    hide = (
        "import importlib.util as u, runpy; found = u.find_spec; "
        "u.find_spec = lambda name, *more: None if name == 'transformers' else found(name, *more); "
        "runpy.run_path('bert_torch.py', run_name='__main__')"
    )
    env = {**os.environ, "PYTHONPATH": str(JOBS)}
    done = subprocess.run([sys.executable, "-c", hide], cwd=JOBS, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.startswith('error: "transformers" ')
    assert "pip install transformers" in done.stderr and "Traceback" not in done.stderr


# -- data -----------------------------------------------------------------------------------------------------------


def folder_of_arrays(folder: Path, per_class: int = 8, transposed: bool = False) -> Path:
    draw = np.random.Generator(np.random.PCG64(1))
    for name, grey in (("dark", 40), ("light", 200)):
        (folder / name).mkdir(parents=True)
        for k in range(per_class):
            image = np.full((40, 50, 3), grey, np.uint8) + draw.integers(0, 30, (40, 50, 3), np.uint8)
            np.save(folder / name / f"{k}.npy", image.transpose(2, 0, 1) if transposed else image)
    return folder


def test_a_folder_of_images_is_learned(run: Run, tmp_path: Path) -> None:
    data = folder_of_arrays(tmp_path / "photos")
    ran = run("resnet50", data=data, side=64, images=100, classes=2, max_iters=16, eval_interval=16)
    assert ran.code == 0 and ran.hello()["data"]["name"] == "photos", ran.err
    assert ran.of("eval")[-1]["metrics"]["accuracy"] == 1.0
    assert all(x in ran.out for x in ("14 images of 64 x 64", "2 to evaluate", "2 classes"))


def test_an_image_is_its_middle_square(tmp_path: Path) -> None:
    image = np.zeros((4, 8, 3), np.uint8)
    image[:, 2:6] = 200  # the middle square
    image[0, 2] = 7
    np.save(tmp_path / "one.npy", image)
    result = read_image(tmp_path / "one.npy", 4)
    assert result.shape == (3, 4, 4) and (result[:, 0, 0] == 7).all() and result[:, 1:].min() == 200
    assert (read_image(tmp_path / "one.npy", 2) == 200).all()
    np.save(tmp_path / "two.npy", image.transpose(2, 0, 1))
    assert np.array_equal(read_image(tmp_path / "two.npy", 4), result)


@pytest.mark.parametrize(
    ("break_", "message"),
    [
        (lambda p: (p / "dark" / "0.npy").write_bytes(b"nonsense"), "cannot be read"),
        (lambda p: (p / "dark" / "0.npy").write_bytes(b""), "cannot be read"),
        (lambda p: np.savez((p / "dark" / "0.npy").open("wb"), np.zeros((9, 9, 3), np.uint8)), "cannot be read"),
        (lambda p: (p / "dark" / "0.npy").write_bytes(b"PK\x03\x04 cut short"), "cannot be read"),
        (lambda p: np.save(p / "dark" / "0.npy", np.zeros((4, 4))), "array of bytes"),
        (lambda p: [(p / name).rename(p.parent / name) for name in ("dark", "light")], "no subfolder with images"),
        (lambda p: (p / "third").mkdir() or np.save(p / "third" / "a.npy", np.zeros((9, 9, 3), np.uint8)), "3 classes"),
    ],
)
def test_a_folder_that_is_no_good_is_a_sentence(
    run: Run, tmp_path: Path, break_: Callable[[Path], object], message: str
) -> None:
    data = folder_of_arrays(tmp_path / "photos", 2)
    break_(data)
    ran = run("vgg16", data=data, classes=2)
    assert ran.code in (1, 2) and message in ran.err and "Traceback" not in ran.err


def test_a_picture_needs_pillow_and_says_so(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = folder_of_arrays(tmp_path / "photos", 2)
    (data / "dark" / "0.jpg").write_bytes(b"\xff\xd8")
    monkeypatch.setitem(sys.modules, "PIL", None)
    ran = run("vgg16", data=data, classes=2)
    assert ran.code == 1 and "0.jpg" in ran.err
    assert "pip install pillow" in ran.err and "Traceback" not in ran.err


def test_a_picture_of_16_bits_is_not_white_and_one_too_large_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = pytest.importorskip("PIL.Image", reason="pillow is not installed: pictures are then refused")
    images.fromarray(np.full((8, 8), 100 * 257, np.uint16)).save(tmp_path / "x.png")
    assert (read_image(tmp_path / "x.png", 4) == 100).all()
    monkeypatch.setattr(images, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(errors.JobError, match="cannot be read"):
        read_image(tmp_path / "x.png", 4)


def test_a_picture_is_read_by_pillow(tmp_path: Path) -> None:
    images = pytest.importorskip("PIL.Image", reason="pillow is not installed: pictures are then refused")
    images.fromarray(np.full((10, 20, 3), 90, np.uint8)).save(tmp_path / "one.png")
    assert (read_image(tmp_path / "one.png", 8) == 90).all()


def test_every_epoch_has_every_example_once_and_a_batch_is_known_by_its_number() -> None:
    order = examples.Order(10, seed=1, batch_size=4)
    drawn = [order.of_iteration(i) for i in range(5)]
    assert sorted(np.concatenate(drawn)[:10]) == sorted(np.concatenate(drawn)[10:]) == list(range(10))
    assert list(np.concatenate(drawn)[:10]) != list(np.concatenate(drawn)[10:])
    assert np.array_equal(examples.Order(10, 1, 4).of_iteration(3), drawn[3])
    assert not np.array_equal(examples.Order(10, 2, 4).of_iteration(0), drawn[0])
    assert len(examples.Order(3, 1, 8).of_iteration(0)) == 8, "a batch may hold more than there are"
    assert examples.in_turn(5, 1, 4).tolist() == [4, 0, 1, 2]


def test_no_evaluation_pays_for_compilation(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch normalisation makes the forward of evaluations another one than the reference's: it is compiled once, in
    the phase of that name. The compiler here notes what phase is open, and compiles nothing."""
    phases: list[str] = []

    def compiler(graph: Any, inputs: Any) -> Any:
        open_now: list[str] = []
        for event in read(Path(os.environ["MPSQ_EVENTS"])):
            if event["type"] == "phase" and event["edge"] == "begin":
                open_now.append(event["name"])
            elif event["type"] == "phase":
                open_now.pop()
        phases.append(open_now[-1])
        return graph

    from harness.models.images import ImageClassifier
    from harness.models.images import build as build_classifier

    class Small(ImageClassifier):
        def __init__(self, s: Any) -> None:
            super().__init__()
            self.all = nn.Sequential(nn.Conv2d(3, 1, 32), nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(1, s.classes))

        def layers(self, x: torch.Tensor) -> torch.Tensor:
            return self.all(x)

    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, mode=None: compile_(model, backend=compiler))
    ran = run(
        "resnet50", "--compile", "on", max_iters=4, eval_interval=2, batch_size=4,
        build=lambda options, device: build_classifier(options, device, Small),
    )  # fmt: skip
    torch.compiler.reset()
    assert ran.code == 0 and len(ran.of("eval")) == 4, ran.err
    assert len(phases) >= 3 and set(phases) == {"compile"}


def test_compiled_convolutions_on_mps_come_with_a_hint() -> None:
    from harness.models.images import layout_hint

    assert "layout_optimization=off" in layout_hint("mps", True, {})
    for kind, compiled, environ in (
        ("mps", False, {}), ("cuda", True, {}), ("mps", True, {"TORCHINDUCTOR_LAYOUT_OPTIMIZATION": "0"}),
    ):  # fmt: skip
        assert layout_hint(kind, compiled, environ) == ""


# -- optimizer ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fused", "foreach", "loop"])
def test_every_sgd_is_the_same_optimizer(name: str) -> None:
    def train(implementation: str) -> torch.Tensor:
        weight = nn.Parameter(torch.linspace(-1, 1, 12))
        optimizer, optimizer_name = sgd(
            [{"params": [weight]}], implementation, open_device("cpu"), "fp32", lr=0.1, momentum=0.9
        )
        assert optimizer_name == f"SGD({'fused' if implementation == 'auto' else implementation})"
        for _ in range(5):
            weight.grad = weight.detach() ** 2
            optimizer.step()
        return weight.detach()

    assert torch.allclose(train(name), train("auto"), atol=1e-6)


# -- the whole ------------------------------------------------------------------------------------------------------


def test_training_and_evaluation_through_the_queue(layout: Layout) -> None:
    brief = ["--set", "max_iters=14", "--set", "warmup_iters=2", "--set", "side=32", "--set", "eval_interval=0"]
    mpsq(
        "submit",
        "--no-gate",
        "--no-preflight",
        "resnet50",
        "--config",
        "toy",
        "--device",
        "cpu",
        "--set",
        "mode=train,eval",
        *brief,
    )
    work()
    stored = rows(layout)
    assert [row["outcome"] for row in stored] == ["SUCCEEDED"] * 2
    by_name = {row["workload"]: row for row in stored}
    assert set(by_name) == {"resnet50", "resnet50-eval"}
    for row in stored:
        assert (row["n_iters"], row["n_measure"], row["samples_per_iter"]) == (14, 11, 8)
        assert not {"wrong_loss", "diverged"} & set((row["taints"] or "").split(","))
    assert by_name["resnet50"]["flops_per_iter"] == 3 * by_name["resnet50-eval"]["flops_per_iter"]
    shown_rows = json.loads(mpsq("report", "train-vs-infer", "--all", "--json"))["rows"]
    assert [(row["model"], row["kind"]) for row in shown_rows] == [("resnet50", "train"), ("resnet50", "eval")]
    assert all(row["unit"] == "samples/s" and row["rate"] > 0 for row in shown_rows)
