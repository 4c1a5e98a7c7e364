"""Residual blocks of two 3×3 convolutions (arXiv 1512.03385), of ResNet-8 and ResNet-18."""

from __future__ import annotations

import jax
from flax import nnx


class Block(nnx.Module):
    """Two 3×3 convolutions and the shortcut around them (``shortcut`` where shapes change)."""

    def __init__(
        self,
        channels: int,
        width: int,
        stride: int,
        batch_norm: bool = True,
        *,
        blocks: int = 8,
        rngs: nnx.Rngs,
    ):
        """Builds the layers.

        Args:
          channels: Channels of the input.
          width: Channels of the output.
          stride: Stride of the first convolution and of the shortcut.
          batch_norm: Whether every convolution is normalized; if so, it has no bias.
          blocks: Blocks of the network that this is one of.
          rngs: Keys for the initial parameters.
        """
        self.batch_norm = batch_norm
        self.conv1 = conv(channels, width, 3, stride, batch_norm, rngs=rngs)
        # Unnormalized residual branches add up over the blocks: they start smaller.
        gain = 2.0 if batch_norm else 2.0 / blocks
        self.conv2 = conv(width, width, 3, 1, batch_norm, gain=gain, rngs=rngs)
        self.project = stride != 1 or channels != width
        # Strides and widths change the shape of the sum, so the shortcut has to follow it. No ReLU
        # comes after it alone, hence the gain of 1.
        if self.project:
            self.shortcut = conv(channels, width, 1, stride, batch_norm, gain=1.0, rngs=rngs)
        if batch_norm:
            self.bn1 = bn(width, rngs=rngs)
            self.bn2 = bn(width, rngs=rngs)
            if self.project:
                self.bn_shortcut = bn(width, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the block's output, after its last ReLU."""
        y = self.conv1(x)
        y = jax.nn.relu(self.bn1(y) if self.batch_norm else y)
        y = self.conv2(y)
        y = self.bn2(y) if self.batch_norm else y
        if self.project:
            x = self.shortcut(x)
            x = self.bn_shortcut(x) if self.batch_norm else x
        return jax.nn.relu(x + y)


def conv(
    channels: int,
    width: int,
    kernel: int,
    stride: int,
    batch_norm: bool,
    *,
    gain: float = 2.0,
    rngs: nnx.Rngs,
) -> nnx.Conv:
    """Makes a convolution initialized as by He et al. (arXiv 1502.01852) with ``gain`` 2."""
    return nnx.Conv(
        channels,
        width,
        (kernel, kernel),
        strides=stride,
        # Symmetric, as the original pads: "SAME" pads strided convolutions more at the end.
        padding=kernel // 2,
        # Batch norm subtracts the mean, so a bias before it has no effect.
        use_bias=not batch_norm,
        # Keeps the variance under ReLU: n Var(w) / 2 = 1, He et al., eq. 10.
        kernel_init=nnx.initializers.variance_scaling(gain, "fan_in", "truncated_normal"),
        rngs=rngs,
    )


def bn(width: int, *, rngs: nnx.Rngs) -> nnx.BatchNorm:
    """Makes a batch norm with the momentum that ResNets have for running statistics."""
    return nnx.BatchNorm(width, momentum=0.9, epsilon=1e-5, rngs=rngs)
