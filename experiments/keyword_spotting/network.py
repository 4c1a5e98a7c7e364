"""A keyword spotter over time: depthwise separable convolutions, a mean, a dense layer."""

from __future__ import annotations

import jax
from flax import nnx

FRAMES, FIRST, FIRST_STRIDE, WINDOW = 49, 10, 2, 3
"""Frames of a second, the first convolution's window and stride, and that of the others."""


class Spotter(nnx.Module):
    """DS-CNN (Zhang et al., arXiv:1711.07128) with cepstra as channels: `[n, frames, 1, cepstra]`.

    Nothing is padded, so that a result of a frame is the same wherever in a stream it stands.
    """

    def __init__(self, cepstra: int, classes: int, width: int, blocks: int, rngs: nnx.Rngs):
        self.blocks = blocks
        self.conv = nnx.Conv(
            cepstra, width, (FIRST, 1), strides=(FIRST_STRIDE, 1), padding="VALID", rngs=rngs
        )
        for i in range(blocks):
            depthwise = nnx.Conv(
                width, width, (WINDOW, 1), feature_group_count=width, padding="VALID", rngs=rngs
            )
            setattr(self, f"depthwise{i}", depthwise)
            setattr(self, f"pointwise{i}", nnx.Conv(width, width, (1, 1), rngs=rngs))
        self.dense = nnx.Linear(width, classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the logits."""
        x = nnx.relu(self.conv(x))
        for i in range(self.blocks):
            x = nnx.relu(getattr(self, f"depthwise{i}")(x))
            x = nnx.relu(getattr(self, f"pointwise{i}")(x))
        return self.dense(x.mean((1, 2)))
