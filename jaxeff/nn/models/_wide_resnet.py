"""Wide residual networks (arXiv 1605.07146): few pre-activation blocks, with many channels.

A block normalizes and activates what it reads, not what it writes (arXiv 1603.05027), so that
sums pass from block to block as they are.

| depth, factor | parameters with 10 classes | multiply-adds on 32×32×3 |
|---|---|---|
| 10, 1 | 77,850 | 12.5 M |
| 28, 10 | 36,479,194 | 5.24 G |
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxeff.nn.layers import bn, conv

STAGES = (16, 32, 64)


class WideResNet(nnx.Module):
    """``conv1``, ``(depth - 4) / 6`` blocks in each of ``stage1`` to ``stage3``, ``bn`` and ``fc``.

    A layer's path reads ``stage2/0/conv1``. Convolutions have no bias. There is no dropout.
    """

    def __init__(
        self,
        num_classes: int = 10,
        in_channels: int = 3,
        *,
        depth: int = 28,
        factor: int = 10,
        rngs: nnx.Rngs,
    ):
        """Builds the layers.

        Args:
          num_classes: Number of outputs.
          in_channels: Channels of the images.
          depth: Layers that have weights on the longest path, without shortcuts.
          factor: Channels of the three stages, over 16, 32 and 64.
          rngs: Keys for the initial parameters.

        Raises:
          ValueError: No number of blocks gives the depth.
        """
        blocks, left = divmod(depth - 4, 6)
        if blocks < 1 or left:
            raise ValueError(
                f"A wide residual network has 6 n + 4 layers (10, 16, 22, 28, ...), not {depth}."
            )
        self.conv1 = conv(in_channels, STAGES[0], 3, 1, True, rngs=rngs)
        channels = STAGES[0]
        for i, stage in enumerate(STAGES, 1):
            made = []
            for number in range(blocks):
                # Images are halved between stages, by the first block of the next one.
                stride = 2 if i > 1 and number == 0 else 1
                made.append(_Block(channels, factor * stage, stride, rngs=rngs))
                channels = factor * stage
            setattr(self, f"stage{i}", nnx.List(made))
        self.bn = bn(channels, rngs=rngs)
        self.fc = nnx.Linear(channels, num_classes, rngs=rngs)

    def __call__(
        self, x: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch classes"]:
        """Returns the logits."""
        x = self.conv1(x)
        for i in range(1, len(STAGES) + 1):
            for block in getattr(self, f"stage{i}"):
                x = block(x)
        # Blocks leave their sums as they are, so the last one is normalized here.
        x = jax.nn.relu(self.bn(x))
        return self.fc(jnp.mean(x, axis=(-3, -2)))


class _Block(nnx.Module):
    """Twice normalization, ReLU and 3×3 convolution; ``shortcut`` where shapes change."""

    def __init__(self, channels: int, width: int, stride: int, *, rngs: nnx.Rngs):
        self.bn1 = bn(channels, rngs=rngs)
        self.conv1 = conv(channels, width, 3, stride, True, rngs=rngs)
        self.bn2 = bn(width, rngs=rngs)
        self.conv2 = conv(width, width, 3, 1, True, rngs=rngs)
        self.project = stride != 1 or channels != width
        if self.project:
            self.shortcut = conv(channels, width, 1, stride, True, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = jax.nn.relu(self.bn1(x))
        # A projection reads the activated input, an identity the sum as it came: arXiv
        # 1603.05027, section 4.1, and the code of arXiv 1605.07146.
        x = self.shortcut(y) if self.project else x
        y = jax.nn.relu(self.bn2(self.conv1(y)))
        return x + self.conv2(y)
