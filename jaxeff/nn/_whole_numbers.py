"""Spectra, filters and logarithms in int32: the same bits wherever integers are.

No product here exceeds int32, which is all that JAX has by default, and all that a Cortex-M0
multiplies. Where a bound decides a shift, it stands beside it.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32

TWIDDLE = 14
"""Bits of the fractions of sines: two products of 17-bit numbers with them stay below 2^31."""
LOW = 15
"""Bits of the lower part of an energy."""
WEIGHT = 8
"""Bits of a filter's weights."""
LOG = 8
"""Bits of the fraction of a logarithm, which is to base 2: a step is .0027 of its natural unit."""
TABLE = 7
"""Bits of a mantissa that a table of logarithms is looked up by; the rest is interpolated."""


def shifted(x: Array, bits: int) -> Array:
    """Divides by a power of two, to the nearest whole number, halves up."""
    return (x + (1 << (bits - 1))) >> bits


def leading(x: Array) -> Array:
    """Counts the bits of non-negative numbers."""
    return 32 - jax.lax.clz(x)


def half_spectrum(x: Int32[Array, " size"]) -> tuple[Int32[Array, " bins"], Int32[Array, " bins"]]:
    """Computes the Fourier transform of real numbers, over half their number.

    Pairs of numbers are one complex number each, so that the transform has half the length; each
    of its passes halves what it adds, so that nothing grows.

    Args:
        x: `[size]` below 2^15 in magnitude, size a power of two.

    Returns:
        Real and imaginary parts of `[size // 2 + 1]` bins, times 2 / size.
    """
    half = len(x) // 2
    re, im = _transformed(x[0::2], x[1::2])
    # Z(half) is Z(0), and Z(-k) is Z(half - k).
    back = -np.arange(half + 1) % half
    k = np.arange(half + 1) % half
    ar, ai, br, bi = re[k], im[k], re[back], -im[back]
    # X = (E - i W O) / 2 with E = Z(k) + Z*(-k), O = Z(k) - Z*(-k), which are below 2^17.
    turn = np.pi * np.arange(half + 1) / half
    pr, pi = _turned(ai - bi, br - ar, turn, TWIDDLE)
    return shifted(ar + br + pr, 1), shifted(ai + bi + pi, 1)


def _transformed(re: Array, im: Array) -> tuple[Array, Array]:
    """Stockham's algorithm: results are in order, so that no bits are reversed."""
    length, side = len(re), 1
    re, im = re[:, None], im[:, None]
    while length > 1:
        length //= 2
        # Halves are added and subtracted; the difference is turned, and both take turns. A half
        # is rounded up in one pass and down in the next: always up would be a constant in bin 0.
        up = side.bit_length() % 2
        sums = (re[:length] + re[length:] + up) >> 1, (im[:length] + im[length:] + up) >> 1
        angles = np.pi * np.arange(length)[:, None] / length
        apart = re[:length] - re[length:], im[:length] - im[length:]
        turned = _turned(*apart, angles, TWIDDLE + 1)
        side *= 2
        re, im = (
            jnp.stack(pair, 1).reshape(length, side) for pair in zip(sums, turned, strict=True)
        )
    return re[0], im[0]


def _turned(re: Array, im: Array, angles: np.ndarray, bits: int) -> tuple[Array, Array]:
    """Multiplies by exp(-i angle), over a power of two."""
    cos = np.round(np.cos(angles) * 2**TWIDDLE).astype(np.int32)
    sin = np.round(np.sin(angles) * 2**TWIDDLE).astype(np.int32)
    return shifted(re * cos + im * sin, bits), shifted(im * cos - re * sin, bits)


def filtered(energy: Int32[Array, " bins"], filters: np.ndarray) -> tuple[Array, Array]:
    """Sums energies by filters, as upper and lower part.

    Args:
        energy: `[bins]`, non-negative.
        filters: `[bins, bands]`, at most 1.

    Returns:
        Two arrays `[bands]`: the sums are ``upper 2^15 + lower``, in units of 2^-8.
    """
    # A triangle covers few of the bins: those of each, side by side, are far fewer products than
    # a matrix has.
    weights = np.round(filters * 2**WEIGHT).astype(np.int32)
    first = (weights > 0).argmax(0)
    width = int((weights > 0).sum(0).max())
    at = np.minimum(first[:, None] + np.arange(width), len(filters) - 1)
    inside = first[:, None] + np.arange(width) < len(filters)
    chosen = np.where(inside, weights[at, np.arange(filters.shape[1])[:, None]], 0)
    # 2^16 by 2^8 by fewer than 2^7 bins: below 2^31.
    upper = ((energy[at] >> LOW) * chosen).sum(1)
    lower = ((energy[at] & (2**LOW - 1)) * chosen).sum(1)
    return upper + (lower >> LOW), lower & (2**LOW - 1)


def log2(upper: Int32[Array, " bands"], lower: Int32[Array, " bands"]) -> Int32[Array, " bands"]:
    """Computes logarithms to base 2 of ``upper 2^15 + lower``, in steps of 2^-8; 1 below 1."""
    # The highest 31 bits, as a number from 2^30 to 2^31.
    upper_or_lower = jnp.where(upper > 0, upper, jnp.maximum(lower, 1))
    bits = leading(upper_or_lower)
    mantissa = upper_or_lower << (31 - bits)
    # Where the upper part has fewer bits than that, the lower one's follow.
    more = jnp.where((upper > 0), lower, 0)
    follow = jnp.clip(31 - bits, 0, 31)
    mantissa = mantissa | jnp.where(
        follow >= LOW, more << jnp.maximum(follow - LOW, 0), more >> jnp.maximum(LOW - follow, 0)
    )
    exponent = bits - 1 + jnp.where(upper > 0, LOW, 0)
    # The line between two entries of the table is below the logarithm by less than 2^-15.
    fine = LOG + 6
    entries = np.round(np.log2(1 + np.arange(2**TABLE + 1) / 2**TABLE) * 2**fine)
    table = jnp.asarray(entries, jnp.int32)
    place = (mantissa >> (30 - TABLE)) & (2**TABLE - 1)
    between = (mantissa >> (30 - TABLE - 15)) & (2**15 - 1)
    fraction = table[place] + shifted((table[place + 1] - table[place]) * between, 15)
    return (exponent << LOG) + shifted(fraction, fine - LOG)


def power_of_two(size: int) -> int:
    """Returns the least power of two that is not below a size."""
    return 1 << math.ceil(math.log2(size))
