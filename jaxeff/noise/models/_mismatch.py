"""Mismatch: the columns of a device differ from each other, in the same way in every call.

References:
    Pelgrom, Duinmaijer and Welbers, "Matching properties of MOS transistors", IEEE Journal of
    Solid-State Circuits 24 (1989): neighbours differ less than distant devices.
"""

import functools
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.core import NonNegative, register_setting, static, with_leading_axes
from jaxeff.noise.models._device import Device, DeviceModel
from jaxeff.noise.models._model import Axis, Flag, Place, real_dtype


@register_setting
@dataclass(frozen=True)
class Mismatch(DeviceModel):
    """Fixed gain and offset errors of a device's columns, `x * (1 + gain * g) + offset * o`.

    `g` and `o` hold one number per column (the last axis of `x`), independent of each other. Both
    are Gaussian with unit variance and a correlation of `exp(-distance / length)` between columns.

    Attributes:
        gain: Standard deviation of the columns' gains, without unit; a scalar or an array.
        offset: Standard deviation of their offsets in the units of `x`; a scalar or an array.
        length: Correlation length in columns; 0 makes them independent.
        device: The device, an integer; see `jaxeff.noise.models`.
        at: Place where a layer is perturbed: "output", "weights" or "input".
        along: Axis that an array of levels has one entry along: "sample" or "channel".
        relative: Whether `offset` is in units of the range of `x`.

    Raises:
        TypeError: `device` isn't an integer.
        ValueError: A number is negative, NaN or infinite, or a choice is unknown.
    """

    gain: NonNegative = 0.0
    offset: NonNegative = 0.0
    length: NonNegative = 0.0
    device: Device = 0
    at: Place = static("output")
    along: Axis = static(None)
    relative: Flag = static(False)

    levels: ClassVar[tuple[str, ...]] = ("gain", "offset")

    def _at_site(self, site: int, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Distorts `x` by the columns of one site."""
        dtype, columns = real_dtype(x), jnp.shape(x)[-1:]
        gain_key, offset_key = jax.random.split(self._device_key(site))
        gain = correlated_normal(gain_key, columns, self.length).astype(dtype)
        offset = correlated_normal(offset_key, columns, self.length).astype(dtype)
        gain, offset = (
            with_leading_axes(gain, jnp.shape(x)),
            with_leading_axes(offset, jnp.shape(x)),
        )
        return x * (1 + self._level("gain", x) * gain) + self._amount("offset", x) * offset


@functools.partial(jax.jit, static_argnames="columns")
def correlated_normal(
    key: PRNGKeyArray, columns: tuple[int, ...], length: Float[Array, ""] | float
) -> Float[Array, "*columns"]:
    """Draws a stationary Gaussian process over columns, of unit variance.

    Its correlation `exp(-distance / length)` is that of a first-order autoregression.
    """
    z = jax.random.normal(key, columns)
    if not columns:
        return z
    # The inner `where` keeps the derivative finite at length 0; the outer one selects an infinite
    # rate there, that is, a decay of zero.
    rate = jnp.where(length > 0, 1 / jnp.where(length > 0, length, 1), jnp.inf)
    # y_1 = z_1, y_k = a y_(k-1) + sqrt(1 - a**2) z_k with a = exp(-1 / length) has unit variance
    # everywhere. `expm1` keeps 1 - a**2 from cancelling where a is close to 1.
    innovations = z.at[1:].multiply(jnp.sqrt(-jnp.expm1(-2 * rate)))
    decay = jnp.full(columns, jnp.exp(-rate))
    # A linear recurrence is associative in (decay, innovation): log2(columns) parallel steps.
    return jax.lax.associative_scan(_compose, (decay, innovations))[1]


def _compose(first: tuple[Array, Array], second: tuple[Array, Array]) -> tuple[Array, Array]:
    """Composes two steps of y -> decay * y + innovation."""
    return first[0] * second[0], first[1] * second[0] + second[1]
