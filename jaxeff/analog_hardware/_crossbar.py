"""`Crossbar`: an analog matrix multiplier, its codes, its tiles and the models of its analog part.

```python
import jax

from jaxeff.analog_hardware import Crossbar, Linear, analog
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
array = Crossbar(gain=0.004, model=Linear(noise=2.0))
logits = analog(f, {"fc*:linear": array})(jax.random.key(0), params, x.clip(0))
```

Integer codes go into a crossbar and come out. They are floating-point arrays that hold whole
numbers, so that they can be differentiated. The gradient is that of clamping: one inside the range,
zero where a value is clamped.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxeff import core
from jaxeff.program.ir import Contraction, Node


@runtime_checkable
class TileModel(Protocol):
    """A model of the analog part of one tile.

    It may have an attribute `rounding`: "nearest" (the default), for means that were fitted to
    converted values, or "floor", for voltages; and `noiseless`: whether its variance is known to be
    zero, so that nothing has to be drawn.

    A `TileModel` gives the read-out of one tile in counts of its converter: the mean of what a
    column holds before conversion, and the variance of its noise. Any frozen dataclass that is a
    pytree and has the two methods will do; `jaxeff.analog_hardware.WhiteBox` is one that is fitted
    to a chip.
    """

    def counts(
        self, inputs: Float[Array, "p r"], weights: Float[Array, "r c"], gain: Any
    ) -> Float[Array, "p c"]:
        """Computes the mean read-out, for input codes and signed weight codes.

        Args:
            inputs: Codes from 0 on, `[vectors, rows]`; fewer rows than the array has are its first.
            weights: Signed codes, `[rows, columns]`; the first rows and columns of the array.
            gain: The crossbar's counts per product of codes; a fitted model has its own.
        """
        ...

    def variance(
        self, inputs: Float[Array, "p r"], weights: Float[Array, "r c"]
    ) -> Float[Array, "p c"]:
        """Computes the variance of the read-out's noise in squared counts; it may broadcast."""
        ...


@core.register_setting
class Linear(core.Setting):
    """An ideal array, `gain * inputs @ weights`, with Gaussian noise of one level.

    Attributes:
        noise: Standard deviation of the read-out, in counts.

    Raises:
        ValueError: The level is negative, NaN or infinite.
    """

    noise: core.NonNegative = 0.0

    # Its counts are voltages, which a converter truncates.
    rounding = "floor"

    @property
    def noiseless(self) -> bool:
        """Whether the level is known to be zero."""
        return core.is_concrete(self.noise) and not np.any(np.asarray(self.noise))

    def counts(
        self, inputs: Float[Array, "p r"], weights: Float[Array, "r c"], gain: Any
    ) -> Float[Array, "p c"]:
        """Computes products of codes times the gain; codes are whole, so sums are exact."""
        # Not `@`: a function of its own would be traced for every axis of tiles.
        sums = jax.lax.dot(inputs, weights, preferred_element_type=inputs.dtype)
        return sums * jnp.asarray(gain, inputs.dtype)

    def variance(
        self, inputs: Float[Array, "p r"], weights: Float[Array, "r c"]
    ) -> Float[Array, "p c"]:
        """Returns the squared level."""
        del weights
        return jnp.full((1, 1), jnp.asarray(self.noise, inputs.dtype) ** 2)


@core.register_setting
class Correction(core.Setting):
    """Digital correction of the counts of each column: `scale * counts + shift`.

    Attributes:
        scale: `[columns]`, without unit.
        shift: `[columns]`, in counts.
    """

    scale: Annotated[Float[Array, " columns"], core.Number()]
    shift: Annotated[Float[Array, " columns"], core.Number()]

    def apply(self, counts: Float[Array, "*batch c"]) -> Float[Array, "*batch c"]:
        """Corrects the counts of the first columns."""
        columns, axes = counts.shape[-1], (None,) * (counts.ndim - 1)
        scale, shift = (jnp.asarray(a, counts.dtype)[:columns] for a in (self.scale, self.shift))
        return counts * scale[axes] + shift[axes]


@core.register_setting
class Crossbar(core.Setting):
    """An array of synapses that multiplies vectors of unsigned codes by a matrix of signed ones.

    Inputs are lengths of pulses, so they have no sign; a signed weight is a pair of columns, one
    for each sign, which counts as one column here. The defaults are the sizes of BrainScaleS-2
    (Klein's thesis, section 5.2) and the gain of its software mock.

    Attributes:
        rows: Inputs of the array.
        columns: Signed columns.
        input_bits: Width of an input code: 5 bits are 0 to 31.
        weight_bits: Width of a weight's magnitude: 6 bits are -63 to 63.
        output_bits: Width of the converter of each column, signed: 8 bits are -128 to 127.
        gain: Counts of the converter per product of an input and a weight code.
        sends: Number of times that a vector is sent before the read-out, which multiplies the gain.
        input_step: Value of one input code; None takes the largest input of every call.
            `jaxeff.analog_hardware.calibrate_ranges` measures it.
        weight_step: Value of one weight code; None takes the largest weight.
        sum_bits: Width of the digital sum over the tiles of a column; None is wide enough.
        signed: Whether negative inputs are sent as well, in a second pass that is subtracted.
        model: The analog part; a `TileModel`.
        correction: A digital correction of every column, of this model or of a chip; see
            `jaxeff.analog_hardware.compensate_drift`.

    Raises:
        TypeError: A number is none, or the model has not the methods of one.
        ValueError: A number is out of bounds.
    """

    rows: Annotated[int, core.Count(1)] = core.static(128)
    columns: Annotated[int, core.Count(1)] = core.static(256)
    input_bits: Annotated[int, core.Count(1, 12)] = core.static(5)
    weight_bits: Annotated[int, core.Count(1, 11)] = core.static(6)
    output_bits: Annotated[int, core.Count(2, 24)] = core.static(8)
    gain: core.Positive = 0.002
    sends: Annotated[int, core.Count(1)] = core.static(1)
    input_step: Annotated[Float[Array, ""] | float | None, core.Number(above=0)] = None
    weight_step: Annotated[Float[Array, ""] | float | None, core.Number(above=0)] = None
    sum_bits: Annotated[int | None, core.Count(2, 30)] = core.static(None)
    signed: bool = core.static(False)
    model: Any = dataclasses.field(default_factory=Linear)
    correction: Correction | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.model, TileModel) or isinstance(self.model, type):
            raise TypeError(
                "Crossbar.model must have the methods counts(inputs, weights, gain) and "
                f"variance(inputs, weights), as Linear(noise=2.0) does; not {self.model!r}."
            )

    @property
    def input_top(self) -> int:
        """The largest input code."""
        return int(2**self.input_bits - 1)

    @property
    def weight_top(self) -> int:
        """The largest magnitude of a weight code."""
        return int(2**self.weight_bits - 1)


def with_gradient_of(
    value: Float[Array, "*shape"], like: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """Returns `value` bit for bit, with the gradient of `like`."""
    return jax.lax.stop_gradient(value) + (like - jax.lax.stop_gradient(like))


def encode_integers(
    x: Float[Array, "*shape"], step: Float[Array, ""], low: int, high: int
) -> Float[Array, "*shape"]:
    """Rounds values to the nearest codes, half to even, clamped to `low` to `high`.

    Args:
        x: Real numbers.
        step: Value of one code, in the unit of `x`.
        low: The smallest code.
        high: The largest code.
    """
    # Up to half a code beyond the ends nothing is clamped, only rounded: the gradient stays.
    return _digitized(x / step, "nearest", (low, high), (low - 0.5, high + 0.5))


def convert(
    counts: Float[Array, "*shape"], bits: int, rounding: str = "floor"
) -> Float[Array, "*shape"]:
    """Converts voltages as a signed converter does: whole counts from `-2**(bits-1)` on.

    Args:
        counts: Voltages in units of one count.
        bits: The width of the codes.
        rounding: "floor", as a converter truncates, or "nearest", for a voltage that was fitted to
            converted values and holds the half count already.
    """
    low, high = signed_range(bits)
    # A converter that truncates gives its largest count up to high + 1.
    return _digitized(counts, rounding, (low, high), (low - 0.5, high + 1.0))


# One equation where nothing is differentiated, as in most programs: stopped gradients, written out,
# are ten, and subtractions that no compiler may leave out.
@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2, 3))
def _digitized(
    x: Float[Array, "*shape"], rounding: str, ends: tuple[int, int], bounds: tuple[float, float]
) -> Float[Array, "*shape"]:
    """Rounds and clamps to whole numbers; the gradient is one within the bounds, both included.

    The largest weight lies on the largest code, and has to learn like any other.
    """
    del bounds
    nearest = jax.lax.RoundingMethod.TO_NEAREST_EVEN
    rounded = jax.lax.floor(x) if rounding == "floor" else jax.lax.round(x, nearest)
    return jax.lax.clamp(x.dtype.type(ends[0]), rounded, x.dtype.type(ends[1]))


@_digitized.defjvp
def _(
    rounding: str, ends: tuple[int, int], bounds: tuple[float, float], primals: Any, tangents: Any
) -> tuple[Any, Any]:
    (x,), (slope,) = primals, tangents
    inside = (x >= bounds[0]) & (x <= bounds[1])
    return _digitized(x, rounding, ends, bounds), jnp.where(inside, slope, 0)


def signed_range(bits: int) -> tuple[int, int]:
    """Returns the smallest and the largest signed number of a width."""
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


class MatrixProduct(NamedTuple):
    """A layer's operation as products of matrices.

    Attributes:
        inputs: `[groups, vectors, rows]`.
        weights: `[groups, rows, columns]`.
        restore: Brings `[groups, vectors, columns]` to the shape that the operation returns.
        parameter: The weights as the operation has them, which need no copy to look at.
    """

    inputs: Float[Array, "g p k"]
    weights: Float[Array, "g k n"]
    restore: Callable[[Any], Any]
    parameter: Float[Array, "..."]


def as_product(site: str, node: Node, left: Any, right: Any) -> MatrixProduct:
    """Converts an operation with one data operand to products of matrices.

    Dot products and convolutions are products of matrices, which is what a crossbar computes: a
    convolution is the product of its patches with its kernel; a grouped one is a product per group,
    and groups that fit share a tile along its diagonal, as a depthwise convolution's do.
    """
    if not (left.size and right.size):
        raise ValueError(
            f"analog: {site!r} multiplies an empty array ({left.shape} by {right.shape}), so there "
            "is no tile to fill; leave the site out with None."
        )
    contraction, params = Contraction.of(node), node.params
    if contraction.is_convolution and not node.inputs[0].is_data:
        raise ValueError(
            f"analog: the convolution {site!r} has its weight on the left, as a gradient has; a "
            "crossbar takes a convolution of data with a kernel only."
        )
    if contraction.is_convolution and params["batch_group_count"] != 1:
        raise ValueError(
            f"analog: {site!r} is a convolution with batch_group_count="
            f"{params['batch_group_count']}, the form of a gradient; a crossbar takes none."
        )
    # The weight is what the tiles hold, on whichever side of the product it is.
    data, weight = (left, right) if contraction.side else (right, left)
    matrix = contraction.matrix(weight)
    return MatrixProduct(contraction.rows(data), matrix, contraction.restore, weight)


def pack_groups(product: MatrixProduct, rows: int, columns: int) -> MatrixProduct:
    """Packs as many groups into a tile as fit along its diagonal."""
    groups, vectors, k = product.inputs.shape
    n = product.weights.shape[-1]
    # Grouped convolutions have small matrices: a block diagonal of them fills a tile, and
    # one vector of inputs serves them all. Off-diagonal zeros add nothing.
    together = min(groups, rows // k, columns // n)
    if together < 2:
        return product
    packs = -(-groups // together)
    missing = packs * together - groups
    a = jnp.pad(product.inputs, ((0, missing), (0, 0), (0, 0)))
    a = a.reshape(packs, together, vectors, k).transpose(0, 2, 1, 3)
    a = a.reshape(packs, vectors, together * k)
    b = jnp.pad(product.weights, ((0, missing), (0, 0), (0, 0))).reshape(packs, together, k, n)
    diagonal = jnp.eye(together, dtype=b.dtype)
    b = (b[:, :, :, None, :] * diagonal[None, :, None, :, None]).reshape(
        packs, together * k, together * n
    )

    def restore(y: Any) -> Any:
        y = y.reshape(packs, vectors, together, n).transpose(0, 2, 1, 3)
        return product.restore(y.reshape(packs * together, vectors, n)[:groups])

    return MatrixProduct(a, b, restore, product.parameter)


def cut_into_tiles(a: jax.Array, sizes: Mapping[int, int]) -> jax.Array:
    """Splits axes into tiles of so many entries; one that fits is a single tile."""
    widths = [(0, 0, 0)] * a.ndim
    shape: list[int] = []
    for axis, length in enumerate(a.shape):
        if axis not in sizes:
            shape.append(length)
            continue
        size = min(length, sizes[axis])
        count = -(-length // size)
        widths[axis] = (0, count * size - length, 0)
        shape += [count, size]
    if math.prod(shape) > a.size:
        # Codes of zero fill up the last tile: they send no pulse and hold no weight.
        a = jax.lax.pad(a, a.dtype.type(0), widths)
    return a.reshape(shape)


@core.register_setting
class Wires(core.Setting):
    """An ideal array but for the resistance of its column wires.

    `Linear` is the simplest model. Column wires of `Wires` have a resistance, on which voltage is
    lost (IR drop):

    ```python
    import jax

    from jaxeff.analog_hardware import Crossbar, Wires, analog
    from jaxeff.nn import small_classifier

    f, params, (x, y) = small_classifier()
    array = Crossbar(gain=0.004, model=Wires(resistance=1e-4))
    logits = analog(f, {"fc*:linear": array})(jax.random.key(0), params, x.clip(0))
    ```

    A column is a ladder: from every cell a segment of wire leads to the next one and at last to the
    amplifier, which holds its end at zero volts. Current of a cell that is far from it raises the
    voltage of the wire for all, so that cells give less than they should. Kirchhoff's law at the
    nodes, `(u[k-1] - u[k]) / r + (u[k+1] - u[k]) / r + g[k] (v[k] - u[k]) = 0`, is solved exactly.
    It is linear in the inputs, so that one solution per column gives the weights that the array
    seems to have, for all inputs.

    Sharp edges:
        The wires of the rows have none: their drivers can be at both ends, and inputs that are
        lengths of pulses don't depend on a voltage's size alone.

    Attributes:
        resistance: Resistance of a segment of wire between two rows, times the conductance of a
            cell with the largest weight; without unit. A wire of 1 ohm with cells of 25
            microsiemens has 2.5e-5.
        noise: Standard deviation of the read-out, in counts.
        weight_bits: Width of a weight's magnitude, as the crossbar has it.

    Raises:
        ValueError: A number is negative, NaN or infinite.

    References:
        Chen, "A comprehensive crossbar array model with solutions for line resistance and nonlinear
        device characteristics", IEEE Transactions on Electron Devices 60 (2013).
    """

    resistance: core.NonNegative = 1e-5
    noise: core.NonNegative = 0.0
    weight_bits: Annotated[int, core.Count(1, 11)] = core.static(6)

    # Counts are voltages, which a converter truncates.
    rounding, noiseless = "floor", Linear.noiseless

    def counts(
        self, inputs: Float[Array, "p r"], weights: Float[Array, "r c"], gain: Any
    ) -> Float[Array, "p c"]:
        """Computes the read-outs of the weights that the array seems to have, times the gain."""
        return (inputs @ self.effective(weights)) * jnp.asarray(gain, inputs.dtype)

    def variance(
        self, inputs: Float[Array, "p r"], weights: Float[Array, "r c"]
    ) -> Float[Array, "p c"]:
        """Returns the squared level."""
        del weights
        return jnp.full((1, 1), jnp.asarray(self.noise, inputs.dtype) ** 2)

    def effective(self, weights: Float[Array, "r c"]) -> Float[Array, "r c"]:
        """Computes the weight codes that the array seems to have; each sign has a column."""
        top = 2**self.weight_bits - 1
        # Each sign has a column of its own, with less current and so less loss than both had.
        codes = jnp.stack([jnp.maximum(weights, 0), jnp.maximum(-weights, 0)])
        seen = codes * _shares(codes / top, self.resistance)
        return seen[0] - seen[1]


def _shares(conductances: Float[Array, "... r c"], resistance: Any) -> Float[Array, "... r c"]:
    """Computes the share of each cell's current that reaches the end of its column.

    By reciprocity it is the voltage that the cell's node has if the column's end is raised by one
    volt while all inputs are at zero. Walking from the far end, the part of the column behind a
    node is one conductance to ground: parallel and serial conductances, no equations left.
    """

    def toward(behind: Array, cell: Array) -> tuple[Array, Array]:
        # Seen from the next node: this node's cell beside all behind it, then a segment of wire.
        below = 1 / (1 + resistance * (behind + cell))
        return (behind + cell) * below, below

    rows = jnp.moveaxis(conductances, -2, 0)
    # The voltage of a node over that of the next one is 1 / (1 + r G), G to ground behind it.
    ratios = jax.lax.scan(toward, jnp.zeros_like(rows[0]), rows)[1]
    # From the end, whose voltage is one, backwards.
    return jnp.moveaxis(jnp.cumprod(ratios[::-1], axis=0)[::-1], 0, -2)
