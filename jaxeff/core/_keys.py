"""Random keys whose numbers take a third of the time: a hashed counter instead of Threefry.

```python
from jaxeff.core import fast_key
from jaxeff.nn import small_classifier
from jaxeff.noise import Additive, noisy

f, params, (x, y) = small_classifier()
key = fast_key(0)                          # in the place of jax.random.key(0)
logits = noisy(f, {"*": Additive(0.3)})(key, params, x)
```

A noisy network draws a normal number per activation and image; on a processor Threefry's bits then
take longer than the network. Bits are a double round of an avalanche hash over the counter and
both words of the key; keys themselves are made, split and folded by Threefry, so streams of
different layers, steps and seeds are as independent as Threefry's. Every function of `jax.random`
takes such a key, and distributions are the same.

Sharp edges:
    A hash is good enough for noise, dropout and shuffling, and no generator for cryptography.
    2**32 numbers per array; larger arrays repeat.
    Numbers differ from those of `jax.random.key(seed)`.
    On an accelerator Threefry is no bottleneck; nothing is gained there.
"""

import math

import jax
import jax.numpy as jnp
from jax.extend.random import define_prng_impl, threefry_prng_impl
from jaxtyping import Array, PRNGKeyArray, UInt32

# 2**32 over the golden ratio, and the first two words of pi's fraction: arbitrary constants without
# structure.
_STRIDE = 0x9E3779B9  # odd: counters stay different
_OFFSETS = (0x243F6A88, 0x85A308D3)


def fast_key(seed: int | Array) -> PRNGKeyArray:
    """Makes a random key like `jax.random.key(seed)`, whose bits are a hash of a counter.

    Args:
        seed: Any integer.

    Returns:
        A typed key, for everything that takes one.

    References:
        Wellons, "Prospecting for Hash Functions" (2018), the constants of the hash; Salmon et al.,
        "Parallel Random Numbers: As Easy as 1, 2, 3" (2011), counter-based generators.
    """
    return jax.random.key(seed, impl=FAST)


def _bits(key: UInt32[Array, "2"], width: int, shape: tuple[int, ...]) -> Array:
    if width == 64:
        # Both words of the key are changed by 1 and by 2, so that neither half repeats the 32-bit
        # numbers of the same key.
        high, low = (_bits(key ^ jnp.uint32(i), 32, shape).astype(jnp.uint64) for i in (1, 2))
        return high << 32 | low
    # Counters wrap after 2**32 numbers. Until then all are different, and as every step below is a
    # bijection of 32 bits, so are the hashes.
    counter = jax.lax.iota(jnp.uint32, math.prod(shape))
    first, second = key ^ jnp.array(_OFFSETS, jnp.uint32)  # the hash of zero is zero
    bits = _avalanche(_avalanche(counter * jnp.uint32(_STRIDE) ^ first) + second)
    # High bits are the better mixed ones.
    return (bits >> (32 - width)).astype(f"uint{width}").reshape(shape)


def _avalanche(x: UInt32[Array, "*shape"]) -> UInt32[Array, "*shape"]:
    """Mixes 32 bits by a bijection: each input bit flips about half of the output bits."""
    # "lowbias32" of Wellons (2018): shifts 16, 15, 16 and these two odd factors.
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


FAST = define_prng_impl(
    key_shape=(2,),
    seed=threefry_prng_impl.seed,
    split=threefry_prng_impl.split,
    random_bits=_bits,
    fold_in=threefry_prng_impl.fold_in,
    name="jaxeff_counter_hash",
    tag="jch",
)
"""The implementation behind `fast_key`, for `jax.random.wrap_key_data`."""
