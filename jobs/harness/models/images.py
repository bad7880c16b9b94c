"""What resnet50 and vgg16 have in common: images, their first weights, the optimizer, the work of a forward."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from types import SimpleNamespace

import torch
from torch import nn

from harness.command_line import Options
from harness.data.images import load as load_images
from harness.errors import UsageError
from harness.torch_backend import classifying
from harness.torch_backend.classifying import Classifier, Training
from harness.torch_backend.device import Device
from harness.torch_backend.flops import forward_flops
from harness.torch_backend.training import sgd

STRIDE = 32
"""Pixels of the image to one of the last layer, in each direction: an image's side is a multiple of it."""
MEAN, DEVIATION = 116.0, 58.0
"""Grey levels that are subtracted, and by which is divided: of ImageNet's three colours together."""


class ImageClassifier(Classifier):
    """Images as bytes (batch, 3, side, side) to logits (batch, classes), through `layers`."""

    channels_last = False
    """whether the device keeps the three colours of a pixel side by side (NHWC), and all features after them"""

    def layers(self, x: torch.Tensor) -> torch.Tensor:
        """Images of about zero mean and unit variance to logits."""
        raise NotImplementedError

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        x = (x.float() - MEAN) / DEVIATION
        return self.layers(x.contiguous(memory_format=torch.channels_last) if self.channels_last else x)


def build(options: Options, device: Device, make: Callable[[SimpleNamespace], ImageClassifier]) -> Training:
    """Images, model, reference loss, optimizer. `make` gives the model by the settings, its weights of any value."""
    s = options.settings
    check(s)
    if said := layout_hint(device.kind, options.compile, os.environ):
        print(said)
    examples = load_images(s.data, s.images, s.classes, s.side, options.seed)
    with torch.device("meta"):
        model = make(s)
        flops = forward_flops(model, torch.empty(1, 3, s.side, s.side, dtype=torch.uint8))
    initialise(model.to_empty(device="cpu"), options.seed)
    torch.manual_seed(options.seed)  # for dropout

    def optimizer(model: nn.Module) -> tuple[torch.optim.Optimizer, str]:
        groups = [{"params": list(model.parameters())}]
        return sgd(groups, s.sgd, lr=s.lr, momentum=s.momentum, weight_decay=s.weight_decay)

    layout = torch.channels_last if s.channels_last else torch.preserve_format
    training = classifying.build(options, device, model, examples, optimizer, flops, layout)
    model.channels_last = s.channels_last  # after the reference, which the CPU computes in its usual layout
    return training


def layout_hint(kind: str, compiled: bool, environ: Mapping[str, str]) -> str:
    """What to know of compiled convolutions on MPS; empty where it does not matter or is known."""
    if kind != "mps" or not compiled or "TORCHINDUCTOR_LAYOUT_OPTIMIZATION" in environ:
        return ""
    return (
        "torch.compile makes convolutions channels_last, which on MPS has been several times slower than eager "
        "(pytorch issue 192551): compare with --mps layout_optimization=off "
        "(by hand: TORCHINDUCTOR_LAYOUT_OPTIMIZATION=0)"
    )


def initialise(model: nn.Module, seed: int) -> None:
    """First weights, drawn on the CPU so that every device starts from the same ones: normal, their variance such that
    that of the features stays as it is (He et al. 2015, "Delving Deep into Rectifiers", section 2.2)."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for part in model.modules():
            if isinstance(part, nn.Conv2d):
                n_inputs = part.in_channels * math.prod(part.kernel_size)
                part.weight.normal_(0, math.sqrt(2 / n_inputs), generator=draw)
            elif isinstance(part, nn.Linear):
                part.weight.normal_(0, math.sqrt(1 / part.in_features), generator=draw)
            elif isinstance(part, nn.BatchNorm2d):
                part.reset_parameters()
                part.weight.mul_(getattr(part, "first_gain", 1.0))
                continue
            else:
                continue
            if part.bias is not None:
                part.bias.zero_()


def check(s: SimpleNamespace) -> None:
    """Refuse what cannot be trained. Raises: UsageError."""
    if s.side % STRIDE:
        raise UsageError(f"side={s.side}: it must be a multiple of {STRIDE}", "the paper's is 224")
