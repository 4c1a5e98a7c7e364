"""`PhotonicWeights`: a dense or convolution layer as a crossbar of phase-change cells.

Inputs are carriers of chaotic light, weights the transmissions of cells of germanium-antimony-
tellurium (GST), of which a cell has so many; light adds up in waveguides, and a detector reads each
output (Klein's thesis, section 10.2). Light can't be subtracted. "two" rails hold positive and
negative weights apart and electronics take the difference; with "one" rail, negative weights let
nothing through.

With noisy carriers this is a probabilistic convolution. A carrier is drawn once per input
element and fans out to all outputs that read it, on both rails, so that outputs share its
fluctuations; shot noise and electronic noise are each output's own.

```python
import jax
import jax.numpy as jnp

from jaxeff.nn import small_classifier
from jaxeff.photonics import PhotonicWeights, photonic, transmissions

f, params, (x, y) = small_classifier(4)
crossbar = PhotonicWeights(levels=5)
logits = photonic(f, {"fc2": crossbar})(jax.random.key(0), params, x)

scale, cells = transmissions(jnp.array([-2.0, 0.4, 0.6, 1.0]), crossbar)
assert (float(scale), cells.tolist()) == (2.0, [-1.0, 0.25, 0.25, 0.5])
```

Sharp edges:
    All of it beyond levels and signs is ours; the source names convolution as an outlook.
    The layer's input passes the quantized ReLU of `light.bits`, cut off at full scale.
    Normalized images have negative pixels: put a photonic layer behind a ReLU.
    Weights are scaled by the largest of the layer, and rounded to levels evenly apart with a
    straight-through gradient; the bias is electronic.
    The detector saturates at `light.saturation` times the number of slots, in the physical model.
    In the physical model, gradients are those of the noiseless layer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.core import (
    Choice,
    Count,
    Setting,
    check_broadcasts,
    instance_of,
    real_array,
    register_setting,
    static,
    validate,
)
from jaxeff.photonics.elements._chaotic_light import ChaoticLight
from jaxeff.photonics.elements._pooling import gaussian_noise, quant_relu
from jaxeff.photonics.light import (
    TINY,
    noise_sigma,
    poisson_counts,
    rounded_pulses,
    slot_pattern,
    with_intensity_noise,
)
from jaxeff.program import Layer, read_out

Through = Callable[[Array, Array], Array]
RAILS = ("two", "one")
MANY = 1e30
"""Photons per unit of intensity that make shot noise vanish."""


@register_setting
@dataclass(frozen=True)
class PhotonicWeights(Setting):
    """A crossbar of transmissions, read by chaotic light.

    Attributes:
        light: The carriers of the inputs; its `model` is that of the layer.
        levels: Transmissions that weights are rounded to, zero and the largest included.
        cell_levels: Transmissions that a cell has (ours; the source says "multiple").
        rails: "two" for signed weights, "one" for positive ones alone.

    Raises:
        TypeError: `light` is no `ChaoticLight`, or a count no integer.
        ValueError: More levels are asked for than a cell has, or less than two; or unknown rails.
    """

    light: ChaoticLight = field(default_factory=lambda: ChaoticLight(noise=0.0))
    levels: Annotated[int, Count(2)] = static(16)
    cell_levels: Annotated[int, Count(2)] = static(32)
    rails: Annotated[str, Choice(*RAILS)] = static("two")

    def __post_init__(self) -> None:
        """Checks the fields."""
        super().__post_init__()
        if not isinstance(self.light, ChaoticLight):
            raise TypeError(f"PhotonicWeights.light must be a ChaoticLight, not {self.light!r}.")
        if self.levels > self.cell_levels:
            raise ValueError(
                f"PhotonicWeights.levels asks for {self.levels} transmissions, but a cell has "
                f"{self.cell_levels} (cell_levels)."
            )

    def refuses(self, layer: Layer) -> str:
        """Implements `PhotonicElement`."""
        if layer.kind == "linear" and all(len(found) == 1 for found in signals(layer)):
            return ""
        return "Photonic weights can carry a dense or convolution layer with one input"

    def carry(self, key: PRNGKeyArray, layer: Layer, values: Sequence[Any]) -> Sequence[Any]:
        """Implements `PhotonicElement`."""
        scale, weights, x, through = self._lit(layer, values)
        # The carriers are drawn once, in front of the crossbar: outputs that read an input share
        # its fluctuation, which separate draws per product would lose.
        light_key, read_key = jax.random.split(key)
        bright = _fluctuating(light_key, x, self.light)
        # The layer with zero weights leaves its bias, which is electronic and carries no
        # light.
        signed, dark = through(weights * scale, bright), through(jnp.zeros_like(weights), bright)
        total = through(jnp.abs(weights) * scale, bright) - dark  # of both rails
        if self.light.model != "physical":
            sigma = jnp.sqrt(jnp.maximum(self._detectors(total, scale), TINY))
            noise = jax.random.normal(read_key, signed.shape, signed.dtype)
            return self._read(layer, values, (signed + sigma * noise).astype(signed.dtype))
        # A signed weight is the difference of two rails: |w| x is the sum of both, w x the
        # difference.
        plus, minus = (total + signed - dark) / 2, (total - signed + dark) / 2
        keys = jax.random.split(read_key)
        reading = _detected(keys[0], plus / scale, self.light)
        if self.rails == "two":
            reading -= _detected(keys[1], minus / scale, self.light)
        # The reading has the gradient of the noiseless product (straight-through): counts
        # have none.
        noiseless = through(weights * scale, x)
        sample = (scale * reading + dark).astype(noiseless.dtype)
        return self._read(layer, values, jax.lax.stop_gradient(sample - noiseless) + noiseless)

    def read(self, layer: Layer, values: Sequence[Any]) -> tuple[Array, Array]:
        """Implements `ReadElement`."""
        scale, weights, x, through = self._lit(layer, values)
        spread = noise_sigma(x, _without_detectors(self.light)) ** 2
        dark = through(jnp.zeros_like(weights), x)
        # Independent carriers: Var[sum w_i x_i] = sum w_i^2 Var[x_i], by the same layer.
        carriers = through((weights * scale) ** 2, spread) - dark
        total = through(jnp.abs(weights) * scale, x) - dark
        return through(weights * scale, x), carriers + self._detectors(total, scale)

    def _lit(self, layer: Layer, values: Sequence[Any]) -> tuple[Array, Array, Array, Through]:
        """Returns scale, transmissions, inputs as light, and the layer of weights and inputs."""
        (i,), (w,), (result,) = signals(layer)
        scale, weights = transmissions(values[w], self)

        def through(weights: Array, x: Array) -> Array:
            inputs = list(values)
            inputs[w], inputs[i] = weights, x
            outputs: Array = layer.fn(*inputs)[result]
            return outputs

        x = quant_relu(values[i], self.light.bits, self.light.full_scale)
        check_broadcasts("PhotonicWeights.light.noise", self.light.noise, x.shape)
        return scale, weights, x, through

    def _read(self, layer: Layer, values: Sequence[Any], reading: Array) -> list[Any]:
        """Returns the layer's outputs with a reading for the signal; a variance beside it stays."""
        (at,) = signals(layer)[2]
        outputs = list(layer.fn(*values)) if len(layer.outputs) > 1 else [None]
        outputs[at] = read_out(reading, "photonic")
        return outputs

    def _detectors(self, total: Array, scale: Array) -> Array:
        """Returns the variance of shot noise and electronics, given the light on all rails."""
        rails = 2 if self.rails == "two" else 1
        # Two detectors for two rails, each with noise of its own that the difference adds up.
        electronic = rails * self.light.slots * (scale * self.light.electronic) ** 2
        return jnp.maximum(total, 0) * scale / self.light.photons + electronic


def signals(layer: Layer) -> tuple[list[int], list[int], list[int]]:
    """Returns the data, weights and results of a layer that aren't variances, as indices."""
    return (
        [i for i in layer.data if not layer.inputs[i].spread],
        [i for i in layer.weights if not layer.inputs[i].spread],
        [i for i, v in enumerate(layer.outputs) if not v.spread],
    )


@validate(weights=real_array(), setting=instance_of(PhotonicWeights))
def transmissions(
    weights: Float[Array, "*shape"], setting: PhotonicWeights
) -> tuple[Float[Array, ""], Float[Array, "*shape"]]:
    """Returns the largest weight, and the transmissions of all weights with the sign of their rail.

    Args:
        weights: Weights of a layer.
        setting: The crossbar.

    Returns:
        The scale, and multiples of 1 / (levels - 1) between -1 and 1, not below 0 with one rail.
    """
    weights = jax.nn.relu(weights) if setting.rails == "one" else weights
    # The largest weight gets the full transmission: all levels of the cells are used.
    scale = jnp.maximum(jax.lax.stop_gradient(jnp.abs(weights).max()), jnp.finfo(jnp.float32).tiny)
    relative, steps = weights / scale, setting.levels - 1
    # Straight-through: the value of the rounded transmission, the gradient of the weight.
    return scale, relative + jax.lax.stop_gradient(jnp.round(relative * steps) / steps - relative)


def _fluctuating(key: PRNGKeyArray, x: Array, light: ChaoticLight) -> Array:
    """Draws carriers, without the detectors' noise."""
    if light.model != "physical":
        return jnp.maximum(gaussian_noise(key, x, _without_detectors(light)), 0)
    round_key, light_key = jax.random.split(key)
    pulses = rounded_pulses(round_key, slot_pattern(x, light), light)
    return jnp.sum(with_intensity_noise(light_key, pulses, light), axis=0).astype(x.dtype)


def _without_detectors(light: ChaoticLight) -> ChaoticLight:
    return replace(light, photons=MANY, electronic=0.0)


def _detected(key: PRNGKeyArray, intensity: Array, light: ChaoticLight) -> Array:
    """Draws one rail's reading of all slots."""
    count_key, read_key = jax.random.split(key)
    # The intensity already fluctuates; given it, photons are Poisson (the mixture is
    # Bose-Einstein).
    counts = poisson_counts(count_key, jnp.maximum(intensity, 0) * light.photons)
    reading = counts.astype(intensity.dtype) / light.photons
    if light.saturation is not None:
        reading = jnp.minimum(reading, light.saturation * light.slots)
    electronic = light.electronic * light.slots**0.5
    return reading + electronic * jax.random.normal(read_key, intensity.shape, intensity.dtype)
