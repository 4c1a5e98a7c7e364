"""Integer codes with straight-through gradients: what goes into a crossbar and what comes out.

Codes are floating-point arrays that hold whole numbers, so that they can be differentiated. The
gradient is that of clamping: one inside the range, zero where a value is clamped.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def with_gradient_of(
    value: Float[Array, "*shape"], like: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """Returns `value` bit for bit, with the gradient of `like`."""
    return jax.lax.stop_gradient(value) + (like - jax.lax.stop_gradient(like))


def encode(
    x: Float[Array, "*shape"], step: Float[Array, ""], low: int, high: int
) -> Float[Array, "*shape"]:
    """Rounds values to the nearest codes, half to even, clamped to `low` to `high`.

    Args:
        x: Real numbers.
        step: Value of one code, in the unit of `x`.
        low: The smallest code.
        high: The largest code.
    """
    codes = x / step
    # Up to half a code beyond the ends nothing is clamped, only rounded: the gradient stays.
    return with_gradient_of(
        jnp.round(jnp.clip(codes, low, high)), _inside(codes, low - 0.5, high + 0.5)
    )


def convert(
    counts: Float[Array, "*shape"], bits: int, rounding: str = "floor"
) -> Float[Array, "*shape"]:
    """Converts voltages as a signed converter does: whole counts from `-2**(bits-1)` on.

    Args:
        counts: Voltages in units of one count.
        bits: The width of the codes.
        rounding: "floor", as a converter truncates, or "nearest", for a voltage that was fitted to
            converted values and holds the half count already.
    """
    low, high = signed_range(bits)
    # Straight-through: the gradient of the voltage, where the converter doesn't clamp it.
    whole = jnp.floor(counts) if rounding == "floor" else jnp.round(counts)
    # A converter that truncates gives its largest count up to high + 1.
    return with_gradient_of(jnp.clip(whole, low, high), _inside(counts, low - 0.5, high + 1.0))


def _inside(x: Float[Array, "*shape"], low: float, high: float) -> Float[Array, "*shape"]:
    """Keeps the gradient of `x` where it is between the bounds, both included.

    The largest weight lies on the largest code, and has to learn like any other.
    """
    return jnp.where((x >= low) & (x <= high), x, jax.lax.stop_gradient(x))


def signed_range(bits: int) -> tuple[int, int]:
    """Returns the smallest and the largest signed number of a width."""
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
