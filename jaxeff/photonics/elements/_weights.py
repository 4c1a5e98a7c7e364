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
    Normalized images have negative pixels: put a photonic layer behind a ReLU, or send what is
    negative as light of its own (`inputs="signed"`), at the price of a second measurement.
    Weights are scaled by the largest of the layer, and rounded to levels evenly apart with a
    straight-through gradient; the bias is electronic.
    The detector saturates at `light.saturation` times the number of slots, in the physical model.
    In the physical model, gradients are those of the noiseless layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.core import (
    Choice,
    check_broadcasts,
    instance_of,
    real_array,
    register_setting,
    static,
    validate,
)
from jaxeff.photonics.elements._crossbar import (
    INPUTS,
    RAILS,
    Product,
    Transmissive,
    as_light,
    expected,
    rounded,
    sampled,
)
from jaxeff.program import Layer, read_out


@register_setting
@dataclass(frozen=True)
class PhotonicWeights(Transmissive):
    """A crossbar of transmissions, read by chaotic light.

    Attributes:
        light: The carriers of the inputs; its `model` is that of the layer.
        levels: Transmissions that weights are rounded to, zero and the largest included.
        cell_levels: Transmissions that a cell has (ours; the source says "multiple").
        rails: "two" for signed weights, "one" for positive ones alone.
        inputs: "positive" cuts negative inputs off as a ReLU does; "signed" sends them as light of
            their own, measured separately, with noise of its own.

    Raises:
        TypeError: `light` is no `ChaoticLight`, or a count no integer.
        ValueError: More levels are asked for than a cell has, or less than two; or unknown rails
            or inputs.
    """

    rails: Annotated[str, Choice(*RAILS)] = static("two")
    inputs: Annotated[str, Choice(*INPUTS)] = static("positive")

    def refuses(self, layer: Layer) -> str:
        """Implements `PhotonicElement`."""
        if layer.kind == "linear" and all(len(found) == 1 for found in signals(layer)):
            return ""
        return "Photonic weights can carry a dense or convolution layer with one input"

    def carry(self, key: PRNGKeyArray, layer: Layer, values: Sequence[Any]) -> Sequence[Any]:
        """Implements `PhotonicElement`."""
        scale, cells, x, product, dark = self._lit(layer, values)
        reading: Any = 0.0
        for part, (sign, bright) in enumerate(x):
            # The first part has the key itself: signed inputs leave the noise of others alone.
            own = jax.random.fold_in(key, part) if part else key
            reading += sign * sampled(own, product, cells, bright, self.light, self.rails)
        return self._read(layer, values, (scale * reading + dark).astype(dark.dtype))

    def read(self, layer: Layer, values: Sequence[Any]) -> tuple[Array, Array]:
        """Implements `ReadElement`."""
        scale, cells, x, product, dark = self._lit(layer, values)
        mean, variance = expected(product, cells, x, self.light, self.rails)
        return dark + scale * mean, scale**2 * variance

    def _lit(
        self, layer: Layer, values: Sequence[Any]
    ) -> tuple[Array, Array, list[tuple[float, Array]], Product, Array]:
        """Returns scale, transmissions, inputs as light, their product, and what is without."""
        (i,), (w,), (result,) = signals(layer)
        scale, cells = transmissions(values[w], self)

        def through(weights: Array, x: Array) -> Array:
            inputs = list(values)
            inputs[w], inputs[i] = weights, x
            outputs: Array = layer.fn(*inputs)[result]
            return outputs

        x = as_light(values[i], self.light, self.inputs)
        check_broadcasts("PhotonicWeights.light.noise", self.light.noise, values[i].shape)
        # The layer with zero weights leaves its bias, which is electronic and carries no
        # light. Its inputs are zeros too, so that no product is left: XLA's CPU back end (jaxlib
        # 0.10.2) joins one with constant zeros to its neighbours, and returned memory that nothing
        # had written, behind a layer norm and from 5,000 rows on.
        dark = through(jnp.zeros_like(cells), jnp.zeros_like(values[i]))
        return scale, cells, x, lambda cells, x: through(cells, x) - dark, dark

    def _read(self, layer: Layer, values: Sequence[Any], reading: Array) -> list[Any]:
        """Returns the layer's outputs with a reading for the signal; a variance beside it stays."""
        (at,) = signals(layer)[2]
        outputs = list(layer.fn(*values)) if len(layer.outputs) > 1 else [None]
        outputs[at] = read_out(reading, "photonic")
        return outputs


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
    return scale, rounded(weights / scale, setting.levels)
