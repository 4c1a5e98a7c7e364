"""The sizes of a decoder, and the cache that they give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int

from jaxeff.core import Count, Number, Setting, register_setting, static
from jaxeff.nn.language._attention import Int8Rows, Rows

_POSITIVE = Number(above=0)


class DecoderCache(NamedTuple):
    """Keys and values of the tokens that were read, with room for those to come.

    Attributes:
        keys: One array per block, `[batch, room, key heads, size]`, or codes with their steps.
        values: The same of the values.
        length: How many tokens were read.
    """

    keys: tuple[Rows, ...]
    values: tuple[Rows, ...]
    length: Int[Array, ""]


@register_setting
@dataclass(frozen=True, kw_only=True)
class DecoderConfig(Setting):
    """The sizes of a decoder.

    Attributes:
        vocabulary: Number of tokens.
        width: Features of a token between blocks; a multiple of twice the heads.
        hidden: Features of a block's gated layer.
        depth: Number of blocks.
        heads: Heads of queries.
        key_heads: Heads of keys and values; divides `heads`.
        rotary_base: The base of rotary positions' wavelengths (arXiv 2104.09864).
        epsilon: What RMS norms add to the mean of squares.
    """

    vocabulary: Annotated[int, Count(1)] = static()
    width: Annotated[int, Count(1)] = static()
    hidden: Annotated[int, Count(1)] = static()
    depth: Annotated[int, Count(1)] = static()
    heads: Annotated[int, Count(1)] = static()
    key_heads: Annotated[int, Count(1)] = static()
    rotary_base: Annotated[float, _POSITIVE] = static(10000.0)
    epsilon: Annotated[float, _POSITIVE] = static(1e-5)

    def __post_init__(self) -> None:
        """Checks that heads fit.

        Raises:
            ValueError: The heads don't divide the width into even sizes, or the heads of keys
                don't divide those of queries.
        """
        super().__post_init__()
        if self.width % (2 * self.heads):
            raise ValueError(
                f"DecoderConfig: a width of {self.width} isn't {self.heads} heads of an even size."
            )
        if self.heads % self.key_heads:
            raise ValueError(
                f"DecoderConfig: {self.heads} heads can't share {self.key_heads} heads of keys."
            )

    @property
    def size(self) -> int:
        """Features of a head."""
        return self.width // self.heads

    def empty_cache(self, batch: int, room: int, dtype: Any = jnp.float32) -> DecoderCache:
        """Makes a cache of no tokens.

        Args:
            batch: Number of sequences.
            room: Tokens that it can hold.
            dtype: The floating dtype of keys and values; int8 for codes of 8 bits, whose steps
                each head and slot has for itself.

        Raises:
            TypeError: The dtype is another.
        """
        kind = jnp.dtype(dtype)
        if kind != jnp.int8 and not jnp.issubdtype(kind, jnp.floating):
            raise TypeError(
                f"DecoderConfig.empty_cache: keys and values are floating or int8, not {kind}."
            )
        # Arrays of their own: what is donated to a compiled step mustn't be there twice.
        keys, values = (
            tuple(
                _empty((batch, room, self.key_heads, self.size), dtype) for _ in range(self.depth)
            )
            for _ in range(2)
        )
        return DecoderCache(keys, values, jnp.zeros((), jnp.int32))


def _empty(shape: tuple[int, ...], dtype: Any) -> Rows:
    zeros = jnp.zeros(shape, dtype)
    # Steps of zero would be as good: what isn't filled is never read.
    return zeros if zeros.dtype != jnp.int8 else Int8Rows(zeros, jnp.zeros(shape[:-1]))


def smollm2_135m() -> DecoderConfig:
    """Gives the sizes of SmolLM2-135M, 134,515,008 parameters (Ben Allal et al., arXiv 2502.02737).

    ```python
    from jaxeff.nn import smollm2_135m

    config = smollm2_135m()
    print(config.size, config.empty_cache(1, 64).keys[0].shape)
    ```
    """
    return DecoderConfig(
        vocabulary=49152, width=576, hidden=1536, depth=30, heads=9, key_heads=3,
        rotary_base=100_000.0,
    )  # fmt: skip
