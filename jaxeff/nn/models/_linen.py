"""Linen twins of `jaxeff.nn.MLP` and `jaxeff.nn.LeNet5`: the same layers under the same names.

The jaxprs of Linen and NNX models differ, and programs are read from both. Parameters of a twin
have the paths and shapes of the NNX model's: either set fits both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import flax.linen as nn
import jax

from jaxeff.nn.models._lenet5 import lenet5_features


class LinenMLP(nn.Module):
    """The Linen twin of `jaxeff.nn.MLP`, without batch norm.

    Attributes:
      widths: Features of the input, of every hidden layer and of the output.
      activation: Elementwise function between the layers.
    """

    widths: Sequence[int]
    activation: Callable[[jax.Array], jax.Array] = jax.nn.relu

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the outputs; inputs of more than two axes are flattened after the first."""
        if x.ndim > 2:
            x = x.reshape(x.shape[0], -1)
        for i, width in enumerate(self.widths[1:-1], 1):
            x = self.activation(nn.Dense(width, name=f"fc{i}")(x))
        return nn.Dense(self.widths[-1], name=f"fc{len(self.widths) - 1}")(x)


class LinenLeNet5(nn.Module):
    """The Linen twin of `jaxeff.nn.LeNet5`.

    Attributes:
      num_classes: Number of outputs.
      size: Height and width of the images in pixels.
      padding: Padding of ``conv1``, ``"SAME"`` or ``"VALID"``.
      batch_norm: Whether to normalize before each activation.
    """

    num_classes: int = 10
    size: int = 28
    padding: str = "SAME"
    batch_norm: bool = False

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        """Returns the logits; ``train`` selects batch statistics and needs mutable state."""

        def activate(i: int, x: jax.Array) -> jax.Array:
            if self.batch_norm:
                # As the NNX model has them; Flax's own default momentum is another.
                norm = nn.BatchNorm(not train, momentum=0.9, epsilon=1e-5, name=f"bn{i}")
                x = norm(x)
            return jax.nn.relu(x)

        # Shapes are inferred from the images, so nothing else would refuse another size.
        lenet5_features(self.size, self.padding)  # refuses what the NNX model refuses
        x = activate(1, nn.Conv(6, (5, 5), padding=self.padding, name="conv1")(x))
        x = nn.max_pool(x, (2, 2), strides=(2, 2))
        x = activate(2, nn.Conv(16, (5, 5), padding="VALID", name="conv2")(x))
        x = nn.max_pool(x, (2, 2), strides=(2, 2))
        x = x.reshape(*x.shape[:-3], -1)
        x = activate(3, nn.Dense(120, name="fc1")(x))
        x = activate(4, nn.Dense(84, name="fc2")(x))
        return nn.Dense(self.num_classes, name="fc3")(x)
