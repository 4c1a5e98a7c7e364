"""ResNet-18 (arXiv 1512.03385) with the stem of the 224×224 network or one for 32×32 images.

| stem | first layers | multiply-adds on 32×32×3, 10 classes | used for |
|---|---|---|---|
| ``"imagenet"`` | 7×7 stride 2, 3×3 max-pool stride 2 | 37.0 M | noise and hardening |
| ``"cifar"`` | 3×3 stride 1 | 0.555 G | automatic compression |
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxeff.nn.layers import Block, bn, conv

STAGES = (64, 128, 256, 512)


class ResNet18(nnx.Module):
    """``conv1`` (and ``bn1``), two blocks in each of ``stage1`` to ``stage4``, and ``fc``.

    A layer's path reads ``stage2/0/conv1``. With batch norm, convolutions have no bias.
    """

    def __init__(
        self,
        num_classes: int = 10,
        in_channels: int = 3,
        *,
        stem: Literal["imagenet", "cifar"] = "imagenet",
        batch_norm: bool = True,
        widths: tuple[int, int, int, int] = STAGES,
        rngs: nnx.Rngs,
    ):
        """Builds the layers.

        Args:
          num_classes: Number of outputs.
          in_channels: Channels of the images.
          stem: The first layers; see the module's table.
          batch_norm: Whether every convolution is normalized.
          widths: Channels of the four stages, the first also of ``conv1``.
          rngs: Keys for the initial parameters.

        Raises:
          ValueError: Unknown stem.
        """
        if stem not in ("imagenet", "cifar"):
            raise ValueError(f"ResNet-18 has the stems 'imagenet' and 'cifar', not {stem!r}.")
        self.stem = stem
        self.batch_norm = batch_norm
        kernel, stride = (7, 2) if stem == "imagenet" else (3, 1)
        self.conv1 = conv(in_channels, widths[0], kernel, stride, batch_norm, rngs=rngs)
        if batch_norm:
            self.bn1 = bn(widths[0], rngs=rngs)
        channels = widths[0]
        for i, width in enumerate(widths, 1):
            first = Block(channels, width, 1 if i == 1 else 2, batch_norm, rngs=rngs)
            second = Block(width, width, 1, batch_norm, rngs=rngs)
            setattr(self, f"stage{i}", nnx.List([first, second]))
            channels = width
        self.fc = nnx.Linear(channels, num_classes, rngs=rngs)

    def __call__(
        self, x: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch classes"]:
        """Returns the logits."""
        x = self.conv1(x)
        x = jax.nn.relu(self.bn1(x) if self.batch_norm else x)
        if self.stem == "imagenet":
            # PyTorch's stem: symmetric padding, with -inf, so that the border is never the maximum.
            x = nnx.max_pool(x, (3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))
        for i in range(1, len(STAGES) + 1):
            for block in getattr(self, f"stage{i}"):
                x = block(x)
        # Averaged over positions, so that images of any size give as many features.
        return self.fc(jnp.mean(x, axis=(-3, -2)))
