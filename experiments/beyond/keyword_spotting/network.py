"""A keyword spotter over time: depthwise separable convolutions, a mean, a dense layer."""

from __future__ import annotations

from flax import nnx

from experiments.beyond.separable import Separable

FIRST, FIRST_STRIDE, WINDOW = 10, 2, 3
"""The first convolution's window and stride over time, and the window of the others."""


def spotter(cepstra: int, classes: int, width: int, blocks: int, rngs: nnx.Rngs) -> Separable:
    """Makes DS-CNN (Zhang et al., arXiv:1711.07128) with cepstra as channels.

    It reads `[n, frames, 1, cepstra]`. Nothing is padded, so that a result of a frame is the same
    wherever in a stream it stands.
    """
    first = {
        "in_features": cepstra, "out_features": width, "kernel_size": (FIRST, 1),
        "strides": (FIRST_STRIDE, 1), "padding": "VALID",
    }  # fmt: skip
    depthwise = {"kernel_size": (WINDOW, 1), "padding": "VALID"}
    return Separable(first, depthwise, ((width, 1),) * blocks, classes, rngs)
