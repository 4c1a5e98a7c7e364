"""Tokens drawn from logits, and texts of them as one loop that compiles.

```python
import jax
import jax.numpy as jnp
from flax import nnx

import jaxeff
from jaxeff.contrib import Decoder, DecoderConfig, generate

config = DecoderConfig(vocabulary=50, width=16, hidden=32, depth=2, heads=4, key_heads=2)
f, params = jaxeff.functional(Decoder(config, rngs=nnx.Rngs(0)))
prompt, cache = jnp.array([[3, 1, 4]]), config.empty_cache(1, 16)
tokens, cache = generate(jax.random.key(0), f, params, prompt, cache, 8, temperature=0.8, top_k=5)
print(tokens.shape, cache.length)                              # (1, 8) 11
```
"""

from collections.abc import Callable
from typing import Any, TypedDict, Unpack

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxeff import core
from jaxeff.contrib._decoder import DecoderCache


class SamplingOptions(TypedDict, total=False):
    """How a token is drawn; `sample` has their meaning and defaults."""

    temperature: float
    top_k: int | None
    top_p: float | None


@core.validate(
    key=core.single_key,
    logits=core.real_array(),
    temperature=core.number(0),
    top_k=core.static_integer(1),
    top_p=core.number(0, 1, above=0),
)
def sample(
    key: jax.Array,
    logits: Float[Array, "... words"],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Int[Array, "..."]:
    """Draws a token from each row of logits.

    Args:
        key: A key; it isn't used at a temperature of 0.
        logits: Logarithms of probabilities, up to a constant.
        temperature: What logits are divided by; 0 takes the most probable token (greedy).
        top_k: How many of the most probable tokens may be drawn, of equals the first; all by
            default.
        top_p: Only the most probable tokens that together have at least this probability may be
            drawn (nucleus sampling, Holtzman et al., arXiv 1904.09751); all by default.

    Returns:
        The tokens, int32; -1 of rows that hold NaN, as those of a `Decoder` beyond its cache.

    ```python
    import jax
    import jax.numpy as jnp
    from jaxeff.contrib import sample

    logits = jnp.log(jnp.array([[0.5, 0.3, 0.15, 0.05]]))
    print(sample(jax.random.key(0), logits, temperature=0.0))      # [0]
    draws = sample(jax.random.key(0), jnp.tile(logits, (1000, 1)), top_p=0.7)
    print(draws.max())                                             # 1
    ```
    """
    # NaN compares with nothing: any draw would be of tokens that nobody meant.
    drawn = _drawn(key, logits, temperature, top_k, top_p)
    return jnp.where(jnp.isnan(logits).any(-1), -1, drawn).astype(jnp.int32)


def _drawn(
    key: jax.Array, logits: jax.Array, temperature: float, top_k: int | None, top_p: float | None
) -> jax.Array:
    if temperature == 0:
        return jnp.argmax(logits, axis=-1)
    logits = logits / temperature
    if top_k is None and top_p is None:
        return jax.random.categorical(key, logits, axis=-1)
    # Drawn among places in decreasing order: a threshold would let all that equal it in.
    order = jnp.argsort(-logits, axis=-1, stable=True)
    descending = jnp.take_along_axis(logits, order, -1)
    if top_k is not None:
        places = jnp.arange(logits.shape[-1])
        descending = jnp.where(places < top_k, descending, -jnp.inf)
    if top_p is not None:
        probs = jax.nn.softmax(descending, axis=-1)
        # The token that reaches the probability belongs to those that have it.
        inside = jnp.cumsum(probs, axis=-1) - probs < top_p
        descending = jnp.where(inside, descending, -jnp.inf)
    drawn = jax.random.categorical(key, descending, axis=-1)
    return jnp.take_along_axis(order, drawn[..., None], -1)[..., 0]


@core.validate(
    key=core.single_key,
    f=core.function_of_form("f(params, tokens, cache, count)"),
    params=core.parameter_tree,
    tokens=core.integer_array(2),
    cache=core.instance_of(DecoderCache),
    count=core.integer_array(0),
    steps=core.static_integer(1),
    temperature=core.number(0),
    top_k=core.static_integer(1),
    top_p=core.number(0, 1, above=0),
)
@core.forwards(sample, SamplingOptions)
def generate(
    key: jax.Array,
    f: Callable[..., Any],
    params: Any,
    tokens: Int[Array, "batch length"],
    cache: DecoderCache,
    steps: int,
    *,
    count: Int[Array, ""] | None = None,
    **options: Unpack[SamplingOptions],
) -> tuple[Int[Array, "batch steps"], DecoderCache]:
    """Continues texts token by token, in one loop that jits and deploys.

    Args:
        key: A key; token `i` is drawn by `jax.random.fold_in(key, i)`.
        f: `f(params, tokens, cache, count)`, as `Decoder` computes.
        params: The decoder's parameters.
        tokens: The texts' beginning, or what follows what is in the cache.
        cache: From `DecoderConfig.empty_cache`, with room for all of it.
        steps: How many tokens to draw.
        count: How many of the first tokens count, where the others only fill a fixed length up.
        **options: `temperature`, `top_k` and `top_p`, as for `sample`.

    Returns:
        The tokens, and the cache with all of them. A token is -1 where the cache has no room for
        what comes before it, and its length is known only when the program runs.

    Raises:
        ValueError: The cache has no room for them, behind those that it holds if their number is
            known; or `count` is none of 1 to the length of `tokens`.
    """
    width = tokens.shape[1]
    # Where it isn't known how many count, all may.
    counted = int(count) if count is not None and core.is_concrete(count) else width
    if not 1 <= counted <= width:
        raise ValueError(f"generate: count must be 1 to {width}, not {counted}.")
    _check_room(cache, counted, steps)
    length = jnp.asarray(width if count is None else count, jnp.int32)
    first, cache = f(params, tokens, cache, length)

    def step(
        carry: tuple[jax.Array, DecoderCache], i: jax.Array
    ) -> tuple[tuple[jax.Array, DecoderCache], jax.Array]:
        logits, cache = carry
        token = sample(jax.random.fold_in(key, i), logits, **options)
        return f(params, token[:, None], cache, jnp.int32(1)), token

    (_, cache), drawn = jax.lax.scan(step, (first, cache), jnp.arange(steps))
    return drawn.T, cache


def _check_room(cache: DecoderCache, tokens: int, steps: int) -> None:
    room = jax.tree.leaves(cache.keys)[0].shape[1]
    # Inside of jit the length is unknown.
    before = int(cache.length) if core.is_concrete(cache.length) else 0
    if before + tokens + steps > room:
        held = f" of which {before} are taken" if before else ""
        raise ValueError(
            f"generate: {tokens} tokens and {steps} more don't fit a cache of {room}{held}."
        )
