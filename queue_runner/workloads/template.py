"""`mpsq workloads new NAME`: a file that runs unchanged, to be edited into the user's own workload."""

from __future__ import annotations

import os
import re
from pathlib import Path

from queue_runner.errors import MpsqError, UsageError
from queue_runner.paths import Layout
from queue_runner.workloads import catalog

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")

TEMPLATE = '''\
# /// script
# requires-python = ">=3.10"
# dependencies = ["torch>=2.9", "numpy"]
# ///
"""@NAME@, in PyTorch. Queue it: mpsq submit @NAME@ --device cpu. Directly: PYTHONPATH=@JOBS@ python @FILE@"""

import math
import sys

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from harness.data.text import load as load_text
from harness.torch_backend.compiling import compiled
from harness.torch_backend.main import main
from harness.torch_backend.training import Reference, Training, adamw

WORKLOAD = {  # read without running this file: plain values only
    "name": "@NAME@", "framework": "torch", "unit": "tokens", "source": "",
    "about": "The next character from the last few, by a network of two layers.",
    "params": {
        "width": {"default": 128, "unit": "features", "help": "of the hidden layer"},
        "activation": {"default": "relu", "unit": "", "choices": ["relu", "gelu"], "help": "of the hidden layer"},
        "context": {"default": 8, "unit": "characters", "help": "that the network sees"},
        "batch_size": {"default": 256, "unit": "examples", "least": 1, "help": "in one iteration"},
        "lr": {"default": 3e-3, "unit": "", "help": "learning rate"},
        # read by the loop, which says what they mean: a default is enough
        "max_iters": 200, "warmup_iters": 10, "eval_interval": 100, "log_interval": 20, "checkpoint_interval": 0,
        "stop_on_nan": False, "threads": 0,
    },
    "configs": {"small": {}, "wide": {"width": 1024}},  # presets: --config
}  # fmt: skip


class Model(nn.Module):
    def __init__(self, vocab: int, s) -> None:
        super().__init__()
        self.embed, self.hidden = nn.Embedding(vocab, 32), nn.Linear(32 * s.context, s.width)
        self.out, self.activation = nn.Linear(s.width, vocab), getattr(nn.functional, s.activation)

    def forward(self, x, y):
        """The mean loss in nats, so that compiled and eager runs, devices and dtypes can be compared."""
        return cross_entropy(self.out(self.activation(self.hidden(self.embed(x).flatten(1)))), y)


def batch(tokens, s, generator):
    at = torch.randint(len(tokens) - s.context, (s.batch_size, 1), generator=generator)
    rows = tokens[at + torch.arange(s.context + 1)].long()
    return rows[:, :-1].contiguous(), rows[:, -1].contiguous()


def build(options, device):
    """All that is done once. Weights and batches are drawn on the CPU: every device gets the same ones."""
    s = options.settings
    text = load_text("pydoc", "char", s.context)
    torch.manual_seed(options.seed)
    model, generator = Model(text.vocab_size, s), torch.Generator().manual_seed(options.seed)
    tokens = {name: torch.frombuffer(part, dtype=torch.int32) for name, part in text.parts().items()}
    reference = Reference(model, batch(tokens["train"], s, generator.clone_state()))
    model.to(device.handle)
    optimizer, name = adamw([{"params": list(model.parameters())}], "auto", device, options.dtype, lr=s.lr)
    multiplied = sum(math.prod(p.shape) for p in (model.hidden.weight, model.out.weight))
    training = Training(
        options=options, device=device, model=model, forward=compiled(model, options),
        optimizer=optimizer, optimizer_name=name, generator=generator, reference=reference, data=text.fields(),
        scaler=torch.amp.GradScaler(device.kind, enabled=options.dtype == "fp16"),
        flops_per_iter=6.0 * multiplied * s.batch_size, per_iter=s.batch_size,  # 2 forward, 4 backward
    )  # fmt: skip
    training.tokens = tokens
    return training


def loss_of(training, split, generator):
    x, y = batch(training.tokens[split], training.options.settings, generator)
    with training.device.autocast(training.options.dtype):
        return training.forward(x.to(training.device.handle), y.to(training.device.handle))


def step(training, i):
    """Compute one iteration; all of it is timed. Return its loss, still on the device."""
    loss = loss_of(training, "train", training.generator)
    training.scaler.scale(loss).backward()
    training.scaler.step(training.optimizer)
    training.scaler.update()
    training.optimizer.zero_grad(set_to_none=True)
    return loss.detach()


@torch.no_grad()
def evaluate(training, split):
    """One split's metrics, by the same batches every time."""
    generator = torch.Generator().manual_seed(training.options.seed + 1)
    return {"loss": sum(float(loss_of(training, split, generator)) for _ in range(5)) / 5}


if __name__ == "__main__":
    sys.exit(main(WORKLOAD, build, step, evaluate))
'''


def write(layout: Layout, jobs: Path, name: str) -> Path:
    """Write the file for a new workload of this name and return its path. `jobs` is the folder of ours.

    Raises: UsageError for an invalid or taken name; MpsqError when the file exists or cannot be written.
    """
    if not _NAME.fullmatch(name) or name == "new":
        raise UsageError(
            f'a workload cannot be named "{name}"', "use lower-case letters, digits and _, such as my_model"
        )
    file = layout.workloads / f"{name}_torch.py"
    if any(workload.name == name for workload in catalog.workloads(jobs)) or (jobs / file.name).exists():
        raise UsageError(f'mpsq has a workload "{name}" of its own', "choose another name")
    same = [workload for workload in catalog.readable(layout.workloads) if workload.name == name]
    if same or file.exists():
        raise UsageError(f'workload "{name}" already exists', f"it is {same[0].file if same else file}")
    text = TEMPLATE.replace("@NAME@", name).replace("@JOBS@", str(jobs)).replace("@FILE@", str(file))
    try:
        layout.workloads.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise MpsqError(f"{file} cannot be written: {error.strerror}", "fix the permissions of its folder") from error
    return file
