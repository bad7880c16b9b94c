# /// script
# requires-python = ">=3.10"
# dependencies = ["torch>=2.9", "numpy"]
# ///
"""ResNet-50 trained on images, in PyTorch: `python jobs/resnet50_torch.py --device cpu --config toy`.

The model is that of He et al., "Deep Residual Learning for Image Recognition" (2016): 25,557,032 parameters,
4.09e9 multiply-adds an image. The stride of a stage is in the 3 x 3 convolution of its first block, as in all common
implementations since Facebook's of 2016. A batch has 128 images as in "Accelerated PyTorch training on Mac".

Top to bottom: settings, the model, build(). Iterations: harness/torch_backend/classifying.py.
"""

from __future__ import annotations

if __name__ == "__main__":  # before the import of torch: signals may arrive during it
    from harness import start

    start.quietly("torch")

import sys
from types import SimpleNamespace

import torch
from torch import nn

from harness.command_line import Options
from harness.errors import UsageError
from harness.models.images import STRIDE, ImageClassifier
from harness.models.images import build as build_classifier
from harness.torch_backend import classifying
from harness.torch_backend.classifying import Training
from harness.torch_backend.device import Device
from harness.torch_backend.main import main

WORKLOAD = {
    "name": "resnet50",
    "framework": "torch",
    "about": "ResNet-50 on images of 224 x 224: throughput of training, and of evaluation with mode=eval.",
    "source": "He et al. 2016 (Deep Residual Learning for Image Recognition), its stride in the 3 x 3",
    "prepares": True,
    "unit": "samples",
    "params": {
        "mode": {
            "default": "train", "unit": "", "choices": ["train", "eval"],
            "help": "train, or eval: only the forward pass, as in inference",
        },
        "data": {
            "default": "synthetic", "unit": "", "path_or": ["synthetic"],
            "help": "synthetic, or the path of a folder with a subfolder of images for each class",
        },
        "images": {
            "default": 1024, "unit": "images", "least": 2,
            "help": "number of images drawn, or the most that are read from a folder; an eighth is for evaluation",
        },
        "pool": {
            "default": "device", "unit": "", "choices": ["device", "host"],
            "help": "where the images are kept: device, or host (each batch is copied in its iteration)",
        },
        "side": {
            "default": 224, "unit": "pixels", "least": 32,
            "help": "height and width of an image; a multiple of 32",
        },
        "classes": {"default": 1000, "unit": "classes", "least": 2, "help": "number of classes"},
        "width": {
            "default": 64, "unit": "channels", "least": 1,
            "help": "channels of the first layer, which determine those of the others",
        },
        "batch_size": {"default": 128, "unit": "images", "least": 1, "help": "images in an iteration"},
        "channels_last": {"default": False, "unit": "", "help": "keep weights and images in the memory format NHWC"},
        "cudnn_benchmark": {"default": False, "unit": "", "help": "let cuDNN try its algorithms and use the fastest"},
        "max_iters": {
            "default": 30, "unit": "iterations", "least": 0,
            "help": "number of updates, or of forward passes with mode=eval",
        },
        "warmup_iters": 4,
        "eval_interval": 0,
        "eval_iters": {"default": 1, "unit": "batches", "least": 1, "help": "batches of each split in an evaluation"},
        "log_interval": 5,
        "checkpoint_interval": 0,
        "lr": {"default": 0.02, "unit": "", "least": 0, "help": "learning rate, constant"},
        "momentum": {"default": 0.9, "unit": "", "least": 0, "below": 1, "help": "momentum of the gradient"},
        "weight_decay": {"default": 1e-4, "unit": "", "least": 0, "help": "weight decay of all parameters"},
        "sgd": {
            "default": "auto", "unit": "", "choices": ["auto", "fused", "foreach", "loop"],
            "help": "implementation of AdamW; auto: fused if the device has it and it is correct",
        },
        "stop_on_nan": False,
        "threads": 0,
    },
    "configs": {
        "full": {"side": 224, "classes": 1000, "width": 64, "batch_size": 128},
        "toy": {
            "side": 64, "classes": 10, "width": 8, "batch_size": 8, "images": 64, "max_iters": 24, "warmup_iters": 2,
            "eval_interval": 24, "lr": 0.02,
        },
    },
    "modes": {"eval": {"eval_interval": 0}},
}  # fmt: skip


FIRST_GAIN = 0.2
"""Initial scale of a block's last normalisation. Goyal et al. 2017 ("Accurate, Large Minibatch SGD", section 5.1) start
at 0, so that a block starts as the identity; then a fault within blocks would not show in the first loss. With 1,
rounding to bf16 grows through fifty layers to 0.1 nats; with 0.2 it stays below 0.01, and a fault shows."""


class Bottleneck(nn.Module):
    """Convolutions 1 x 1 to fewer channels, 3 x 3, and 1 x 1 to four times as many, with a residual connection."""

    def __init__(self, channels: int, inner: int, stride: int) -> None:
        super().__init__()
        out = 4 * inner
        self.conv1 = nn.Conv2d(channels, inner, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, out, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(out)
        self.norm3.first_gain = FIRST_GAIN
        self.shortcut = nn.Sequential()  # identity
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        y = torch.relu(self.norm2(self.conv2(y)))
        return torch.relu(self.norm3(self.conv3(y)) + self.shortcut(x))


class ResNet50(ImageClassifier):
    """Stages of 3, 4, 6 and 3 bottlenecks; each doubles the channels and halves height and width of the one before."""

    def __init__(self, s: SimpleNamespace) -> None:
        super().__init__()
        width = s.width
        self.conv = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.pool = nn.MaxPool2d(3, 2, 1)
        blocks, channels = [], width
        for stage, n_blocks in enumerate((3, 4, 6, 3)):
            inner = width << stage
            for k in range(n_blocks):
                blocks.append(Bottleneck(channels, inner, 2 if stage and not k else 1))
                channels = 4 * inner
        self.blocks = nn.Sequential(*blocks)
        self.out = nn.Linear(channels, s.classes)

    def layers(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(torch.relu(self.norm(self.conv(x))))
        return self.out(self.blocks(x).mean((2, 3)))


def build(options: Options, device: Device) -> Training:
    """Build images, model, reference loss and optimizer."""
    s = options.settings
    if s.batch_size == 1 and s.side == STRIDE:
        raise UsageError(
            f"batch_size=1 with side={s.side} leaves batch normalisation one value per channel, which has no variance",
            "batch_size=2, or side=64",
        )
    return build_classifier(options, device, ResNet50)


if __name__ == "__main__":
    sys.exit(main(WORKLOAD, build, **classifying.PARTS))
