"""Conductance drift: the slow power-law decay of a memory cell after it was programmed.

References:
    Ielmini, Lavizzari, Sharma and Lacaita, "Physical interpretation, modeling and impact on phase
    change memory (PCM) reliability of resistance drift due to chalcogenide structural relaxation",
    IEDM 2007.
    Joshi et al., "Accurate deep neural network inference using computational phase-change memory",
    arXiv:1906.03138, eq. 3.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxeff.noise.device import NOWHERE, check_device, device_key, device_shape
from jaxeff.noise.granularity import aligned, check_granularity, real_dtype
from jaxeff.settings import check_number, register_setting, static


@register_setting
@dataclass(frozen=True)
class Drift:
    """Drift by a power of time, `x * time**-N(nu, spread)`.

    The exponents belong to the device: at another time it has the same ones. With time in units of
    t0, a value falls to `(t / t0)**-nu` of what it was at t0.

    Attributes:
        time: Time since programming in units of the reference time t0, at least 1; a scalar or an
            array.
        nu: Mean drift exponent, without unit; a scalar or an array. Phase-change memory has about
            0.05.
        spread: Standard deviation of the exponents, which may become negative.
        device: The device, an integer; see `jaxeff.noise.device`.
        at: Where a layer is perturbed: "output", "weights" or "input". Memory cells are weights.
        per: What shares one exponent: "element" (nothing) or "channel"; samples always do.
        along: What arrays hold one entry for: "sample" (each was read at its own time) or
            "channel".

    Raises:
        TypeError: `device` isn't an integer.
        ValueError: `time` is below 1, another number is negative, NaN or infinite, or a choice is
            unknown.
    """

    time: Float[Array, "..."] | float
    nu: Float[Array, "..."] | float = 0.05
    spread: Float[Array, "..."] | float = 0.0
    device: Int[Array, ""] | int = 0
    at: str = static("output")
    per: str = static("element")
    along: str | None = static(None)

    levels: ClassVar[tuple[str, ...]] = ("nu", "spread")

    def __post_init__(self) -> None:
        check_number("Drift.time", self.time, low=1)
        check_number("Drift.nu", self.nu, low=0)
        check_number("Drift.spread", self.spread, low=0)
        check_granularity(self)
        check_device(self)

    def perturb(self, key: PRNGKeyArray, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Returns `x` after the drift; the key isn't used."""
        return self.perturb_site(key, NOWHERE, x)

    def perturb_site(
        self, key: PRNGKeyArray, site: int, x: Float[Array, "*shape"]
    ) -> Float[Array, "*shape"]:
        """Returns `x` after the drift of one site; the key isn't used."""
        del key
        dtype = real_dtype(x)
        z = jax.random.normal(device_key(self, site), device_shape(self, x))
        nu = aligned(self, "nu", x) + aligned(self, "spread", x) * z
        return x * jnp.exp(-nu * jnp.log(aligned(self, "time", x))).astype(dtype)
