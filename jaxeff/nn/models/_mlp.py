"""The multilayer perceptron: dense layers with an activation between them.

The nets of the source work are ``(784, 100, 100, 10)`` (probabilistic forward pass), three hidden
layers of 64 with batch norm (walking noise) and ``(1, 50, 50, 1)`` (noisy sine).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
from flax import nnx
from jaxtyping import Array, Float


class MLP(nnx.Module):
    """Dense layers ``fc1``, ``fc2``, …, each but the last followed by the activation.

    With batch norm, ``bn1``, ``bn2``, … stand between a dense layer and its activation.
    """

    def __init__(
        self,
        widths: Sequence[int],
        activation: Callable[[jax.Array], jax.Array] = jax.nn.relu,
        batch_norm: bool = False,
        *,
        rngs: nnx.Rngs,
    ):
        """Builds the layers.

        Args:
          widths: Features of the input, of every hidden layer and of the output.
          activation: Elementwise function between the layers.
          batch_norm: Whether to normalize before each activation.
          rngs: Keys for the initial parameters.

        Raises:
          ValueError: Fewer than two widths.
        """
        self.depth = count_layers("MLP needs the input's and the output's width", widths)
        self.activation = activation
        self.batch_norm = batch_norm
        for i in range(1, len(widths)):
            setattr(self, f"fc{i}", nnx.Linear(widths[i - 1], widths[i], rngs=rngs))
            if batch_norm and i < self.depth:
                bn = nnx.BatchNorm(widths[i], momentum=0.9, epsilon=1e-5, rngs=rngs)
                setattr(self, f"bn{i}", bn)

    def __call__(self, x: Float[Array, "batch ..."]) -> Float[Array, "batch out"]:
        """Returns the outputs; inputs of more than two axes are flattened after the first."""
        if x.ndim > 2:
            x = x.reshape(x.shape[0], -1)
        for i in range(1, self.depth):
            x = getattr(self, f"fc{i}")(x)
            if self.batch_norm:
                x = getattr(self, f"bn{i}")(x)
            x = self.activation(x)
        return getattr(self, f"fc{self.depth}")(x)


def count_layers(needs: str, widths: Sequence[int]) -> int:
    """Counts the layers between widths.

    Raises:
      ValueError: Fewer than two widths; the message says what the model needs.
    """
    if len(widths) < 2:
        raise ValueError(f"{needs}, got {tuple(widths)}.")
    return len(widths) - 1
