"""Networks of depthwise separable convolutions, which several studies train or measure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from flax import nnx


class Separable(nnx.Module):
    """A convolution, depthwise and pointwise ones in turns, a mean and a dense layer."""

    def __init__(
        self,
        first: dict[str, Any],  # arguments of the first convolution
        depthwise: dict[str, Any],  # of all depthwise ones: window and padding
        blocks: Sequence[tuple[int, int]],  # features of each pair, and its stride
        classes: int,
        rngs: nnx.Rngs,
    ):
        self.conv = nnx.Conv(**first, rngs=rngs)
        width, self.blocks = first["out_features"], len(blocks)
        for i, (features, stride) in enumerate(blocks):
            alone = nnx.Conv(
                width, width, strides=stride, feature_group_count=width, rngs=rngs, **depthwise
            )
            setattr(self, f"depthwise{i}", alone)
            setattr(self, f"pointwise{i}", nnx.Conv(width, features, (1, 1), rngs=rngs))
            width = features
        self.dense = nnx.Linear(width, classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the logits."""
        x = nnx.relu(self.conv(x))
        for i in range(self.blocks):
            x = nnx.relu(getattr(self, f"depthwise{i}")(x))
            x = nnx.relu(getattr(self, f"pointwise{i}")(x))
        return self.dense(x.mean((1, 2)))
