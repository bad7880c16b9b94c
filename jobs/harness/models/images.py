"""Parts shared by resnet50 and vgg16: input scaling, initialisation, optimizer, FLOP of a forward."""

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
"""Total stride of the model: an image's side is a multiple of it."""
MEAN, DEVIATION = 116.0, 58.0
"""Mean and standard deviation of ImageNet's pixels over all three colours, in grey levels of 255."""


class ImageClassifier(Classifier):
    """A model from images as bytes (batch, 3, side, side) to logits (batch, classes), through `layers`."""

    channels_last = False
    """whether activations are NHWC in memory: the channels of a pixel are adjacent"""

    def layers(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of images normalised to about zero mean and unit variance."""
        raise NotImplementedError

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        x = (x.float() - MEAN) / DEVIATION
        return self.layers(x.contiguous(memory_format=torch.channels_last) if self.channels_last else x)


def build(options: Options, device: Device, make: Callable[[SimpleNamespace], ImageClassifier]) -> Training:
    """Build images, model, reference loss and optimizer. `make` builds the model from the settings."""
    s = options.settings
    check(s)
    if hint := layout_hint(device.kind, options.compile, os.environ):
        print(hint)
    examples = load_images(s.data, s.images, s.classes, s.side, options.seed)
    with torch.device("meta"):
        model = make(s)
        flops = forward_flops(model, torch.empty(1, 3, s.side, s.side, dtype=torch.uint8))
    initialise(model.to_empty(device="cpu"), options.seed)
    torch.manual_seed(options.seed)  # for dropout

    def optimizer(model: nn.Module) -> tuple[torch.optim.Optimizer, str]:
        groups = [{"params": list(model.parameters())}]
        return sgd(groups, s.sgd, device, options.dtype, lr=s.lr, momentum=s.momentum, weight_decay=s.weight_decay)

    layout = torch.channels_last if s.channels_last else torch.preserve_format
    training = classifying.build(options, device, model, examples, optimizer, flops, layout)
    model.channels_last = s.channels_last  # after the reference, which the CPU computes in its usual layout
    return training


def layout_hint(kind: str, compiled: bool, environ: Mapping[str, str]) -> str:
    """Return a hint about compiled convolutions on MPS; empty if it does not apply."""
    if kind != "mps" or not compiled or "TORCHINDUCTOR_LAYOUT_OPTIMIZATION" in environ:
        return ""
    return (
        "torch.compile makes convolutions channels_last, which on MPS has been several times slower than eager "
        "(pytorch issue 192551): compare with --mps layout_optimization=off "
        "(by hand: TORCHINDUCTOR_LAYOUT_OPTIMIZATION=0)"
    )


def initialise(model: nn.Module, seed: int) -> None:
    """Draw the initial weights on the CPU, so that every device starts from the same: normal, with the variance that
    preserves that of the features (He et al. 2015, "Delving Deep into Rectifiers", section 2.2)."""
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
    """Raise UsageError for settings that the models do not support."""
    if s.side % STRIDE:
        raise UsageError(f"side={s.side}: it must be a multiple of {STRIDE}", "the paper's is 224")
