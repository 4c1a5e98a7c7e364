"""`PhotonicProduct`: a product of two activations, as attention has, by light and cells.

One operand is written into the cells of a crossbar while the network runs, the other is sent as
light: of scores the keys are written and the queries sent, of their values the values are written
and the weights of attention sent. Both are signed (rails for cells, measurements for light). Each
product of matrices, one of an example and head, has a crossbar of its own: its largest entries take
the full range of cells and light, and electronics scale the reading back.

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
found = photonic(scores, {"matmul": PhotonicProduct()})(jax.random.key(1), params, q, k)
assert found.shape == (3, 5, 5)
```

Sharp edges:
    The source names attention as an outlook; all of it is ours. Cells of phase-change memory take
    microseconds to be written and wear out: that isn't modelled, nor are errors of writing.
    Scales are of the largest entry, so that one outlier costs all others their signal.
    What a product shares (a carrier that fans out to several outputs) is shared as in
    `PhotonicWeights`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxeff.core import Choice, check_broadcasts, register_setting, static
from jaxeff.photonics.elements._crossbar import (
    INPUTS,
    Product,
    Transmissive,
    as_light,
    expected,
    rounded,
    sampled,
)
from jaxeff.program import Layer, read_out
from jaxeff.program.ir import Contraction

SIDES = ("right", "left")


@register_setting
@dataclass(frozen=True)
class PhotonicProduct(Transmissive):
    """A product of two activations: one in cells, the other as chaotic light.

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

    cells: Annotated[str, Choice(*SIDES)] = static("right")
    inputs: Annotated[str, Choice(*INPUTS)] = static("signed")

    def refuses(self, layer: Layer) -> str:
        """Implements `PhotonicElement`."""
        # A variance beside a value, as of moments, has no light of its own.
        alone = not any(v.spread for v in (*layer.inputs, *layer.outputs))
        if layer.kind == "matmul" and len(layer.nodes) == 1 and len(layer.inputs) == 2 and alone:
            return ""
        return "A photonic product can carry a product of two different activations, as 'matmul*'"

    def carry(self, key: PRNGKeyArray, layer: Layer, values: Sequence[Any]) -> Sequence[Any]:
        """Implements `PhotonicElement`."""
        scale, cells, x, product = self._lit(layer, values)
        reading = sum(
            sign * sampled(jax.random.fold_in(key, part), product, cells, bright, self.light, "two")
            for part, (sign, bright) in enumerate(x)
        )
        return [read_out((scale * reading).astype(cells.dtype), "photonic")]

    def read(self, layer: Layer, values: Sequence[Any]) -> tuple[Array, Array]:
        """Implements `ReadElement`."""
        scale, cells, x, product = self._lit(layer, values)
        mean, variance = expected(product, cells, x, self.light, "two")
        return scale * mean, scale**2 * variance

    def _lit(
        self, layer: Layer, values: Sequence[Any]
    ) -> tuple[Array, Array, list[tuple[float, Array]], Product]:
        """Returns the scale of a reading, transmissions, inputs as light, and their product."""
        written = SIDES[::-1].index(self.cells)  # left operands are the first
        contraction = Contraction.of(layer.nodes[0])
        rank = len(contraction.shapes[2])
        peaks = [_peak(values[side], contraction.batch(side)) for side in (0, 1)]
        cells = rounded(values[written] / peaks[written], self.levels)
        # The electronics' gain: what is brightest in a product uses the whole range of light.
        bright = values[1 - written] / peaks[1 - written] * self.light.full_scale
        check_broadcasts("PhotonicProduct.light.noise", self.light.noise, bright.shape)

        def product(cells: Array, x: Array) -> Array:
            found: Array = layer.fn(*((cells, x) if written == 0 else (x, cells)))[0]
            return found

        scale = jnp.asarray(1.0 / self.light.full_scale)
        for side, peak in enumerate(peaks):
            # A result has the axes of its products first, in the order of either operand.
            batch = contraction.batch(side)
            sizes = [peak.shape[axis] for axis in batch]
            front = jnp.moveaxis(peak, batch, range(len(batch))).reshape(sizes)
            scale = scale * jnp.expand_dims(front, range(len(batch), rank))
        return scale, cells, as_light(bright, self.light, self.inputs), product


def _peak(operand: Array, batch: Sequence[int]) -> Array:
    """Returns the largest magnitude of each product, with axes of one entry for the others."""
    rest = tuple(axis for axis in range(operand.ndim) if axis not in batch)
    largest = jnp.abs(operand).max(rest, keepdims=True)
    # What is nothing but zeros is carried as such, and not divided by zero.
    return jnp.maximum(jax.lax.stop_gradient(largest), jnp.finfo(jnp.float32).tiny)
