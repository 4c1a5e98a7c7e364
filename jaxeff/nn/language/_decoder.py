"""A decoder of text: grouped queries, rotary positions, RMS norms, gated layers, a tied head.

The architecture is Llama's (Touvron et al., arXiv 2302.13971) with grouped queries (Ainslie et al.,
arXiv 2305.13245). Sharp edges:

- Rotary positions turn the halves of a head against each other, as Flax and torch models do; files
  in which neighbours are turned need `jaxeff.weights.rotary_halves`.
- Tokens that a cache has no room for are refused where its length is known. Inside of `jit`, and in
  bundles, their logits are NaN, and what the cache holds stays as it is.
"""

from __future__ import annotations

from typing import overload

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jaxeff.core import is_concrete
from jaxeff.nn.language._attention import Rows, cached_attention, written
from jaxeff.nn.language._config import DecoderCache, DecoderConfig

_Cached = tuple[Rows, Rows, jax.Array]  # keys, values, and the tokens before


class GroupedAttention(nnx.Module):
    """``query``, ``key``, ``value``, ``out``; several heads of queries share one of keys."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs):
        """Builds the layers."""
        self.heads, self.size, self.base = config.heads, config.size, config.rotary_base
        width, shared = config.width, config.key_heads * config.size
        self.query = nnx.Linear(width, width, use_bias=False, rngs=rngs)
        self.key = nnx.Linear(width, shared, use_bias=False, rngs=rngs)
        self.value = nnx.Linear(width, shared, use_bias=False, rngs=rngs)
        self.out = nnx.Linear(width, width, use_bias=False, rngs=rngs)

    def __call__(
        self, x: Float[Array, "batch length width"], cached: _Cached | None
    ) -> tuple[Float[Array, "batch length width"], Rows, Rows]:
        """Returns the output, and keys and values with those that were cached."""
        apart = (*x.shape[:2], -1, self.size)
        query, key, value = (
            layer(x).reshape(apart) for layer in (self.query, self.key, self.value)
        )
        before = 0 if cached is None else cached[2]
        at = before + jnp.arange(x.shape[1])
        query, key = (_rotate(a, at, self.base) for a in (query, key))
        if cached is not None:
            keys, values = (
                written(old, new, cached[2])
                for old, new in zip(cached[:2], (key, value), strict=True)
            )
            mixed = cached_attention(query, keys, values, cached[2])
            return self.out(mixed.reshape(x.shape)), keys, values
        wide_key, wide_value = (jnp.repeat(a, self.heads // a.shape[2], 2) for a in (key, value))
        allowed = jnp.arange(key.shape[1])[None] <= at[:, None]
        mixed = nnx.dot_product_attention(query, wide_key, wide_value, mask=allowed[None, None])
        return self.out(mixed.reshape(x.shape)), key, value


class DecoderBlock(nnx.Module):
    """``norm1``, ``attn``, ``norm2``, ``gate``, ``up``, ``down``."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs):
        """Builds the layers."""
        width, hidden = config.width, config.hidden
        self.norm1 = nnx.RMSNorm(width, epsilon=config.epsilon, rngs=rngs)
        self.attn = GroupedAttention(config, rngs=rngs)
        self.norm2 = nnx.RMSNorm(width, epsilon=config.epsilon, rngs=rngs)
        self.gate = nnx.Linear(width, hidden, use_bias=False, rngs=rngs)
        self.up = nnx.Linear(width, hidden, use_bias=False, rngs=rngs)
        self.down = nnx.Linear(hidden, width, use_bias=False, rngs=rngs)

    def __call__(
        self, x: Float[Array, "batch length width"], cached: _Cached | None = None
    ) -> tuple[Float[Array, "batch length width"], Rows, Rows]:
        """Returns the block's output, and its keys and values."""
        mixed, key, value = self.attn(self.norm1(x), cached)
        x = x + mixed
        y = self.norm2(x)
        # SwiGLU (arXiv 2002.05202).
        return x + self.down(jax.nn.silu(self.gate(y)) * self.up(y)), key, value


class Decoder(nnx.Module):
    """``embed``, ``blocks`` and ``norm``; the head is the embedding."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs):
        """Builds the layers.

        Args:
            config: The sizes.
            rngs: Keys for the initial parameters.
        """
        self.embed = nnx.Embed(config.vocabulary, config.width, rngs=rngs)
        self.blocks = nnx.List([DecoderBlock(config, rngs=rngs) for _ in range(config.depth)])
        self.norm = nnx.RMSNorm(config.width, epsilon=config.epsilon, rngs=rngs)

    @overload
    def __call__(
        self, tokens: Int[Array, "batch length"]
    ) -> Float[Array, "batch length words"]: ...

    @overload
    def __call__(
        self, tokens: Int[Array, "batch length"], cache: DecoderCache
    ) -> tuple[Float[Array, "batch length words"], DecoderCache]: ...

    @overload
    def __call__(
        self, tokens: Int[Array, "batch length"], cache: DecoderCache, count: Int[Array, ""]
    ) -> tuple[Float[Array, "batch words"], DecoderCache]: ...

    def __call__(
        self,
        tokens: jax.Array,
        cache: DecoderCache | None = None,
        count: jax.Array | None = None,
    ) -> jax.Array | tuple[jax.Array, DecoderCache]:
        """Computes the logits of the token after each.

        Args:
            tokens: Numbers of tokens; with a cache, those that follow the ones in it.
            cache: Keys and values of the tokens before, from `DecoderConfig.empty_cache` or a call.
            count: How many of the first tokens count, beside a cache; the others fill a fixed
                length up, and are overwritten by what follows.

        Returns:
            The logits; with a cache, also the cache with these tokens. With a count the logits of
            the last token that counts alone, `[batch, words]`. NaN, where lengths are known only
            when the program runs and the cache has no room for the tokens that count.

        Raises:
            ValueError: The cache has no room for the tokens, or `count` is none of 1 to their
                number.
        """
        fits = cache is None or _fits(cache, tokens.shape[1], count)
        x = self.embed(tokens)
        keys, values = [], []
        for i, block in enumerate(self.blocks):
            cached = None if cache is None else (cache.keys[i], cache.values[i], cache.length)
            x, key, value = block(x, cached)
            keys.append(key)
            values.append(value)
        if cache is None:
            return self.embed.attend(self.norm(x))
        if count is not None:
            # One row for the head, which is a third of a small decoder's work.
            x = jax.lax.dynamic_slice_in_dim(x, count - 1, 1, axis=1)
        logits = self.embed.attend(self.norm(x))
        length = cache.length + (tokens.shape[1] if count is None else count)
        made = DecoderCache(tuple(keys), tuple(values), length)
        # NaN is seen; logits of a text that lacks some tokens would pass for right.
        logits = jnp.where(fits, logits, jnp.nan)
        return (logits if count is None else logits[:, 0]), made


def _fits(cache: DecoderCache, length: int, count: jax.Array | None) -> Bool[Array, ""]:
    """Tells whether a cache has room for the tokens that count, and that they are tokens given."""
    room = jax.tree.leaves(cache.keys)[0].shape[1]
    if length > room:
        raise ValueError(f"Decoder: {length} tokens at a time don't fit a cache of {room}.")
    many = length if count is None else count
    if is_concrete(many) and not 1 <= int(many) <= length:
        raise ValueError(f"Decoder: count must be 1 to {length}, not {int(many)}.")
    if is_concrete(many) and is_concrete(cache.length) and int(cache.length) + int(many) > room:
        raise ValueError(
            f"Decoder: {int(many)} more tokens don't fit a cache of {room} of which "
            f"{int(cache.length)} are taken; begin with a larger one (`empty_cache`)."
        )
    counts = jnp.asarray(many)
    return (counts >= 1) & (counts <= length) & (cache.length + counts <= room)


def _rotate(
    x: Float[Array, "batch length heads size"], at: Int[Array, " length"], base: float
) -> Float[Array, "batch length heads size"]:
    """Turns the halves of heads by angles that grow with positions (RoPE, arXiv 2104.09864)."""
    half = x.shape[-1] // 2
    wavelengths = jnp.asarray(base ** (np.arange(half) / half), jnp.float32)
    angle = at[:, None, None].astype(jnp.float32) / wavelengths[None, None]
    cos, sin = (turn(angle).astype(x.dtype)[None] for turn in (jnp.cos, jnp.sin))
    left, right = x[..., :half], x[..., half:]
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], -1)
