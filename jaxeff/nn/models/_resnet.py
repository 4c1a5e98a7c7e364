"""Residual networks: ResNet-18 and ResNet-8 (arXiv 1512.03385), and wide ones (arXiv 1605.07146).

`ResNet18` has the stem of the 224×224 network or one for 32×32 images.

| stem | first layers | multiply-adds on 32×32×3, 10 classes | used for |
|---|---|---|---|
| ``"imagenet"`` | 7×7 stride 2, 3×3 max-pool stride 2 | 37.0 M | noise and hardening |
| ``"cifar"`` | 3×3 stride 1 | 0.555 G | automatic compression |

`ResNet8` is the image classifier of MLPerf Tiny (arXiv 2106.07597), for 32×32 images: 12.5 M
multiply-adds and 78 thousand parameters with 10 classes, which two processor cores train in
minutes.

`WideResNet` has few pre-activation blocks with many channels. A block normalizes and activates what
it reads, not what it writes (arXiv 1603.05027), so that sums pass from block to block as they are.

| depth, factor | parameters with 10 classes | multiply-adds on 32×32×3 |
|---|---|---|
| 10, 1 | 77,850 | 12.5 M |
| 28, 10 | 36,479,194 | 5.24 G |
"""

from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxeff.nn.layers import Block, bn, conv

IMAGENET_WIDTHS = (64, 128, 256, 512)


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
        widths: tuple[int, int, int, int] = IMAGENET_WIDTHS,
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
        for i in range(1, len(IMAGENET_WIDTHS) + 1):
            for block in getattr(self, f"stage{i}"):
                x = block(x)
        # Averaged over positions, so that images of any size give as many features.
        return self.fc(jnp.mean(x, axis=(-3, -2)))


CIFAR_WIDTHS = (16, 32, 64)


class ResNet8(nnx.Module):
    """``conv1`` and ``bn1``, a block in each of ``stage1`` to ``stage3``, and ``fc``.

    A layer's path reads ``stage2/conv1``. Convolutions are normalized and have no bias.
    """

    def __init__(
        self,
        num_classes: int = 10,
        in_channels: int = 3,
        *,
        widths: tuple[int, int, int] = CIFAR_WIDTHS,
        rngs: nnx.Rngs,
    ):
        """Builds the layers.

        Args:
          num_classes: Number of outputs.
          in_channels: Channels of the images.
          widths: Channels of the three stages.
          rngs: Keys for the initial parameters.
        """
        self.conv1 = conv(in_channels, widths[0], 3, 1, True, rngs=rngs)
        self.bn1 = bn(widths[0], rngs=rngs)
        self.stage1 = Block(widths[0], widths[0], 1, rngs=rngs)
        self.stage2 = Block(widths[0], widths[1], 2, rngs=rngs)
        self.stage3 = Block(widths[1], widths[2], 2, rngs=rngs)
        self.fc = nnx.Linear(widths[2], num_classes, rngs=rngs)

    def __call__(
        self, x: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch classes"]:
        """Returns the logits."""
        x = jax.nn.relu(self.bn1(self.conv1(x)))
        for stage in (self.stage1, self.stage2, self.stage3):
            x = stage(x)
        return self.fc(jnp.mean(x, axis=(-3, -2)))


WIDE_WIDTHS = (16, 32, 64)


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
        self.conv1 = conv(in_channels, WIDE_WIDTHS[0], 3, 1, True, rngs=rngs)
        channels = WIDE_WIDTHS[0]
        for i, stage in enumerate(WIDE_WIDTHS, 1):
            members = []
            for number in range(blocks):
                # Images are halved between stages, by the first block of the next one.
                stride = 2 if i > 1 and number == 0 else 1
                members.append(_WideBlock(channels, factor * stage, stride, rngs=rngs))
                channels = factor * stage
            setattr(self, f"stage{i}", nnx.List(members))
        self.bn = bn(channels, rngs=rngs)
        self.fc = nnx.Linear(channels, num_classes, rngs=rngs)

    def __call__(
        self, x: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch classes"]:
        """Returns the logits."""
        x = self.conv1(x)
        for i in range(1, len(WIDE_WIDTHS) + 1):
            for block in getattr(self, f"stage{i}"):
                x = block(x)
        # Blocks leave their sums as they are, so the last one is normalized here.
        x = jax.nn.relu(self.bn(x))
        return self.fc(jnp.mean(x, axis=(-3, -2)))


class _WideBlock(nnx.Module):
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
