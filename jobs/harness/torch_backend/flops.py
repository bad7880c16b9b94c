"""FLOP of a forward, from the shapes of its layers. A multiply-add counts as two."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

BACKWARD_TIMES = 2
"""Cost of the backward in forwards: each product has one for the gradient by its inputs and one for that by its
weights, of the same size (Kaplan et al. 2020, "Scaling Laws for Neural Language Models", section 2.1; the first layer's
gradient by its inputs, which is not needed, is counted as is usual)."""


def forward_flops(model: nn.Module, *inputs: torch.Tensor) -> float:
    """Return the FLOP of the convolutions and linear layers in model.logits(*inputs); on the device `meta` nothing is
    computed.

    For each output element a convolution multiplies and adds kernel height x width x input channels (of its group)
    times, a linear layer as often as it has inputs. Source: He & Sun 2015, "Convolutional Neural Networks at
    Constrained Time Cost", equation 1, which counts a multiply-add as one. Excluded, as is usual: biases,
    normalisations, activations, pooling, the loss, the optimizer.
    """
    products = 0

    def count(layer: nn.Module, given: Any, out: torch.Tensor) -> None:
        nonlocal products
        if isinstance(layer, nn.Conv2d):
            products += out.numel() * math.prod(layer.kernel_size) * (layer.in_channels // layer.groups)
        elif isinstance(layer, nn.Linear):
            products += out.numel() * layer.in_features

    hooks = [part.register_forward_hook(count) for part in model.modules()]
    was_training = model.training
    try:
        with torch.no_grad():
            model.eval().logits(*inputs)  # type: ignore[operator]
    finally:
        for hook in hooks:
            hook.remove()
        model.train(was_training)
    return 2.0 * products
