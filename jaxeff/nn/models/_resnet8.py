"""ResNet-8, the image classifier of MLPerf Tiny (arXiv 2106.07597), for 32×32 images.

A residual network (arXiv 1512.03385) that two processor cores train in minutes: 12.5 M
multiply-adds and 78 thousand parameters with 10 classes.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxeff.nn.layers import Block, bn, conv

WIDTHS = (16, 32, 64)


class ResNet8(nnx.Module):
    """``conv1`` and ``bn1``, a block in each of ``stage1`` to ``stage3``, and ``fc``.

    A layer's path reads ``stage2/conv1``. Convolutions are normalized and have no bias.
    """

    def __init__(
        self,
        num_classes: int = 10,
        in_channels: int = 3,
        *,
        widths: tuple[int, int, int] = WIDTHS,
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
