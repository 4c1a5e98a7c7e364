"""`ChaoticLight`: how an intensity is spread over time slots, and the noise that follows from it.

Light in k slots of equal intensity has excess noise I²/(kM): the same total in few strong pulses
is noisier than in many weak ones, so the noise of an activation can be set apart from its value,
within bounds. `jaxeff.photonics.light` has the bounds, the standard deviation that the setting's
`noise` L in [0, 1] picks between them, and the pulses that produce exactly it.

Sharp edges:
    The source publishes neither the number of slots nor the photon rate or noise floor. `slots`,
    `cap`, `photons` and `electronic` and the form of the bounds are ours: the smallest noise is an
    even split over all slots, the largest the fewest full slots, and every slot read adds the same
    electronic noise.
    The largest intensity that fits is `slots * cap`. Scale activations to it.
    `noise` must stay in [0, 1] in training: make it a sigmoid of the trained parameter.
    With `channel`, noise is no longer independent between the entries of the last axis; only the
    light's is shared, and only where pulses fall into the same slots. Deviations stay as they are.
    With `correlation`, slots share modes and average out less: both bounds rise, and an even split
    isn't quite the quietest one any more (slots at the ends are less alike).

References:
    Brückerhoff-Plückelmann et al., "Probabilistic photonic computing with chaotic light",
    Nature Communications 15, 10445 (2024).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxtyping import Array, PRNGKeyArray

from jaxeff.core import register_setting
from jaxeff.photonics.elements._pooling import carry_pooling, read_pooling, refuses_pooling
from jaxeff.photonics.light import Carrier
from jaxeff.program import Layer


@register_setting
@dataclass(frozen=True)
class ChaoticLight(Carrier):
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
        correlation: Correlation of the light in neighbouring slots, in [0, 1) (ours); a Python
            number is known to the compiler, which leaves it out if it is 0.
        channel: Correlation of the light in any two wavelength channels, in [0, 1) (ours). The last
            axis of what is carried counts them: its entries are carried at once, each by its
            wavelength.
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

    def refuses(self, layer: Layer) -> str:
        """Implements `PhotonicElement`."""
        return refuses_pooling(layer)

    def carry(self, key: PRNGKeyArray, layer: Layer, values: Sequence[Any]) -> Sequence[Any]:
        """Implements `PhotonicElement`."""
        return carry_pooling(key, layer, values, self)

    def read(self, layer: Layer, values: Sequence[Any]) -> tuple[Array, Array]:
        """Implements `ReadElement`."""
        return read_pooling(layer, values, self)
