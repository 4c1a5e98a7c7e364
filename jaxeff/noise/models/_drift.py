"""Conductance drift: the slow power-law decay of a memory cell after it was programmed.

References:
    Ielmini, Lavizzari, Sharma and Lacaita, "Physical interpretation, modeling and impact on phase
    change memory (PCM) reliability of resistance drift due to chalcogenide structural relaxation",
    IEDM 2007.
    Joshi et al., "Accurate deep neural network inference using computational phase-change memory",
    arXiv:1906.03138, eq. 3.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxeff.core import NonNegative, Number, register_setting, static
from jaxeff.noise.models._device import Device, DeviceModel, DeviceSharing
from jaxeff.noise.models._model import Axis, Place, real_dtype


@register_setting
@dataclass(frozen=True)
class Drift(DeviceModel):
    """Drift by a power of time, `x * time**-N(nu, spread)`.

    The exponents belong to the device: at another time it has the same ones. With time in units of
    t0, a value falls to `(t / t0)**-nu` of what it was at t0.

    Attributes:
        time: Time since programming in units of the reference time t0, at least 1; a scalar or an
            array.
        nu: Mean drift exponent, without unit; a scalar or an array. Phase-change memory has about
            0.05.
        spread: Standard deviation of the exponents, which may become negative.
        device: The device, an integer; see `jaxeff.noise.models`.
        at: Place where a layer is perturbed; memory cells are "weights".
        per: What shares one exponent: "element" (nothing) or "channel"; samples always do.
        along: Axis that arrays have one entry along: "sample" (each was read at its own time) or
            "channel".

    Raises:
        TypeError: `device` isn't an integer.
        ValueError: `time` is below 1, another number is negative, NaN or infinite, or a choice is
            unknown.
    """

    time: Annotated[Float[Array, "..."] | float, Number(1)]
    nu: NonNegative = 0.05
    spread: NonNegative = 0.0
    device: Device = 0
    at: Place = static("output")
    per: DeviceSharing = static("element")
    along: Axis = static(None)

    levels: ClassVar[tuple[str, ...]] = ("nu", "spread")

    def _at_site(self, site: int, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Applies the drift of one site."""
        dtype = real_dtype(x)
        # Drawn without the time: a device that is read later is further along the same curve.
        z = jax.random.normal(self._device_key(site), self._device_shape(x))
        nu = self._aligned("nu", x) + self._aligned("spread", x) * z
        # (t / t0)**-nu of Joshi et al., eq. 3, as an exponential: with t >= t0 its logarithm is
        # finite, and gradients reach the time and the exponents.
        return x * jnp.exp(-nu * jnp.log(self._aligned("time", x))).astype(dtype)
