"""LeNet-5 as the source work uses it: 6 and 16 filters of 5×5, then 120, 84 and the classes.

| images | padding of conv1 | features before ``fc1`` | used for |
|---|---|---|---|
| 28×28×1 | ``"SAME"`` (2 pixels) | 400 | probabilistic forward pass on MNIST |
| 32×32×3 | ``"VALID"`` | 400 | noise and hardening on CIFAR-10 |
| 28×28×1 | ``"VALID"`` | 256 | walking noise and Dirty-MNIST |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import jax
from flax import nnx
from jaxtyping import Array, Float

from jaxeff.nn.layers import avg_pool

POOLS = {"max": nnx.max_pool, "avg": avg_pool}


def lenet5_features(size: int, padding: str) -> int:
    """Computes the number of features before ``fc1`` for square images of ``size`` pixels.

    Raises:
      ValueError: Unknown padding, or images too small for two 5×5 convolutions.
    """
    if padding not in ("SAME", "VALID"):
        raise ValueError(f"LeNet-5 takes padding 'SAME' or 'VALID' for conv1, not {padding!r}.")
    # A 5×5 convolution without padding takes 4 pixels off, a pooling halves, rounding down.
    side = ((size if padding == "SAME" else size - 4) // 2 - 4) // 2
    if side < 1:
        raise ValueError(f"LeNet-5 with padding {padding!r} can't take {size}×{size} images.")
    return 16 * side * side


class LeNet5(nnx.Module):
    """``conv1``, ``conv2``, ``fc1``, ``fc2``, ``fc3``, with optional ``bn1`` to ``bn4``."""

    def __init__(
        self,
        num_classes: int = 10,
        in_channels: int = 1,
        *,
        size: int = 28,
        padding: Literal["SAME", "VALID"] = "SAME",
        batch_norm: bool = False,
        pool: Literal["max", "avg"] = "max",
        activation: Callable[[jax.Array], jax.Array] = jax.nn.relu,
        rngs: nnx.Rngs,
    ):
        """Builds the layers.

        Args:
          num_classes: Number of outputs.
          in_channels: Channels of the images.
          size: Height and width of the images in pixels.
          padding: Padding of ``conv1``; ``conv2`` has none.
          batch_norm: Whether to normalize before each activation.
          pool: The kind of 2×2 pooling after each convolution's activation.
          activation: Elementwise function after every layer but the last.
          rngs: Keys for the initial parameters.

        Raises:
          ValueError: Unknown padding or pooling, or images that are too small.
        """
        if pool not in POOLS:
            raise ValueError(f"LeNet-5 pools by {sorted(POOLS)}, not {pool!r}.")
        features = lenet5_features(size, padding)
        self.pool = pool
        self.activation = activation
        self.batch_norm = batch_norm
        self.conv1 = nnx.Conv(in_channels, 6, (5, 5), padding=padding, rngs=rngs)
        self.conv2 = nnx.Conv(6, 16, (5, 5), padding="VALID", rngs=rngs)
        self.fc1 = nnx.Linear(features, 120, rngs=rngs)
        self.fc2 = nnx.Linear(120, 84, rngs=rngs)
        self.fc3 = nnx.Linear(84, num_classes, rngs=rngs)
        if batch_norm:
            for i, width in enumerate((6, 16, 120, 84), 1):
                bn = nnx.BatchNorm(width, momentum=0.9, epsilon=1e-5, rngs=rngs)
                setattr(self, f"bn{i}", bn)

    def __call__(
        self, x: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch classes"]:
        """Returns the logits."""
        for i, conv in enumerate((self.conv1, self.conv2), 1):
            x = self._activate(i, conv(x))
            x = POOLS[self.pool](x, (2, 2), strides=(2, 2))
        # Axes before the image's three are kept, however many a transform has put there.
        x = x.reshape(*x.shape[:-3], -1)
        for i, fc in enumerate((self.fc1, self.fc2), 3):
            x = self._activate(i, fc(x))
        return self.fc3(x)

    def _activate(self, i: int, x: jax.Array) -> jax.Array:
        return self.activation(getattr(self, f"bn{i}")(x) if self.batch_norm else x)
