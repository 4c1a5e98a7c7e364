"""A small transformer encoder that classifies sequences of feature vectors.

Pre-norm blocks (arXiv 2002.04745): layer norm, multi-head attention, layer norm, two dense layers
with GELU. An image is read as the sequence of its rows.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float


class EncoderBlock(nnx.Module):
    """``ln1``, ``attn`` (``query``, ``key``, ``value``, ``out``), ``ln2``, ``fc1``, ``fc2``."""

    def __init__(self, width: int, heads: int, hidden: int, *, rngs: nnx.Rngs):
        """Builds the layers; see `TransformerEncoder`."""
        self.ln1 = nnx.LayerNorm(width, rngs=rngs)
        self.attn = nnx.MultiHeadAttention(heads, width, decode=False, rngs=rngs)
        self.ln2 = nnx.LayerNorm(width, rngs=rngs)
        self.fc1 = nnx.Linear(width, hidden, rngs=rngs)
        self.fc2 = nnx.Linear(hidden, width, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the block's output, of the shape of ``x``."""
        # Normalized inside the branch: the sum is not, so gradients pass all blocks unchanged.
        x = x + self.attn(self.ln1(x))
        return x + self.fc2(jax.nn.gelu(self.fc1(self.ln2(x)), approximate=False))


class TransformerEncoder(nnx.Module):
    """``embed``, ``position``, ``blocks``, ``ln`` and ``fc`` over the mean of the sequence."""

    # 8 parameters: sizes that an architecture leaves open, as layers of Flax take theirs.
    def __init__(
        self,
        num_classes: int = 10,
        in_features: int = 8,
        length: int = 8,
        *,
        width: int = 32,
        heads: int = 4,
        hidden: int = 64,
        depth: int = 2,
        rngs: nnx.Rngs,
    ):
        """Builds the layers.

        Args:
          num_classes: Number of outputs.
          in_features: Features per element; for images, width times channels.
          length: Elements per sequence; for images, the height.
          width: Features per element inside the encoder.
          heads: Attention heads; divides ``width``.
          hidden: Features between a block's two dense layers.
          depth: Number of blocks.
          rngs: Keys for the initial parameters.

        Raises:
          ValueError: ``heads`` doesn't divide ``width``.
        """
        if width % heads:
            raise ValueError(f"the width {width} can't be split evenly over {heads} heads.")
        self.embed = nnx.Linear(in_features, width, rngs=rngs)
        # As BERT and ViT start: small beside the embedding, whose entries are of order 1.
        self.position = nnx.Param(0.02 * jax.random.normal(rngs.params(), (length, width)))
        blocks = [EncoderBlock(width, heads, hidden, rngs=rngs) for _ in range(depth)]
        self.blocks = nnx.List(blocks)
        self.ln = nnx.LayerNorm(width, rngs=rngs)
        self.fc = nnx.Linear(width, num_classes, rngs=rngs)

    def __call__(self, x: Float[Array, "batch length ..."]) -> Float[Array, "batch classes"]:
        """Returns the logits; axes after the second are flattened into features."""
        x = x.reshape(*x.shape[:2], -1)
        # The axis of examples is explicit: promoting ranks may be refused.
        x = self.embed(x) + self.position[None]
        for block in self.blocks:
            x = block(x)
        return self.fc(jnp.mean(self.ln(x), axis=-2))
