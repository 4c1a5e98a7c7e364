"""Scales as fixed-point multipliers: rounding to the next layer's codes without a float.

A scale M is written m 2^-(before + after), and a sum a becomes

    t = clamp(a >> before, -2^15, 2^15)        y = (t m) >> after

both shifts to the nearest number, halves up, and m of at most 16 bits, so that nothing exceeds
int32 (Jacob et al. have 32 bits, whose product needs 64). `before` is chosen so that t holds every
code, with at least seven more bits: y is at most 0.02 away from a M before it is rounded. So a code
differs from that of float scales by one at most, where a M is so near to a half.

A shortcut's code s is added as (s m) >> after, m of at most 22 bits.

References:
    Jacob et al., arXiv:1712.05877, section 2.2.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int32

MOST = 2**15
_CODES = 8
_BEFORE, _AFTER = 16, 30
_FACTOR_BITS = 21

Ints = Int32[Array, " columns"]


def multiplier_of(scale: Float[Array, " columns"]) -> tuple[Ints, Ints, Ints]:
    """Converts a scale to a multiplier and the shifts before and after it."""
    part, exponent = jnp.frexp(scale)
    # M 2^before >= 2^-7: then t = a >> before has at most 15 bits where the code has 8.
    before = jnp.clip(1 - _CODES + 1 - exponent, 0, _BEFORE)
    exponent = exponent + before
    # m = part 2^15, so |t m| <= 2^30 and the half that rounds fits int32 beside it.
    after = jnp.clip(15 - exponent, 1, _AFTER)
    return _whole(part, exponent + after, MOST), before, after


def factor_of(factor: Float[Array, " columns"]) -> tuple[Ints, Ints]:
    """Converts a shortcut's factor to a multiplier and the shift after it."""
    part, exponent = jnp.frexp(factor)
    # A code of 8 bits times 21: below 2^29, which leaves room for the half that rounds.
    after = jnp.clip(_FACTOR_BITS - exponent, 0, _AFTER)
    return _whole(part, exponent + after, 2**_FACTOR_BITS), after


def multiplied(sums: Array, multiplier: Array, before: Array, after: Array) -> Array:
    """Scales sums to steps of the result, rounded but not clamped."""
    # Half of what is shifted out could overflow if it were added.
    half = lax.shift_right_arithmetic(
        sums, jnp.broadcast_to(jnp.maximum(before - 1, 0), sums.shape)
    )
    short = lax.shift_right_arithmetic(sums, jnp.broadcast_to(before, sums.shape))
    t = jnp.clip(short + (half & jnp.minimum(before, 1)), -MOST, MOST)
    return shifted(t * multiplier, after)


def shifted(product: Array, after: Array) -> Array:
    """Shifts a product, rounding to the nearest number."""
    # 2^(after - 1), and 0 where nothing is shifted out.
    half = lax.shift_right_arithmetic(
        lax.shift_left(jnp.ones_like(after), after), jnp.ones_like(after)
    )
    return lax.shift_right_arithmetic(product + half, jnp.broadcast_to(after, product.shape))


def _whole(part: Array, exponent: Array, most: int) -> Any:
    found = lax.round(jnp.ldexp(part, exponent), lax.RoundingMethod.TO_NEAREST_EVEN)
    return jnp.clip(found, float(-most), float(most)).astype(jnp.int32)
