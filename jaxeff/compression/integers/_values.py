"""Values of an integer network that are not written yet: products, their means, float arrays.

A product of codes is not computed where it stands in the program but where it is read, as only the
reader knows the grid it has to end on. Until then a `PendingProduct` collects what happens to its
accumulator: batch norm, a shortcut, a ReLU, a maximum over windows. One kernel then does it all,
and no int32 array is written.

Means and sums over positions or windows are integers too, so that their order changes no bit:
float32 rounds every partial sum, so XLA and a compiled library, which add in other orders, differ
in the last bits. A mean whose reader takes codes adds fractions of the reader's step. One that is
read in float32 adds whole numbers of a power of two, about the largest value of one in the
accumulators that it reads. They fill int32, so they are added in two parts, whose sums fit it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int8, Int32

from jaxeff.compression.integers import _operators as operators
from jaxeff.compression.integers._layers import Kernel, Move, bind_at_size, evaluated, shape_of
from jaxeff.compression.integers._operators import guard_bits
from jaxeff.core import jax_internals as _compat
from jaxeff.program import Layer
from jaxeff.program.ir import noted, run_nodes

_SUMS = {"reduce_sum", "reduce_window_sum"}
_FACTORS = {"div", "mul", "convert_element_type"}
_TAKEN = _SUMS | _FACTORS | {"reshape", "broadcast_in_dim"}
_BITS = 31
"""Of whole numbers and of their sums, the sign not counted."""
_MOST = float(2**31 - 2**7)
"""The largest float32 that int32 holds."""


@dataclass(frozen=True, eq=False)
class Addition:
    """A layer that adds elements with equal weights.

    Attributes:
        layer: The layer.
        count: Elements in a sum.
        divisor: Divisor of the sums: `count` for a mean, 1 for a sum.
        over_pixels: Whether each sum is that of a channel of an image.
    """

    layer: Layer
    count: int
    divisor: int
    over_pixels: bool = False

    @staticmethod
    @noted
    def of(layer: Layer, order: Sequence[int] = ()) -> Addition | None:
        """Recognises a layer that adds; None if it does anything else.

        `order` are the axes of samples, pixels and channels of what it reads, as `Kernel.order`.
        """
        if layer.kind not in {"pooling", "reduction"}:
            return None
        if len(layer.inputs) != 1 or len(layer.outputs) != 1:
            return None
        names = {node.primitive.name for node in layer.nodes}
        aval = layer.inputs[0].aval
        if not names <= _TAKEN or not names & _SUMS or aval.dtype != jnp.float32:
            return None
        ones = np.ones(shape_of(aval), np.int32)
        counts, means = evaluated(layer, ones, _integers), evaluated(layer, ones.astype(np.float32))
        # Windows that are cut at the border have several counts, so no one divisor.
        if counts.size == 0 or counts.min() < 1 or counts.min() != counts.max():
            return None
        count = int(counts.max())
        divisor = count if np.allclose(means, 1, atol=1e-5) else 1
        # Weights are equal if numbers that differ have the sums of the rule on whole numbers.
        probe = (np.arange(ones.size, dtype=np.int32) % 97 + 1).reshape(ones.shape)
        sums = evaluated(layer, probe, _integers)
        if not np.allclose(evaluated(layer, probe.astype(np.float32)), sums / divisor, rtol=1e-4):
            return None
        # Tried, not read: a mean, a sum and a pooling over all there is are one function.
        of_image = probe.ndim == 4
        image = probe.transpose(order) if of_image and len(order) == 4 else probe
        channels = image.sum((1, 2)) if of_image else np.zeros(0)
        over_pixels = sums.size == channels.size and np.array_equal(sums.ravel(), channels.ravel())
        return Addition(layer, count, divisor, bool(over_pixels))

    def total(self, x: Int32[Array, "*shape"]) -> Int32[Array, "*result"]:
        """Sums whole numbers, exactly where the sums fit int32."""
        layer = self.layer
        (y,) = run_nodes(layer.nodes, layer.inputs, [x], layer.outputs, _bound)
        return y

    def exact(self, x: Float[Array, "*shape"], unit: Float[Array, ""]) -> Float[Array, "*result"]:
        """Computes means or sums in float32, of values on a grid of powers of two.

        Values are below 2^31 units, each a power of two.
        """
        # whole = high 2^split + low: with length <= split the sums of both parts fit int32.
        length = (self.count - 1).bit_length()
        split = min(_BITS // 2 + 1, _BITS - length)
        dropped = max(0, length - split)  # of more elements than two parts of int32 can add
        unit = unit * np.float32(2**dropped)
        # A product with a power of two is exact, as is every step up to the sum of the parts.
        nearest = lax.round(x * (1 / unit), operators.HALF_TO_EVEN)
        numbers = jnp.clip(nearest, -_MOST, _MOST).astype(jnp.int32)
        high = lax.shift_right_arithmetic(numbers, jnp.full_like(numbers, split))
        low = numbers & (2**split - 1)
        parts = [self.total(part).astype(jnp.float32) for part in (high, low)]
        # One rounding each, fused or not: both factors are powers of two.
        sums = (parts[0] * np.float32(2**split) + parts[1]) * unit
        return self.divided(sums)

    def divided(self, sums: Float[Array, "*result"]) -> Float[Array, "*result"]:
        """Divides sums to means."""
        # Not a quotient, which XLA computes as this product and other compilers don't.
        return sums if self.divisor == 1 else sums * np.float32(1 / self.divisor)


def _bound(eqn: Any, *values: Any) -> list[Any]:
    """Evaluates an equation on whole numbers, which are added and not divided."""
    return _undivided(eqn, values) or _compat.bind(eqn, *values)


def _integers(eqn: Any, size: int, *values: Any) -> list[Any]:
    """Evaluates an equation likewise, at a batch of that size."""
    return _undivided(eqn, values) or bind_at_size(eqn, size, *values)


def _undivided(eqn: Any, values: Sequence[Any]) -> list[Any]:
    if eqn.primitive.name not in _FACTORS:
        return []
    return [v for v in values if jnp.issubdtype(jnp.result_type(v), jnp.integer)][:1]


Put = Callable[[str, Callable[[], Array]], Array]
"""`put(name, make)`: an array that depends on parameters alone, made once or taken as it was."""
_WHOLE = 25
"""Bits of whole numbers up to 2^24, which float32 holds, the sign among them."""
_FAR = 80
"""Exponents of float32 from which 2^31 units, and fractions of one, are numbers still."""


@dataclass(frozen=True, eq=False)
class IntegerProduct:
    """A dense layer or convolution of codes.

    Attributes:
        kernel: How it is computed.
        call: The kernel under its layer's name: `call(x, w, bias, *scale, **attributes)`.
        x: Codes it reads.
        grid: Grid of these codes.
        weights: Function that returns codes of the weights and their steps, one for each output.
        bits: Bits of the weights.
        fixed: Whether scales are fixed-point multipliers.
    """

    kernel: Kernel
    call: Callable[..., Array]
    x: Array
    grid: operators.Codes
    weights: Callable[[], tuple[Int8[Array, "*shape"], Float[Array, " columns"]]]
    bits: int
    fixed: bool = False

    @property
    def guard_bits(self) -> int:
        """Bits by which units of its accumulator are finer than its products."""
        return guard_bits(self.kernel.depth, self.grid.bits, operators.levels(self.bits))


@dataclass(frozen=True, eq=False)
class AffineMap:
    """The map `gain * x + offset` of each channel, which depends on parameters alone."""

    gain: Callable[[], Array]
    offset: Callable[[], Array]


@dataclass(frozen=True, eq=False, kw_only=True)
class IntegerValue:
    """A value of an integer network, written once in each form that a reader asks for.

    Attributes:
        moves: What moves its elements, after all else.
    """

    moves: tuple[Move, ...] = ()
    _codes: dict[operators.Codes, Array] = field(default_factory=dict, init=False, repr=False)

    def requantize(self, grid: operators.Codes) -> Array:
        """Writes it as codes of a grid."""
        if grid not in self._codes:
            self._codes[grid] = self._moved(self._quantized(grid))
        return self._codes[grid]

    def dequantize(self) -> Array:
        """Writes it in float32, for a reader that takes no codes."""
        return self._floats

    def written(self) -> tuple[Array, operators.Codes] | None:
        """Returns codes that it has been written as already, and their grid, if any."""
        return next(((codes, grid) for grid, codes in self._codes.items()), None)

    def bound(self) -> Array:
        """Returns what it is no larger than: the largest value of codes, or what is known else."""
        written = self.written()
        return self._bound() if written is None else written[1].largest()

    def moved(self, move: Move) -> Self:
        """Returns it with its elements moved."""
        return replace(self, moves=(*self.moves, move))

    @functools.cached_property
    def _floats(self) -> Array:
        return self._moved(self._dequantized())

    def _moved(self, y: Array) -> Array:
        for move in self.moves:
            y = move(y)
        return y

    def _quantized(self, grid: operators.Codes) -> Array:
        """Computes its codes before they are moved."""
        raise NotImplementedError

    def _dequantized(self) -> Array:
        """Computes it in float32 before it is moved."""
        raise NotImplementedError

    def _bound(self) -> Array:
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class PendingProduct(IntegerValue):
    """A product of codes, with the operations to fuse into it before it is written.

    Attributes:
        product: The product.
        affine: Map of its channels: a bias, a batch norm.
        put: Keeps the arrays of its parameters.
        shortcut: What is added to the product.
        shortcut_in_codes: Whether that is read as the codes that it has, and not as floats.
        low: Smallest value, of a ReLU.
        high: Largest value, of one like ReLU6.
        pool: Window of a maximum.
        in_several_forms: Whether it is read in several forms, so that floats are written and codes
            made of them. With fixed-point scales, which know no floats, it is computed anew.
        variant: What tells the arrays of its affine map and shortcut from those of the product
            alone, where that is read, too.
    """

    product: IntegerProduct
    affine: AffineMap
    put: Put
    shortcut: IntegerValue | None = None
    shortcut_in_codes: bool = False
    low: float | None = None
    high: float | None = None
    pool: tuple[int, int] | None = None
    in_several_forms: bool = False
    variant: str = ""

    def fused(self, **changes: Any) -> PendingProduct:
        """Returns it with a further operation, a value of its own with its own readers."""
        return replace(self, in_several_forms=False, **changes)

    def moved(self, move: Move) -> PendingProduct:
        """Returns it with its elements moved."""
        return self.fused(moves=(*self.moves, move))

    @property
    def takes_affine(self) -> bool:
        """Whether a batch norm or a shortcut can still go into it."""
        changed = self.low is not None or self.pool is not None or self.moves
        return self.product.kernel.takes_affine and self.shortcut is None and not changed

    @property
    def takes_pool(self) -> bool:
        """Whether maxima over windows can still go into it."""
        return self.product.kernel.pools and self.pool is None and not self.moves

    @property
    def takes_total(self) -> bool:
        """Whether its product can add such whole numbers over all pixels of an image."""
        return self.takes_pool and not (self.in_several_forms or self.product.fixed)

    def total(self, step: float, most: int) -> Int32[Array, "batch channels"]:
        """Adds whole numbers of a step, from `-most` to `most`, over the pixels of each image."""
        numbers = operators.Codes(step=step, zero=0, lower=-most, upper=most, bits=_WHOLE)
        # In 32 bits, as none is ever stored: they are added at once.
        return self._computed(numbers, "whole", total=True)

    def unit(self) -> Array:
        """Returns the power of two above the value of one in any channel's accumulator."""

        def unit() -> Array:
            _, exponent = jnp.frexp(jnp.abs(self._constants[2]).max())
            return jnp.ldexp(jnp.float32(1), jnp.clip(exponent, -_FAR, _FAR))

        return self._put("unit", unit)

    def _quantized(self, grid: operators.Codes) -> Array:
        if not self.in_several_forms or self.product.fixed:
            return self._computed(grid)
        zero, lower, upper = self._ends(grid)
        return operators.q_codes(
            self._scaled, per_step=float(grid.per_step), zero=zero, lower=lower, upper=upper
        )

    def _dequantized(self) -> Array:
        # A ReLU after the scale, not in codes: the same floats serve several readers.
        if self.low is None and self.high is None:
            return self._scaled
        return jnp.clip(self._scaled, self.low, self.high)

    def _bound(self) -> Array:
        """A bias, and a sixteenth of what codes come to at most.

        Products of either sign add up to a fraction of that.
        """
        product = self.product
        most = product.kernel.depth * (2**product.grid.bits - 1) * operators.levels(product.bits)
        codes, bias, unit = self._constants
        used = (codes != 0).any(tuple(range(codes.ndim - 1)))
        products = jnp.where(used, float(most << product.guard_bits) / 16, 0.0)
        return ((products + jnp.abs(bias).astype(jnp.float32)) * jnp.abs(unit)).max()

    def _put(self, name: str, make: Callable[[], Array]) -> Array:
        return self.put(f"{name}{self.variant}", make)

    @functools.cached_property
    def _scaled(self) -> Array:
        """The accumulator in float32, before a ReLU."""
        return self._computed(None)

    def _computed(
        self, grid: operators.Codes | None, result: str = "codes", *, total: bool = False
    ) -> Array:
        """Calls the kernel that ends in codes of a grid, or in floats."""
        product = self.product
        w = self._put("codes", lambda: self._constants[0])
        bias = self._put("bias", lambda: self._constants[1])
        attributes: dict[str, Any] = {"shortcut": "none", "shortcut_zero": 0}
        operands = self._scale(grid)
        if self.shortcut is not None:
            added, attributes = self._added()
            operands += added
        if product.guard_bits:
            attributes["finer"] = product.guard_bits
        if product.fixed:
            attributes["scales"] = "fixed"
        if self.pool is not None:
            attributes["pool"] = self.pool
        if total:
            attributes["total"] = 1
        zero, lower, upper = (0, 0, 0) if grid is None else self._ends(grid)
        return product.call(
            product.x,
            w,
            bias,
            *operands,
            result="float" if grid is None else result,
            zero=zero,
            lower=lower,
            upper=upper,
            weight_bits=product.bits,
            activation_bits=product.grid.bits,
            **attributes,
        )

    def _scale(self, grid: operators.Codes | None) -> list[Array]:
        """Returns the operands that scale an accumulator."""
        if grid is None:
            return [self._put("scale", lambda: self._constants[2])]
        step = np.float32(grid.step)

        def scale() -> Array:
            return self._constants[2] / step

        # Nine digits identify a float32: scales for different grids have different names.
        name = f"[{grid.step:.9g}]"
        if not self.product.fixed:
            return [self._put(f"scale{name}", scale)]
        names = ("multiplier", "before", "after")
        return [
            self._put(f"{part}{name}", _part(i, lambda: operators.multiplier_of(scale())))
            for i, part in enumerate(names)
        ]

    def _added(self) -> tuple[list[Array], dict[str, Any]]:
        """Returns operands and attributes of the shortcut."""
        assert self.shortcut is not None
        written = self.shortcut.written() if self.shortcut_in_codes else None
        if written is None:
            units = self._put("factor", lambda: 1 / self._constants[2])
            of_floats = {"shortcut": "float", "shortcut_zero": 0}
            return [self.shortcut.dequantize(), units], of_floats
        # A shortcut in codes: (q - zero) * step / unit, added to the accumulator by its own factor.
        codes, grid = written
        attributes = {"shortcut": "codes", "shortcut_zero": grid.zero}

        def factor() -> Array:
            return np.float32(grid.step) / self._constants[2]

        if not self.product.fixed:
            return [codes, self._put("factor", factor)], attributes
        parts = [
            self._put(f"factor_{part}", _part(i, lambda: operators.factor_of(factor())))
            for i, part in enumerate(("multiplier", "after"))
        ]
        return [codes, *parts], attributes

    def _ends(self, grid: operators.Codes) -> tuple[int, int, int]:
        """Returns the zero, the smallest and the largest code, a ReLU's bounds included."""
        lower, upper = grid.lower, grid.upper
        # Bounds in codes of the result; rounded once here rather than per value.
        if self.low is not None:
            lower = max(lower, grid.zero + round(self.low / grid.step))
        if self.high is not None:
            upper = min(upper, grid.zero + round(self.high / grid.step))
        # A clamp may lie beyond the grid: then every value has the one code at its end.
        return grid.zero, min(lower, upper), upper

    @functools.cached_property
    def _constants(self) -> tuple[Array, Array, Array]:
        """Codes of the weights, biases in units of the accumulator, and these units' values."""
        codes, steps = self.product.weights()
        grid = self.product.grid
        gain, offset = self.affine.gain(), self.affine.offset()
        guard = self.product.guard_bits
        # One unit of the accumulator in real numbers: input step x weight step x the batch
        # norm's gain. The number comes last, where a compiler has no products to put in another
        # order.
        unit = steps * gain * np.float32(grid.step / 2**guard)
        over = tuple(range(codes.ndim - 1))
        # Products of zeros have any unit: what is added to them says which.
        nothing = (codes == 0).all(over) | (grid.lower == grid.upper == grid.zero)
        # Multiplied, as signs of zeros are marked by steps that are no number.
        unit = unit * jnp.where(nothing, 0, 1)
        room = operators.LIMIT if guard else operators.LIMIT / 2
        least = jnp.abs(offset) / room
        if self.product.bits > 1:
            if self.shortcut is not None:
                least = jnp.maximum(least, self.shortcut.bound() / operators.LIMIT)
            codes, unit = _beside(codes, unit, least)
        else:
            # Kernels of bit planes take signs alone, which can't be rounded: a channel whose
            # weights are next to nothing beside its bias is that bias.
            alone = ~(jnp.abs(unit) > least) & (offset != 0)
            unit = jnp.where(alone, jnp.abs(offset) / 2**20, unit)
            codes = jnp.where(alone | (gain == 0), jnp.zeros_like(codes), codes)
        unit = jnp.where(unit == 0, 1, unit)
        sums = codes.astype(jnp.int32).sum(over, dtype=jnp.int32)
        # sum_i (q_i - z) w_i = sum_i q_i w_i - z sum_i w_i: the zero of the inputs goes
        # into the bias, so that the kernel multiplies raw codes.
        bias = lax.round(offset / unit, operators.HALF_TO_EVEN).astype(jnp.int32)
        bias = bias - ((grid.zero * sums) << guard)
        return codes, bias, unit.astype(jnp.float32)


def _beside(codes: Array, unit: Array, least: Array) -> tuple[Array, Array]:
    """Makes an accumulator's unit so large that a bias or a shortcut fits, and codes to match.

    Products that are small beside what is added to them have finer units than it fits into. Short
    sums fill 2^26 units at most, so that codes of the weights that are rounded anew move one by
    less than what is added / 2^11, which no grid of 8 bits shows. Long sums have finer units, by
    the root of their number of products, and the errors of so many add up to no more than that.
    """
    # Unchanged where it fits already, which is nearly everywhere: then codes keep their bits.
    large = jnp.where(jnp.abs(unit) < least, jnp.where(unit < 0, -least, least), unit)
    large = jnp.where(large == 0, 1, large)  # of a channel that is zero
    ratio = (unit / large).reshape((1,) * (codes.ndim - 1) + unit.shape)
    scaled = codes.astype(jnp.float32) * ratio
    return lax.round(scaled, operators.HALF_TO_EVEN).astype(codes.dtype), large


@dataclass(frozen=True, eq=False)
class PendingMean(IntegerValue):
    """The mean or sum of a product over windows or axes: whole numbers are added.

    Attributes:
        of: The product.
        addition: What is added.
    """

    of: PendingProduct
    addition: Addition

    def _bound(self) -> Array:
        return self.of.bound() * np.float32(self.addition.count / self.addition.divisor)

    def _dequantized(self) -> Array:
        # The same bits in any order of the sum.
        return self.addition.exact(self.of.dequantize(), self.of.unit())

    def _quantized(self, grid: operators.Codes) -> Array:
        # Fractions of a step as whole numbers; sums within four times the grid stay below
        # 2^24, so that float32 holds them.
        count = self.addition.count
        room = 2.0 ** np.floor(np.log2(2**24 / (count * 2**grid.bits * 4)))
        # A few peaks make a small mean, so an element may be far beyond the grid of the mean:
        # it is cut off only where its sum would leave int32.
        step, most = grid.step / room, min(2 ** (_WHOLE - 1), (2**31 - 1) // count)
        if self.of.takes_total and self.addition.over_pixels:
            total = self.of.total(step, most)
            total = total.reshape(-1, *self.addition.layer.outputs[0].aval.shape[1:])
        else:
            per_step = grid.per_step * np.float32(room)
            wide = lax.round(self.of.dequantize() * per_step, operators.HALF_TO_EVEN)
            numbers = jnp.clip(wide, -float(most), float(most)).astype(jnp.int32)
            total = self.addition.total(numbers)
        mean = self.addition.divided(total.astype(jnp.float32))
        # The mean counts fractions 1 / room of a step, so a grid of step `room` rounds it.
        return replace(grid, step=float(room)).write(mean)


@dataclass(frozen=True, eq=False)
class FloatValue(IntegerValue):
    """A float array, with its codes where it was written as such.

    Attributes:
        x: The array.
    """

    x: Array

    def _bound(self) -> Array:
        return jnp.abs(self.x).max()

    def _dequantized(self) -> Array:
        return self.x

    def _quantized(self, grid: operators.Codes) -> Array:
        return grid.write(self.x)


def _part(i: int, make: Callable[[], tuple[Array, ...]]) -> Callable[[], Array]:
    """Selects one of several arrays."""
    return lambda: make()[i]
