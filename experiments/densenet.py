"""A narrow DenseNet-BC for images of 32 by 32 pixels, the thesis' kind of network in figure 3.3.

Layers read all that come before them in their stage, through a bottleneck of four times their
channels; between stages half of the channels stay (Huang et al., arXiv 1608.06993). The thesis'
has 100 layers and a growth of 12; ours has 22, which two processor cores train.
"""

import jax
import jax.numpy as jnp
from flax import nnx

STAGES, LAYERS, GROWTH = 3, 3, 12
BOTTLENECK = 4
"""Channels of a layer's first convolution, over its growth."""


class DenseNet(nnx.Module):
    """DenseNet-BC-22 with a growth of 12."""

    def __init__(self, classes: int, channels: int, *, rngs: nnx.Rngs):
        """Builds the layers.

        Args:
            classes: Number of classes.
            channels: Channels of an image.
            rngs: Random keys of the parameters.
        """
        width = 2 * GROWTH
        self.stem = nnx.Conv(channels, width, (3, 3), use_bias=False, rngs=rngs)
        narrow, wide, joins = [], [], []
        for stage in range(STAGES):
            for _ in range(LAYERS):
                narrow.append(_Layer(width, BOTTLENECK * GROWTH, 1, rngs))
                wide.append(_Layer(BOTTLENECK * GROWTH, GROWTH, 3, rngs))
                width += GROWTH
            if stage < STAGES - 1:
                joins.append(_Layer(width, width // 2, 1, rngs))
                width //= 2
        self.narrow, self.wide, self.joins = nnx.List(narrow), nnx.List(wide), nnx.List(joins)
        self.norm = nnx.BatchNorm(width, rngs=rngs)
        self.head = nnx.Linear(width, classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns logits of images."""
        x = self.stem(x)
        for stage in range(STAGES):
            for i in range(stage * LAYERS, (stage + 1) * LAYERS):
                x = jnp.concatenate([x, self.wide[i](self.narrow[i](x))], -1)
            if stage < STAGES - 1:
                x = nnx.avg_pool(self.joins[stage](x), (2, 2), strides=(2, 2))
        return self.head(nnx.relu(self.norm(x)).mean((1, 2)))


class _Layer(nnx.Module):
    """A convolution of what batch norm and ReLU leave."""

    def __init__(self, width: int, out: int, size: int, rngs: nnx.Rngs):
        self.norm = nnx.BatchNorm(width, rngs=rngs)
        self.conv = nnx.Conv(width, out, (size, size), use_bias=False, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.conv(nnx.relu(self.norm(x)))
