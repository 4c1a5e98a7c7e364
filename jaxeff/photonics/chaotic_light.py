"""`ChaoticLight`: how an intensity is spread over time slots, and the noise that follows from it.

Light in k slots of equal intensity has excess noise I²/(kM): the same total in few strong pulses
is noisier than in many weak ones, so the noise of an activation can be set apart from its value,
within bounds. `sigma_bounds` gives the bounds, the setting's `noise` L in [0, 1] picks the standard
deviation linearly between them, and `slot_pattern` the pulses that produce exactly this deviation.

Sharp edges:
    The source publishes neither the number of slots nor the photon rate or noise floor. `slots`,
    `cap`, `photons` and `electronic` and the form of the bounds are ours: the smallest noise is an
    even split over all slots, the largest the fewest full slots, and every slot read adds the same
    electronic noise.
    The largest intensity that fits is `slots * cap`. Scale activations to it.
    `noise` must stay in [0, 1] in training: make it a sigmoid of the trained parameter.
    With `correlation`, slots share modes and average out less: both bounds rise, and an even split
    isn't quite the quietest one any more (slots at the ends are less alike).

References:
    Brückerhoff-Plückelmann et al., "Probabilistic photonic computing with chaotic light",
    Nature Communications 15, 10445 (2024).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.photonics.correlation import Correlation
from jaxeff.photonics.photon_counts import MODES, TINY
from jaxeff.program import Layer
from jaxeff.settings import (
    Choice,
    Count,
    NonNegative,
    Number,
    Setting,
    check_number,
    is_concrete,
    lifted,
    register_setting,
    static,
    static_number,
)

MODELS = ("gaussian", "physical", "free")
ORDERS = ("after", "before")


@register_setting
@dataclass(frozen=True)
class ChaoticLight(Setting):
    """Chaotic light as the carrier of an average pooling layer's activations.

    Attributes:
        noise: L, where the standard deviation lies between its bounds, in [0, 1] (but see "free");
            a scalar, or an array that broadcasts against the pooled activations. Meant to be
            learned.
        cap: Largest intensity of one slot, in the units of the activations.
        modes: Degeneracy factor M of the light in one slot.
        photons: Photons per unit of intensity: the scale of shot noise (ours).
        electronic: Standard deviation of the electronic noise of one slot read, in the units of
            the activations (the value is ours).
        correlation: Of the light in neighbouring slots, in [0, 1) (ours); a Python number is known
            to the compiler, which leaves it out if it is 0.
        saturation: Detector reading at which one slot saturates, or None. Physical model only.
        slots: Number of time slots per activation.
        bits: Bit width of the quantized ReLU in front of the pooling, 1 to 8, or None.
        levels: Number of amplitudes a slot can have, zero and `cap` included, reached by
            stochastic rounding; or None. Physical model only.
        model: "gaussian", the differentiable training model, or "physical", the simulation with
            exact Bose-Einstein statistics. "free" is what no hardware does, to compare with:
            Gaussian noise of the deviation L sigma_max, however small or large.
        pattern: Whether pulses are made "after" pooling, one train per pooled activation, or
            "before" it, as the source draws it: one per activation, pooled slot by slot.

    Raises:
        TypeError: `slots`, `bits` or `levels` isn't an integer.
        ValueError: A number is out of range, or `model` is unknown.
    """

    noise: NonNegative = 0.5
    cap: Annotated[Float[Array, ""] | float, Number(TINY)] = 1.0
    modes: Annotated[Float[Array, ""] | float, Number(TINY)] = MODES
    photons: Annotated[Float[Array, ""] | float, Number(TINY)] = 1000.0
    electronic: NonNegative = 0.01
    correlation: Correlation = static_number(0.0)
    saturation: Annotated[Float[Array, ""] | float | None, Number(TINY)] = None
    slots: Annotated[int, Count()] = static(8)
    bits: Annotated[int | None, Count(1, 8)] = static(None)
    levels: Annotated[int | None, Count(2)] = static(None)
    model: Annotated[str, Choice(*MODELS)] = static("gaussian")
    pattern: Annotated[str, Choice(*ORDERS)] = static("after")

    def __post_init__(self) -> None:
        """Checks the fields."""
        super().__post_init__()
        if self.model != "free":
            check_number("ChaoticLight.noise", self.noise, 0, 1)
        elif self.pattern == "before":
            raise ValueError("ChaoticLight.model 'free' has no pulses to make before pooling.")

    @property
    def full_scale(self) -> Float[Array, ""] | float:
        """The largest intensity that fits, in the units of the activations."""
        return self.slots * self.cap

    def refuses(self, layer: Layer) -> str:
        """See `PhotonicElement`."""
        from jaxeff.photonics.pooling import refuses_pooling

        return refuses_pooling(layer)

    def carry(self, key: PRNGKeyArray, layer: Layer, values: Sequence[Any]) -> Sequence[Any]:
        """See `PhotonicElement`."""
        from jaxeff.photonics.pooling import carry_pooling

        return carry_pooling(key, layer, values, self)


def sigma_bounds(
    intensity: Float[Array, "*shape"], light: ChaoticLight
) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
    """The smallest and largest standard deviation an intensity can be given.

    Args:
        intensity: Pooled activations, between zero and `light.full_scale`; larger ones are cut off.
        light: The setting.

    Returns:
        The deviation of an even split over all slots, and that of the fewest full slots, in the
        units of the intensity. Both contain shot noise and the electronic noise of all slots.

    Raises:
        ValueError: An intensity is negative or NaN, where it is concrete.
    """
    check_number("intensity", intensity, 0)
    intensity = _carried(intensity, light)
    floor = intensity / light.photons + light.slots * light.electronic**2
    if is_correlated(light):
        even, fewest = _patterns(intensity, light)
        smallest, largest = (floor + _excess(p, p, light) for p in (even, fewest))
    else:
        full = jnp.floor(intensity / light.cap)
        rest = intensity - full * light.cap
        smallest = floor + intensity**2 / (light.slots * light.modes)
        largest = floor + (full * light.cap**2 + rest**2) / light.modes
    return _root(smallest), _root(jnp.maximum(largest, smallest))


def noise_sigma(intensity: Float[Array, "*shape"], light: ChaoticLight) -> Float[Array, "*shape"]:
    """The standard deviation that `light.noise` picks: L sigma_max + (1 - L) sigma_min."""
    smallest, largest = sigma_bounds(intensity, light)
    noise = lifted(light.noise, jnp.shape(intensity))
    if light.model == "free":
        return noise * largest
    return noise * largest + (1 - noise) * smallest


def slot_pattern(
    intensity: Float[Array, "*shape"], light: ChaoticLight
) -> Float[Array, "slots ..."]:
    """The pulse train that carries an intensity with the deviation that `light.noise` picks.

    Args:
        intensity: Pooled activations, between zero and `light.full_scale`; larger ones are cut off.
        light: The setting.

    Returns:
        One intensity per slot, each between zero and `light.cap`; their sum is `intensity`.

    Raises:
        ValueError: An intensity is negative or NaN, where it is concrete.
    """
    smallest, largest = sigma_bounds(intensity, light)
    even, fewest = _patterns(_carried(intensity, light), light)
    noise = lifted(light.noise, jnp.shape(intensity))
    if is_correlated(light):
        t = _mixture(even, fewest, noise * (largest - smallest), smallest, light)
    else:
        # A mixture even + t (fewest - even) has variance sigma_min² + t² (sigma_max² -
        # sigma_min²), because fewest - even sums to zero. Solve for the t that gives L's deviation.
        total = smallest + largest
        share = noise * (2 * smallest + noise * (largest - smallest))
        t = _root(share / jnp.where(total > 0, total, 1))
    return even + t[None] * (fewest - even)


def pattern_sigma(pulses: Float[Array, "slots ..."], light: ChaoticLight) -> Float[Array, "..."]:
    """The standard deviation of a pulse train's summed readings, electronic noise included.

    Args:
        pulses: One intensity per slot.
        light: The setting.
    """
    floor = jnp.sum(pulses, axis=0) / light.photons + light.slots * light.electronic**2
    return _root(floor + _excess(pulses, pulses, light))


def _patterns(intensity: Array, light: ChaoticLight) -> tuple[Array, Array]:
    """The pulses of an even split, and the fewest full slots."""
    slot = jnp.arange(light.slots, dtype=intensity.dtype).reshape(-1, *[1] * intensity.ndim)
    fewest = jnp.clip(intensity[None] - slot * light.cap, 0, light.cap)
    return jnp.broadcast_to(intensity[None] / light.slots, fewest.shape), fewest


def _mixture(
    even: Array, fewest: Array, above: Array, smallest: Array, light: ChaoticLight
) -> Array:
    """The share of the fewest slots that gives a deviation, where slots are correlated."""
    moved = fewest - even
    cross, square = _excess(even, moved, light), _excess(moved, moved, light)
    wanted = above * (2 * smallest + above)  # what variance it adds
    root = _root(jnp.maximum(cross**2 + square * wanted, 0)) + cross
    # The stable form of the root: wanted / (cross + sqrt(...)); cross may be slightly negative.
    return jnp.clip(wanted / jnp.where(root > 0, root, 1), 0, 1)


def _excess(a: Array, b: Array, light: ChaoticLight) -> Array:
    """Covariance of the light that two pulse trains carry in the same slots."""
    if not is_correlated(light):
        return jnp.sum(a * b, axis=0) / light.modes
    slot = jnp.arange(light.slots)
    apart = jnp.abs(slot[:, None] - slot[None])
    # 0⁰ has no gradient.
    alike = jnp.asarray(light.correlation, a.dtype) ** jnp.maximum(apart, 1).astype(a.dtype)
    alike = jnp.where(apart == 0, jnp.ones((), a.dtype), alike)
    return jnp.sum(a * jnp.tensordot(alike, b, 1), axis=0) / light.modes


def is_correlated(light: ChaoticLight) -> bool:
    """Whether slots are; a number that is traced might be anything."""
    return not (is_concrete(light.correlation) and not np.any(light.correlation))


def _carried(intensity: Array, light: ChaoticLight) -> Array:
    return jnp.clip(intensity, 0, light.full_scale)


def _root(x: Array) -> Array:
    """The square root, with a gradient of zero instead of infinity at zero."""
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1)), 0)
