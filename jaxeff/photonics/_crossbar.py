"""Crossbars of phase-change cells that light passes: dense layers, and products of activations.

What detectors behind a crossbar read is a product of cells and of light, drawn or expected. Such a
*product* is a function of cells, between -1 and 1, and of intensities at or above zero; linear in
both. Negative cells are on rails of their own, and negative inputs are sent as light of their own,
measured separately: electronics take the differences.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff import core
from jaxeff.photonics._detector import rounded_pulses, with_intensity_noise
from jaxeff.photonics._light import TINY, noise_sigma, poisson_counts, slot_pattern
from jaxeff.photonics._pooling import ChaoticLight, gaussian_noise, quant_relu
from jaxeff.program import Layer, read_out
from jaxeff.program.ir import Contraction

Product = Callable[[Array, Array], Array]
RAILS = ("two", "one")
INPUTS = ("positive", "signed")
MANY = 1e30
"""Photons per unit of intensity that make shot noise vanish."""


@dataclass(frozen=True)
class Transmissive(core.Setting):
    """The fields of elements that multiply light by transmissions."""

    light: ChaoticLight = field(default_factory=lambda: ChaoticLight(noise=0.0))
    levels: Annotated[int, core.Count(2)] = core.static(16)
    cell_levels: Annotated[int, core.Count(2)] = core.static(32)

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        if not isinstance(self.light, ChaoticLight):
            raise TypeError(f"{name}.light must be a ChaoticLight, not {self.light!r}.")
        if self.levels > self.cell_levels:
            raise ValueError(
                f"{name}.levels asks for {self.levels} transmissions, but a cell has "
                f"{self.cell_levels} (cell_levels)."
            )


def _rounded(relative: Array, levels: int) -> Array:
    """Returns transmissions at levels evenly apart, with the gradient of those that were asked."""
    steps = levels - 1
    # Straight-through: the value of the rounded transmission, the gradient of the weight.
    return relative + jax.lax.stop_gradient(jnp.round(relative * steps) / steps - relative)


def _as_light(x: Array, light: ChaoticLight, inputs: str) -> list[tuple[float, Array]]:
    """Splits inputs into intensities, each with the sign that its reading is added with."""
    # Both pass the quantized ReLU: what one part cuts off is what the other one carries.
    signs = (1.0, -1.0) if inputs == "signed" else (1.0,)
    return [(sign, quant_relu(sign * x, light.bits, light.full_scale)) for sign in signs]


def _sampled(
    key: PRNGKeyArray, product: Product, cells: Array, x: Array, light: ChaoticLight, rails: str
) -> Array:
    """Draws a reading of intensities behind cells, in units of light."""
    # The carriers are drawn once, in front of the crossbar: outputs that read an input share
    # its fluctuation, which separate draws per product would lose.
    light_key, read_key = jax.random.split(key)
    bright = _fluctuating(light_key, x, light)
    signed = product(cells, bright)
    total = product(jnp.abs(cells), bright)  # of both rails
    if light.model != "physical":
        sigma = jnp.sqrt(jnp.maximum(_detectors(total, light, rails), TINY))
        return signed + sigma * jax.random.normal(read_key, signed.shape, signed.dtype)
    # A signed weight is the difference of two rails: |w| x is the sum of both, w x the difference.
    keys = jax.random.split(read_key)
    reading = _detected(keys[0], (total + signed) / 2, light)
    if rails == "two":
        reading -= _detected(keys[1], (total - signed) / 2, light)
    # The reading has the gradient of the noiseless product (straight-through): counts have none.
    noiseless = product(cells, x)
    return jax.lax.stop_gradient(reading.astype(noiseless.dtype) - noiseless) + noiseless


def _expected(
    product: Product,
    cells: Array,
    parts: list[tuple[float, Array]],
    light: ChaoticLight,
    rails: str,
) -> tuple[Array, Array]:
    """Computes the mean and variance of readings by `_sampled`, added with their signs."""
    means, variances = [], []
    for sign, x in parts:
        spread = noise_sigma(x, _without_detectors(light)) ** 2
        # Independent carriers: Var[sum w_i x_i] = sum w_i^2 Var[x_i], by the same product.
        carriers = product(cells**2, spread)
        means.append(sign * product(cells, x))
        variances.append(carriers + _detectors(product(jnp.abs(cells), x), light, rails))
    return functools.reduce(jnp.add, means), functools.reduce(jnp.add, variances)


def _detectors(total: Array, light: ChaoticLight, rails: str) -> Array:
    """Returns the variance of shot noise and electronics, given the light on all rails."""
    # Two detectors for two rails, each with noise of its own that the difference adds up.
    electronic = (2 if rails == "two" else 1) * light.slots * light.electronic**2
    return jnp.maximum(total, 0) / light.photons + electronic


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


SIDES = ("right", "left")


@core.register_setting
class PhotonicProduct(Transmissive):
    """A product of two activations: one in cells, the other as chaotic light.

    It multiplies two activations, as attention does. One operand is written into the cells of a
    crossbar while the network runs, the other is sent as light: of scores the keys are written and
    the queries sent, of their values the values are written and the weights of attention sent. Both
    are signed (rails for cells, measurements for light). Each product of matrices, one of an
    example and head, has a crossbar of its own: its largest entries take the full range of cells
    and light, and electronics scale the reading back.

    ```python
    import jax
    import jax.numpy as jnp

    import jaxeff
    from jaxeff.photonics import PhotonicProduct, photonic


    def scores(p, q, k):
        return jnp.einsum("bqd,bkd->bqk", q, k) * p["temperature"]


    q, k = jax.random.normal(jax.random.key(0), (2, 3, 5, 8))
    params = {"temperature": jnp.float32(0.35)}
    print(jaxeff.summary(scores, params, q, k))                      # the site is "matmul"
    products = photonic(scores, {"matmul": PhotonicProduct()})(jax.random.key(1), params, q, k)
    assert products.shape == (3, 5, 5)
    ```

    Sharp edges:
        The thesis names attention as an outlook; all of it is ours. Cells of phase-change memory
        take microseconds to be written and wear out: that isn't modelled, nor are errors of
        writing.
        Scales are of the largest entry, so that one outlier costs all others their signal.
        What a product shares (a carrier that fans out to several outputs) is shared as in
        `PhotonicWeights`.

    Attributes:
        light: The carriers of what is sent; its `model` is that of the layer.
        levels: Transmissions that what is written is rounded to.
        cell_levels: Transmissions that a cell has.
        cells: The operand that is written, as the program has them: "right" or "left".
        inputs: Whether what is sent is "signed" or "positive", as weights of attention are, which
            saves a measurement.

    Raises:
        TypeError: `light` is no `ChaoticLight`, or a count no integer.
        ValueError: More levels are asked for than a cell has, or less than two; or an unknown side
            or sign.
    """

    cells: Annotated[str, core.Choice(*SIDES)] = core.static("right")
    inputs: Annotated[str, core.Choice(*INPUTS)] = core.static("signed")

    def refuses(self, layer: Layer) -> str:
        # A variance beside a value, as of moments, has no light of its own.
        alone = not any(v.spread for v in (*layer.inputs, *layer.outputs))
        if layer.kind == "matmul" and len(layer.nodes) == 1 and len(layer.inputs) == 2 and alone:
            return ""
        return "A photonic product can carry a product of two different activations, as 'matmul*'"

    def carry(self, key: PRNGKeyArray, layer: Layer, values: Sequence[Any]) -> Sequence[Any]:
        scale, cells, x, product = self._lit(layer, values)
        reading = sum(
            sign
            * _sampled(jax.random.fold_in(key, part), product, cells, bright, self.light, "two")
            for part, (sign, bright) in enumerate(x)
        )
        return [read_out((scale * reading).astype(cells.dtype), "photonic")]

    def read(self, layer: Layer, values: Sequence[Any]) -> tuple[Array, Array]:
        scale, cells, x, product = self._lit(layer, values)
        mean, variance = _expected(product, cells, x, self.light, "two")
        return scale * mean, scale**2 * variance

    def _lit(
        self, layer: Layer, values: Sequence[Any]
    ) -> tuple[Array, Array, list[tuple[float, Array]], Product]:
        """Returns the scale of a reading, transmissions, inputs as light, and their product."""
        written = SIDES[::-1].index(self.cells)  # left operands are the first
        contraction = Contraction.of(layer.nodes[0])
        rank = len(contraction.shapes[2])
        peaks = [_peak(values[side], contraction.batch(side)) for side in (0, 1)]
        cells = _rounded(values[written] / peaks[written], self.levels)
        # The electronics' gain: what is brightest in a product uses the whole range of light.
        bright = values[1 - written] / peaks[1 - written] * self.light.full_scale
        core.check_broadcasts("PhotonicProduct.light.noise", self.light.noise, bright.shape)

        def product(cells: Array, x: Array) -> Array:
            multiplied: Array = layer.fn(*((cells, x) if written == 0 else (x, cells)))[0]
            return multiplied

        scale = jnp.asarray(1.0 / self.light.full_scale)
        for side, peak in enumerate(peaks):
            # A result has the axes of its products first, in the order of either operand.
            batch = contraction.batch(side)
            sizes = [peak.shape[axis] for axis in batch]
            front = jnp.moveaxis(peak, batch, range(len(batch))).reshape(sizes)
            scale = scale * jnp.expand_dims(front, range(len(batch), rank))
        return scale, cells, _as_light(bright, self.light, self.inputs), product


def _peak(operand: Array, batch: Sequence[int]) -> Array:
    """Returns the largest magnitude of each product, with axes of one entry for the others."""
    rest = tuple(axis for axis in range(operand.ndim) if axis not in batch)
    largest = jnp.abs(operand).max(rest, keepdims=True)
    # What is nothing but zeros is carried as such, and not divided by zero.
    return jnp.maximum(jax.lax.stop_gradient(largest), jnp.finfo(jnp.float32).tiny)


@core.register_setting
class PhotonicWeights(Transmissive):
    """A crossbar of transmissions, read by chaotic light.

    A dense or convolution layer is a crossbar of phase-change cells. Inputs are carriers of chaotic
    light, weights the transmissions of cells of germanium-antimony-tellurium (GST), of which a cell
    has so many; light adds up in waveguides, and a detector reads each output (Klein's thesis,
    section 10.2). Light can't be subtracted. "two" rails hold positive and negative weights apart
    and electronics take the difference; with "one" rail, negative weights let nothing through.

    With noisy carriers this is a probabilistic convolution. A carrier is drawn once per input
    element and fans out to all outputs that read it, on both rails, so that outputs share its
    fluctuations; shot noise and electronic noise are each output's own.

    ```python
    import jax

    from jaxeff.nn import small_classifier
    from jaxeff.photonics import PhotonicWeights, photonic

    f, params, (x, y) = small_classifier(4)
    crossbar = PhotonicWeights(levels=5)
    logits = photonic(f, {"fc2": crossbar})(jax.random.key(0), params, x)
    ```

    Sharp edges:
        All of it beyond levels and signs is ours; the thesis names convolution as an outlook.
        The layer's input passes the quantized ReLU of `light.bits`, cut off at full scale.
        Normalized images have negative pixels: put a photonic layer behind a ReLU, or send what is
        negative as light of its own (`inputs="signed"`), at the price of a second measurement.
        Weights are scaled by the largest of the layer, and rounded to levels evenly apart with a
        straight-through gradient; the bias is electronic.
        In the physical model the detector saturates at `light.saturation` times the number of
        slots, and gradients are those of the noiseless layer.

    Attributes:
        light: The carriers of the inputs; its `model` is that of the layer.
        levels: Transmissions that weights are rounded to, zero and the largest included.
        cell_levels: Transmissions that a cell has (ours; the thesis says "multiple").
        rails: "two" for signed weights, "one" for positive ones alone.
        inputs: "positive" cuts negative inputs off as a ReLU does; "signed" sends them as light of
            their own, measured separately, with noise of its own.

    Raises:
        TypeError: `light` is no `ChaoticLight`, or a count no integer.
        ValueError: More levels are asked for than a cell has, or less than two; or unknown rails
            or inputs.
    """

    rails: Annotated[str, core.Choice(*RAILS)] = core.static("two")
    inputs: Annotated[str, core.Choice(*INPUTS)] = core.static("positive")

    def refuses(self, layer: Layer) -> str:
        if layer.kind == "linear" and all(len(signals) == 1 for signals in _signals(layer)):
            return ""
        return "Photonic weights can carry a dense or convolution layer with one input"

    def carry(self, key: PRNGKeyArray, layer: Layer, values: Sequence[Any]) -> Sequence[Any]:
        scale, cells, x, product, dark = self._lit(layer, values)
        reading: Any = 0.0
        for part, (sign, bright) in enumerate(x):
            # The first part has the key itself: signed inputs leave the noise of others alone.
            part_key = jax.random.fold_in(key, part) if part else key
            reading += sign * _sampled(part_key, product, cells, bright, self.light, self.rails)
        return self._read(layer, values, (scale * reading + dark).astype(dark.dtype))

    def read(self, layer: Layer, values: Sequence[Any]) -> tuple[Array, Array]:
        scale, cells, x, product, dark = self._lit(layer, values)
        mean, variance = _expected(product, cells, x, self.light, self.rails)
        return dark + scale * mean, scale**2 * variance

    def _lit(
        self, layer: Layer, values: Sequence[Any]
    ) -> tuple[Array, Array, list[tuple[float, Array]], Product, Array]:
        """Returns scale, transmissions, inputs as light, their product, and what is without."""
        (i,), (w,), (result,) = _signals(layer)
        scale, cells = transmissions(values[w], self)

        def through(weights: Array, x: Array) -> Array:
            inputs = list(values)
            inputs[w], inputs[i] = weights, x
            outputs: Array = layer.fn(*inputs)[result]
            return outputs

        x = _as_light(values[i], self.light, self.inputs)
        core.check_broadcasts("PhotonicWeights.light.noise", self.light.noise, values[i].shape)
        # The layer with zero weights leaves its bias, which is electronic and carries no
        # light. Its inputs are zeros too, so that no product is left: XLA's CPU back end (jaxlib
        # 0.10.2) joins one with constant zeros to its neighbours, and returned memory that nothing
        # had written, behind a layer norm and from 5,000 rows on.
        dark = through(jnp.zeros_like(cells), jnp.zeros_like(values[i]))
        return scale, cells, x, lambda cells, x: through(cells, x) - dark, dark

    def _read(self, layer: Layer, values: Sequence[Any], reading: Array) -> list[Any]:
        """Returns the layer's outputs with a reading for the signal; a variance beside it stays."""
        (at,) = _signals(layer)[2]
        outputs = list(layer.fn(*values)) if len(layer.outputs) > 1 else [None]
        outputs[at] = read_out(reading, "photonic")
        return outputs


def _signals(layer: Layer) -> tuple[list[int], list[int], list[int]]:
    """Returns the data, weights and results of a layer that aren't variances, as indices."""
    return (
        [i for i in layer.data if not layer.inputs[i].spread],
        [i for i in layer.weights if not layer.inputs[i].spread],
        [i for i, v in enumerate(layer.outputs) if not v.spread],
    )


@core.validate(weights=core.real_array(), setting=core.instance_of(PhotonicWeights))
def transmissions(
    weights: Float[Array, "*shape"], setting: PhotonicWeights
) -> tuple[Float[Array, ""], Float[Array, "*shape"]]:
    """Returns the largest weight, and the transmissions of all weights with the sign of their rail.

    ```python
    import jax.numpy as jnp

    from jaxeff.photonics import PhotonicWeights, transmissions

    crossbar = PhotonicWeights(levels=5)
    scale, cells = transmissions(jnp.array([-2.0, 0.4, 0.6, 1.0]), crossbar)
    assert (float(scale), cells.tolist()) == (2.0, [-1.0, 0.25, 0.25, 0.5])
    ```

    Args:
        weights: Weights of a layer.
        setting: The crossbar.

    Returns:
        The scale, and multiples of 1 / (levels - 1) between -1 and 1, not below 0 with one rail.
    """
    weights = jax.nn.relu(weights) if setting.rails == "one" else weights
    # The largest weight gets the full transmission: all levels of the cells are used.
    scale = jnp.maximum(jax.lax.stop_gradient(jnp.abs(weights).max()), jnp.finfo(jnp.float32).tiny)
    return scale, _rounded(weights / scale, setting.levels)
