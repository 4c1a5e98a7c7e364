"""Networks of images: inverted residuals, ConvNeXt, a U-Net, a vision transformer."""

import jax
import jax.numpy as jnp
from flax import nnx


class Loop(nnx.Module):
    """A recurrence of images, convolved at every step, with a class at its end."""

    def __init__(self, rngs: nnx.Rngs):
        """Builds the layers."""
        self.both = nnx.Conv(7, 8, (3, 3), rngs=rngs)
        self.channels = nnx.Conv(8, 8, (3, 3), feature_group_count=8, rngs=rngs)
        self.state = nnx.Conv(8, 4, (1, 1), rngs=rngs)
        self.head = nnx.Linear(4, 5, rngs=rngs)

    def __call__(self, frames: jax.Array) -> jax.Array:
        """Returns logits."""

        def step(h: jax.Array, frame: jax.Array) -> tuple[jax.Array, None]:
            y = nnx.relu(self.both(jnp.concatenate([h, frame], -1)))
            return jnp.tanh(self.state(nnx.relu(self.channels(y)) + y)), None

        start = jnp.zeros((*frames.shape[:1], *frames.shape[2:4], 4))
        return self.head(jax.lax.scan(step, start, frames.swapaxes(0, 1))[0].mean((1, 2)))


class InvertedResidual(nnx.Module):
    """Expansion, depthwise convolution, squeeze and excitation, projection (MobileNetV2 and V3)."""

    def __init__(self, width: int, hidden: int, rngs: nnx.Rngs):
        """Builds the layers."""
        self.expand = nnx.Conv(width, hidden, (1, 1), use_bias=False, rngs=rngs)
        self.bn1 = nnx.BatchNorm(hidden, rngs=rngs)
        self.depthwise = nnx.Conv(
            hidden, hidden, (3, 3), feature_group_count=hidden, use_bias=False, rngs=rngs
        )
        self.bn2 = nnx.BatchNorm(hidden, rngs=rngs)
        self.squeeze = nnx.Linear(hidden, hidden // 4, rngs=rngs)
        self.excite = nnx.Linear(hidden // 4, hidden, rngs=rngs)
        self.project = nnx.Conv(hidden, width, (1, 1), use_bias=False, rngs=rngs)
        self.bn3 = nnx.BatchNorm(width, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the block's output, of the shape of ``x``."""
        y = nnx.relu6(self.bn1(self.expand(x)))
        y = nnx.hard_swish(self.bn2(self.depthwise(y)))
        scale = nnx.hard_sigmoid(self.excite(nnx.relu(self.squeeze(y.mean((1, 2))))))
        return x + self.bn3(self.project(y * scale[:, None, None]))


class MobileNet(nnx.Module):
    """A stem, two inverted residuals and a classifier."""

    def __init__(self, rngs: nnx.Rngs):
        """Builds the layers."""
        self.stem = nnx.Conv(3, 8, (3, 3), strides=2, rngs=rngs)
        self.blocks = nnx.List([InvertedResidual(8, 16, rngs) for _ in range(2)])
        self.head = nnx.Linear(8, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns logits of images."""
        x = nnx.relu6(self.stem(x))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((1, 2)))


class ConvNeXtBlock(nnx.Module):
    """Depthwise convolution, layer norm, two dense layers with GELU, a learnt scale."""

    def __init__(self, width: int, rngs: nnx.Rngs):
        """Builds the layers."""
        self.depthwise = nnx.Conv(width, width, (7, 7), feature_group_count=width, rngs=rngs)
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)
        self.gamma = nnx.Param(0.5 * jnp.ones(width))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the block's output, of the shape of ``x``."""
        return x + self.gamma * self.down(nnx.gelu(self.up(self.norm(self.depthwise(x)))))


class ConvNeXt(nnx.Module):
    """A patch stem, two blocks around a downsampling, and a classifier."""

    def __init__(self, rngs: nnx.Rngs):
        """Builds the layers."""
        self.stem = nnx.Conv(3, 8, (4, 4), strides=4, rngs=rngs)
        self.first, self.second = ConvNeXtBlock(8, rngs), ConvNeXtBlock(12, rngs)
        self.norm = nnx.LayerNorm(8, rngs=rngs)
        self.downsample = nnx.Conv(8, 12, (2, 2), strides=2, rngs=rngs)
        self.last = nnx.LayerNorm(12, rngs=rngs)
        self.head = nnx.Linear(12, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns logits of images."""
        x = self.downsample(self.norm(self.first(self.stem(x))))
        return self.head(self.last(self.second(x).mean((1, 2))))


class UNet(nnx.Module):
    """Two levels with group norm, a transposed convolution, and the concatenated shortcut."""

    def __init__(self, rngs: nnx.Rngs):
        """Builds the layers."""
        self.down1 = nnx.Conv(3, 8, (3, 3), rngs=rngs)
        self.norm1 = nnx.GroupNorm(8, num_groups=4, rngs=rngs)
        self.down2 = nnx.Conv(8, 16, (3, 3), rngs=rngs)
        self.norm2 = nnx.GroupNorm(16, num_groups=4, rngs=rngs)
        self.up = nnx.ConvTranspose(16, 8, (2, 2), strides=(2, 2), rngs=rngs)
        self.join = nnx.Conv(16, 8, (3, 3), rngs=rngs)
        self.out = nnx.Conv(8, 3, (1, 1), rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns an image."""
        left = nnx.silu(self.norm1(self.down1(x)))
        x = nnx.max_pool(left, (2, 2), strides=(2, 2))
        x = self.up(nnx.silu(self.norm2(self.down2(x))))
        return self.out(nnx.relu(self.join(jnp.concatenate([left, x], -1))))


class EncoderBlock(nnx.Module):
    """Pre-norm attention and two dense layers with GELU."""

    def __init__(self, width: int, heads: int, rngs: nnx.Rngs):
        """Builds the layers."""
        self.norm1 = nnx.LayerNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(heads, width, decode=False, rngs=rngs)
        self.norm2 = nnx.LayerNorm(width, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the block's output, of the shape of ``x``."""
        x = x + self.attention(self.norm1(x))
        return x + self.down(nnx.gelu(self.up(self.norm2(x))))


class ViT(nnx.Module):
    """Patches, a class token, learnt positions, blocks."""

    def __init__(
        self,
        rngs: nnx.Rngs,
        *,
        pixels: int = 16,
        patch: int = 4,
        width: int = 16,
        heads: int = 2,
        depth: int = 2,
        classes: int = 10,
    ):
        """Builds the layers."""
        tokens = 1 + (pixels // patch) ** 2
        self.patches = nnx.Conv(3, width, (patch, patch), strides=patch, rngs=rngs)
        self.token = nnx.Param(jax.random.normal(rngs.params(), (1, 1, width)))
        self.position = nnx.Param(0.1 * jax.random.normal(rngs.params(), (1, tokens, width)))
        self.blocks = nnx.List([EncoderBlock(width, heads, rngs) for _ in range(depth)])
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.head = nnx.Linear(width, classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns logits of images."""
        x = self.patches(x)
        x = x.reshape(x.shape[0], -1, x.shape[-1])
        token = jnp.broadcast_to(self.token[...], (x.shape[0], 1, x.shape[-1]))
        x = jnp.concatenate([token, x], 1) + self.position[...]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])
