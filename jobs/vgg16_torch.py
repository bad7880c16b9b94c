# /// script
# requires-python = ">=3.10"
# dependencies = ["torch>=2.9", "numpy"]
# ///
"""VGG-16 trained on images, in PyTorch: `python jobs/vgg16_torch.py --device cpu --config toy`.

The model is configuration D of Simonyan & Zisserman, "Very Deep Convolutional Networks for Large-Scale Image
Recognition" (2015): 138,357,544 parameters, 15.5e9 multiply-adds an image. A batch has 64 images as in "Accelerated
PyTorch training on Mac".

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
from harness.models.images import STRIDE, ImageClassifier
from harness.models.images import build as build_classifier
from harness.torch_backend import classifying
from harness.torch_backend.classifying import Training
from harness.torch_backend.device import Device
from harness.torch_backend.main import main

WORKLOAD = {
    "like": "resnet50_torch",
    "name": "vgg16",
    "about": "VGG-16 on images of 224 x 224: throughput of training, and of evaluation with mode=eval.",
    "source": "Simonyan & Zisserman 2015 (Very Deep Convolutional Networks), configuration D",
    "params": {
        "dropout": {
            "default": 0.5, "unit": "share", "least": 0, "below": 1,
            "help": "share of the activations dropped between linear layers",
        },
        "batch_size": {"default": 64, "unit": "images", "help": "images in an iteration"},
        "lr": {"default": 0.002, "unit": "", "help": "learning rate, constant"},
        "weight_decay": {"default": 0.0005, "unit": "", "help": "weight decay of all parameters"},
    },
    "configs": {
        "full": {"side": 224, "classes": 1000, "width": 64, "batch_size": 64},
        "toy": {
            "side": 64, "classes": 10, "width": 8, "batch_size": 8, "images": 64, "max_iters": 24, "warmup_iters": 2,
            "eval_interval": 24, "lr": 0.003, "dropout": 0.1,
        },
    },
}  # fmt: skip


class VGG16(ImageClassifier):
    """Thirteen convolutions of 3 x 3, with max pooling after the 2nd, 4th, 7th, 10th and 13th, and three linear layers,
    the inner two 64 times as wide as the first convolution."""

    def __init__(self, s: SimpleNamespace) -> None:
        super().__init__()
        width = s.width
        layers: list[nn.Module] = []
        channels = 3
        for times, n_layers in ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3)):
            for _ in range(n_layers):
                layers += [nn.Conv2d(channels, times * width, 3, padding=1), nn.ReLU(inplace=True)]
                channels = times * width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        inner, last = 64 * width, channels * (s.side // STRIDE) ** 2
        self.classify = nn.Sequential(
            nn.Linear(last, inner), nn.ReLU(inplace=True), nn.Dropout(s.dropout),
            nn.Linear(inner, inner), nn.ReLU(inplace=True), nn.Dropout(s.dropout),
            nn.Linear(inner, s.classes),
        )  # fmt: skip

    def layers(self, x: torch.Tensor) -> torch.Tensor:
        return self.classify(self.features(x).flatten(1))


def build(options: Options, device: Device) -> Training:
    """Build images, model, reference loss and optimizer."""
    return build_classifier(options, device, VGG16)


if __name__ == "__main__":
    sys.exit(main(WORKLOAD, build, **classifying.PARTS))
