"""A convolution and its batch norm, of which many networks of images are made."""

import jax
from flax import nnx


class Normed(nnx.Module):
    """A convolution without a bias, and batch norm."""

    def __init__(
        self, width: int, out: int, size: int, rngs: nnx.Rngs, stride: int = 1, groups: int = 1
    ):
        """Builds the layers."""
        self.conv = nnx.Conv(
            width, out, (size, size), stride, feature_group_count=groups, use_bias=False, rngs=rngs
        )
        self.bn = nnx.BatchNorm(out, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns normed features."""
        return self.bn(self.conv(x))
