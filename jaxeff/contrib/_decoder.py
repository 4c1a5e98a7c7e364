"""A decoder of text: grouped queries, rotary positions, RMS norms, gated layers, a tied head.

```python
import jax.numpy as jnp
from flax import nnx

import jaxeff
from jaxeff.contrib import Decoder, DecoderConfig

config = DecoderConfig(vocabulary=50, width=16, hidden=32, depth=2, heads=4, key_heads=2)
f, params = jaxeff.functional(Decoder(config, rngs=nnx.Rngs(0)))
tokens = jnp.array([[3, 1, 4, 1]])
logits = f(params, tokens)                                     # [1, 4, 50]
start, cache = f(params, tokens[:, :3], config.empty_cache(1, 8))
last, cache = f(params, tokens[:, 3:], cache)                  # as logits[:, 3:]
```

The architecture is Llama's (Touvron et al., arXiv 2302.13971) with grouped queries (Ainslie et al.,
arXiv 2305.13245).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, overload

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Int8

from jaxeff.core import Count, Number, Setting, is_concrete, register_setting, static
from jaxeff.core import jax_internals as _compat

_MOST = 127.0  # of a symmetric code of 8 bits


class Int8Rows(NamedTuple):
    """Keys or values in 8 bits, each head and slot with a step of its own.

    Attributes:
        codes: Whole numbers from -127 to 127.
        steps: What a unit of each head and slot is worth.
    """

    codes: Int8[Array, "batch room heads size"]
    steps: Float[Array, "batch room heads"]

    @classmethod
    def of(cls, x: Float[Array, "batch room heads size"]) -> Int8Rows:
        """Rounds rows to the nearest codes; the largest of a row is exact."""
        largest = jnp.max(jnp.abs(x), axis=-1).astype(jnp.float32)
        # A row of zeros has zeros for codes, whatever its step.
        steps = jnp.where(largest > 0, largest, 1.0) / _MOST
        codes = jnp.round(x.astype(jnp.float32) / steps[..., None])
        return cls(codes.astype(jnp.int8), steps)

    def floats(self) -> Float[Array, "batch room heads size"]:
        """Gives the numbers that the codes stand for."""
        return self.codes.astype(jnp.float32) * self.steps[..., None]


Rows = jax.Array | Int8Rows


def written(
    old: Rows, new: Float[Array, "batch length heads size"], before: Int[Array, ""]
) -> Rows:
    """Puts the rows of new tokens behind those that a cache holds, in its own form.

    Rows beyond the cache's room are left out: they may be what fills a block up.
    """
    rows = Int8Rows.of(new) if isinstance(old, Int8Rows) else new.astype(old.dtype)
    room, length = jax.tree.leaves(old)[0].shape[1], new.shape[1]
    # XLA moves a window back until it ends inside, over rows that earlier tokens wrote. So it is
    # begun where it ends inside, and its first rows are those that are there.
    begin = jnp.minimum(before, room - length)
    moved = before - begin

    def put(old: jax.Array, new: jax.Array) -> jax.Array:
        there = jax.lax.dynamic_slice_in_dim(old, begin, length, axis=1)
        both = jnp.concatenate([there, new], axis=1)
        shifted = jax.lax.dynamic_slice_in_dim(both, length - moved, length, axis=1)
        is_old = (jnp.arange(length) < moved).reshape(-1, *[1] * (old.ndim - 2))
        window = jnp.where(is_old, there, shifted)
        return jax.lax.dynamic_update_slice_in_dim(old, window, begin, axis=1)

    return jax.tree.map(put, old, rows)


def cached_attention(
    query: Float[Array, "batch length heads size"], keys: Rows, values: Rows, before: Int[Array, ""]
) -> Float[Array, "batch length heads size"]:
    """Attends to the slots of a cache that are filled, the queries' own among them.

    A function lowered for export holds `cached_attention` as the composite
    `jaxeff.cached_attention`, whose decomposition is the plain attention below: the artifact runs
    wherever StableHLO runs, and an operator library that knows the name reads only the slots that
    are filled. Operands, in order:

        query       float32, [batch, length, heads, size]
        keys        float32, or codes in int8, [batch, room, key heads, size]
        values      the same
        before      int32, []: how many slots were filled before these queries
        key_steps   float32, [batch, room, key heads], beside codes: key = code times step
        value_steps the same

    Query t attends to the slots up to `before + t`.
    """
    operands: list[jax.Array]
    if isinstance(keys, Int8Rows) or isinstance(values, Int8Rows):
        (key, key_steps), (value, value_steps) = keys, values
        operands = [query, key, value, before, key_steps, value_steps]
    else:
        operands = [query, keys, values, before]
    floats = all(a.dtype in (jnp.float32, jnp.int8) for a in operands if a.ndim)
    # Other dtypes have no kernel: they stay what they are, operation by operation.
    if not floats or before.dtype != jnp.int32:
        return _attention(*operands)[0]
    (mixed,) = _compat.export_composite(_attention, operands, "jaxeff.cached_attention", {})
    return mixed


def _attention(
    query: jax.Array, keys: jax.Array, values: jax.Array, before: jax.Array, *steps: jax.Array
) -> tuple[jax.Array]:
    """Attends to all slots, under a mask of those that are filled."""
    if steps:
        keys, values = (
            Int8Rows(codes, step).floats()
            for codes, step in zip((keys, values), steps, strict=True)
        )
    groups = query.shape[2] // keys.shape[2]
    wide_keys, wide_values = (jnp.repeat(a, groups, 2) for a in (keys, values))
    at = before + jnp.arange(query.shape[1])
    allowed = jnp.arange(keys.shape[1])[None] <= at[:, None]
    return (nnx.dot_product_attention(query, wide_keys, wide_values, mask=allowed[None, None]),)


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
    from jaxeff.contrib import smollm2_135m

    config = smollm2_135m()
    print(config.size, config.empty_cache(1, 64).keys[0].shape)
    ```
    """
    return DecoderConfig(
        vocabulary=49152, width=576, hidden=1536, depth=30, heads=9, key_heads=3,
        rotary_base=100_000.0,
    )  # fmt: skip


_Cached = tuple[Rows, Rows, jax.Array]  # keys, values, and the tokens before


class GroupedAttention(nnx.Module):
    """``query``, ``key``, ``value``, ``out``; several heads of queries share one of keys."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs):
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
    """``embed``, ``blocks`` and ``norm``; the head is the embedding.

    Sharp edges:
    - Rotary positions turn the halves of a head against each other, as Flax and torch models do;
      files in which neighbours are turned need `jaxeff.weights.rotary_halves`.
    - Tokens that a cache has no room for are refused where its length is known. Inside of `jit`,
      and in bundles, their logits are NaN, and what the cache holds stays as it is.
    """

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
        self, tokens: jax.Array, cache: DecoderCache | None = None, count: jax.Array | None = None
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
        new_cache = DecoderCache(tuple(keys), tuple(values), length)
        # NaN is seen; logits of a text that lacks some tokens would pass for right.
        logits = jnp.where(fits, logits, jnp.nan)
        return (logits if count is None else logits[:, 0]), new_cache


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
