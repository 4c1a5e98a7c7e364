"""Magika's network (Fratantonio et al., arXiv 2409.13768), and the tokens that it reads of a file.

An embedding of bytes, a convolution over groups of four of them, the largest value over positions,
and a dense layer; the layout is that of the graph of the published model `standard_v3_3`.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxeff.core import instance_of, validate

_BYTES, _END = 1024, 256  # bytes of either end of a file; the token beyond those of a shorter one
_BLOCK = 4096  # blanks are looked for in so many bytes of either end
_GROUP = 4  # bytes that stand side by side at a position of the convolution


class Magika(nnx.Module):
    """``embed``, ``norm1``, ``conv``, ``norm2``, ``head``; 214 types from 2048 bytes by default."""

    def __init__(
        self,
        types: int = 214,
        length: int = 2 * _BYTES,
        width: int = 64,
        channels: int = 512,
        *,
        rngs: nnx.Rngs,
    ):
        """Builds the layers.

        Args:
            types: Number of file types.
            length: Number of tokens, a multiple of 4.
            width: Features of a token.
            channels: Outputs of the convolution.
            rngs: Keys for the initial parameters.
        """
        self.embed = nnx.Embed(_END + 1, width, rngs=rngs)
        self.shift = nnx.Param(jnp.zeros((1, 1, width)))
        # Over positions, not over features, as the published network normalizes.
        self.norm1 = nnx.LayerNorm(length // _GROUP, reduction_axes=1, feature_axes=1, rngs=rngs)
        self.conv = nnx.Conv(_GROUP * width, channels, (5,), padding="VALID", rngs=rngs)
        self.norm2 = nnx.LayerNorm(channels, rngs=rngs)
        self.head = nnx.Linear(channels, types, rngs=rngs)

    def __call__(self, tokens: Int[Array, "batch length"]) -> Float[Array, "batch types"]:
        """Returns the logits of files, each given by the tokens of `file_tokens`."""
        x = nnx.gelu(self.embed(tokens) + self.shift[...])
        x = x.reshape(len(x), -1, _GROUP * x.shape[-1])
        x = nnx.gelu(self.conv(self.norm1(x)))
        return self.head(self.norm2(x.max(1)))


@validate(content=instance_of(bytes))
def file_tokens(content: bytes) -> Int[np.ndarray, " 2048"]:
    """Gives the tokens that `Magika` reads of a file.

    Args:
        content: The file's bytes; the first and the last 4096 are enough.

    Returns:
        The first and the last 1024 bytes without blanks around them, int32; 256 where a file is
        shorter.

    ```python
    from jaxeff.nn import file_tokens

    print(file_tokens(b"  import os ")[:10], file_tokens(b"")[0])
    ```
    """
    first, last = content[:_BLOCK].lstrip()[:_BYTES], content[-_BLOCK:].rstrip()[-_BYTES:]
    tokens = np.full(2 * _BYTES, _END, np.int32)
    tokens[: len(first)] = np.frombuffer(first, np.uint8)
    tokens[2 * _BYTES - len(last) :] = np.frombuffer(last, np.uint8)
    return tokens
