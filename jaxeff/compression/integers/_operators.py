"""Grids of integer codes, and exact dense layers and convolutions on them.

An activation's code u stands for `(u - zero) * step`, 0 <= u < 2^bits: the grid of
`jaxeff.compression.grid` with its codes shifted to start at 0. A weight's code stands for
`code * step`, at most 127 either way, so that two products with 8-bit codes fit 16 bits.

References:
    Jacob et al., arXiv:1712.05877, section 2.2.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int8, Int16, Int32, Integer, UInt8

from jaxeff.compression.numerics import (
    AlikeInAnyShape,
    Grid,
    OnGrid,
    Tensor,
    WeightsOnGrid,
    quantize,
)
from jaxeff.core import is_concrete
from jaxeff.core import jax_internals as _compat
from jaxeff.program.ir import computed_at_once

MOST = 2**15
_CODES = 8
_BEFORE, _AFTER = 16, 30
_FACTOR_BITS = 21

Ints = Int32[Array, " columns"]


def multiplier_of(scale: Float[Array, " columns"]) -> tuple[Ints, Ints, Ints]:
    """Converts a scale to a multiplier and the shifts before and after it."""
    part, exponent = jnp.frexp(scale)
    # M 2^before >= 2^-7: then t = a >> before has at most 15 bits where the code has 8.
    before = jnp.clip(1 - _CODES + 1 - exponent, 0, _BEFORE)
    exponent = exponent + before
    # m = part 2^15, so |t m| <= 2^30 and the half that rounds fits int32 beside it.
    after = jnp.clip(15 - exponent, 1, _AFTER)
    return _to_integer(part, exponent + after, MOST), before, after


def factor_of(factor: Float[Array, " columns"]) -> tuple[Ints, Ints]:
    """Converts a shortcut's factor to a multiplier and the shift after it."""
    part, exponent = jnp.frexp(factor)
    # A code of 8 bits times 21: below 2^29, which leaves room for the half that rounds.
    after = jnp.clip(_FACTOR_BITS - exponent, 0, _AFTER)
    return _to_integer(part, exponent + after, 2**_FACTOR_BITS), after


def multiplied(sums: Array, multiplier: Array, before: Array, after: Array) -> Array:
    """Scales sums to steps of the result without a float, rounded but not clamped.

    A scale M is written m 2^-(before + after), and a sum a becomes

        t = clamp(a >> before, -2^15, 2^15)        y = (t m) >> after

    both shifts to the nearest number, halves up, and m of at most 16 bits, so that nothing exceeds
    int32 (Jacob et al. have 32 bits, whose product needs 64). `before` is chosen so that t holds
    every code, with at least seven more bits: y is at most 0.02 away from a M before it is rounded.
    So a code differs from that of float scales by one at most, where a M is so near to a half.

    A shortcut's code s is added as (s m) >> after, m of at most 22 bits.
    """
    # Half of what is shifted out could overflow if it were added.
    half = lax.shift_right_arithmetic(
        sums, jnp.broadcast_to(jnp.maximum(before - 1, 0), sums.shape)
    )
    short = lax.shift_right_arithmetic(sums, jnp.broadcast_to(before, sums.shape))
    t = jnp.clip(short + (half & jnp.minimum(before, 1)), -MOST, MOST)
    return shifted(t * multiplier, after)


def shifted(product: Array, after: Array) -> Array:
    """Shifts a product, rounding to the nearest number."""
    # 2^(after - 1), and 0 where nothing is shifted out.
    half = lax.shift_right_arithmetic(
        lax.shift_left(jnp.ones_like(after), after), jnp.ones_like(after)
    )
    return lax.shift_right_arithmetic(product + half, jnp.broadcast_to(after, product.shape))


def _to_integer(part: Array, exponent: Array, most: int) -> Any:
    rounded = lax.round(jnp.ldexp(part, exponent), lax.RoundingMethod.TO_NEAREST_EVEN)
    return jnp.clip(rounded, float(-most), float(most)).astype(jnp.int32)


LIMIT = 2**29
"""Largest magnitude of bias plus shortcut in an accumulator; products may add twice it."""
FILLED = 26, 30
"""Bits that a short sum fills with guard bits, and what a long one may; see `guard_bits`."""
LONG = 64
"""Products from which on a sum is long."""

Attribute = str | int | tuple[int, ...]


@dataclass(frozen=True)
class ProductSpec:
    """What a kernel makes of its sums, as the attributes of a layer say.

    The rules here and the kernels of a library both read the attributes by it, so that neither
    knows a limit or an order of operands that the other doesn't.

    A function lowered for export holds products as composites `jaxeff.q_dense` and
    `jaxeff.q_conv2d`, whose decomposition is the integer arithmetic below: the artifact runs
    wherever StableHLO runs, and an operator library that knows the names computes the same bits by
    its own kernels. `jaxeff.q_codes` writes float32 values as codes, clamp(round(x per_step)) +
    zero; its attributes are `per_step`, `zero`, `lower` and `upper`, and what is no number becomes
    the smallest code.

    Operands of products, in order:

        x         uint8, codes of the activations, (M, K) or NHWC; a code u is (u - zero) steps
        w         int8, codes of the weights on a symmetric grid, (K, N) or HWIO
        bias      int32 (N,), with the part of the inputs' zero folded in: - zero sum_k w[k]
        scale     float32 (N,); absent where the result is "sums"
        shortcut  uint8 or float32, of the result's shape; absent without one
        factor    float32 (N,), beside a shortcut: one unit of it in units of the accumulator

    With scales="fixed" the scale of codes is three arrays, int32 (N,): multiplier, shift before,
    shift after; and the factor of a shortcut of codes two: multiplier and shift after
    (`multiplied`).

    With acc = bias + 2^finer sum x w, to which a shortcut s adds round(s factor), the result is
    acc, acc scale, or clamp(round(acc scale) + zero). Where sums of few bits leave room in int32,
    `finer` gives it to biases and shortcuts, which are whole numbers of the accumulator's units.
    Every step is exact or one rounding of IEEE 754 whose result is rounded or stored at once, so no
    compiler can fuse a product with a sum: the result is the same, bit for bit, on every machine.

    Attributes of the composites:

        result            "codes" (uint8) | "whole" (int32) | "float" (float32) | "sums" (int32)
        zero, lower, upper  of codes and whole numbers: zero, and the ends of the clamp
        shortcut          "none" | "codes" | "float"
        shortcut_zero     the zero of a shortcut of codes
        scales            "fixed", if it is there: fixed-point multipliers
        finer             products count 2^finer units of the accumulator; absent for 0
        weight_bits, activation_bits  how wide the codes are, 1 to 8
        strides, padding (low, high per axis, in one list), dilation, groups, input_zero: of
                          q_conv2d
        pool              of q_conv2d, if it is there: the largest of every such window
        total             of q_conv2d, if it is there: whole numbers are added over all
                          pixels, to int32 (batch, N)

    Attributes:
        result: Form of the result, of `DTYPES`.
        shortcut: "none", or the form of what is added: "codes" or "float".
        zero: Code of zero of the result.
        lower: Smallest code of the result.
        upper: Largest one.
        shortcut_zero: Code of zero of the shortcut.
        guard_bits: Bits by which units of the accumulator are finer than products.
        is_fixed: Whether scales are fixed-point multipliers.
        DTYPES: Dtype of each form of a result.
        LARGEST_ADDED: Largest magnitude of bias plus shortcut in an accumulator.
        LARGEST_SCALED: Largest magnitude of what a fixed-point multiplier multiplies.
    """

    result: str
    shortcut: str = "none"
    zero: int = 0
    lower: int = 0
    upper: int = 0
    shortcut_zero: int = 0
    guard_bits: int = 0
    is_fixed: bool = False

    DTYPES: ClassVar[Mapping[str, str]] = {
        "codes": "uint8", "whole": "int32", "float": "float32", "sums": "int32",
    }  # fmt: skip
    LARGEST_ADDED: ClassVar[int] = LIMIT
    LARGEST_SCALED: ClassVar[int] = MOST

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> Self:
        """Reads the attributes of a layer."""
        names = ("result", "shortcut", "zero", "lower", "upper", "shortcut_zero")
        values = {name: attributes[name] for name in names if name in attributes}
        fixed = attributes.get("scales") == "fixed"
        return cls(**values, guard_bits=attributes.get("finer", 0), is_fixed=fixed)

    @property
    def dtype(self) -> str:
        """The dtype of the result."""
        return self.DTYPES[self.result]

    def parted(self, rest: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Splits the operands after the bias into those of the scale and of the shortcut."""
        count = {"sums": 0, "codes": 3 if self.is_fixed else 1}.get(self.result, 1)
        return list(rest[:count]), list(rest[count:])


def q_codes(
    x: Float[Array, "*shape"], *, per_step: float, zero: int, lower: int, upper: int
) -> UInt8[Array, "*shape"]:
    """Writes values as codes by a product with 1 / step, which no compiler can rewrite."""
    attributes = {"per_step": float(per_step), "zero": zero, "lower": lower, "upper": upper}
    rule = _with_attributes(tuple(attributes.items()), _written)
    (y,) = _compat.export_composite(rule, (x,), "jaxeff.q_codes", attributes)
    return y


def _written(attributes: Mapping[str, Any], x: Array) -> tuple[Array]:
    zero, lower, upper = (attributes[name] for name in ("zero", "lower", "upper"))
    nearest = _nearest(x * jnp.float32(attributes["per_step"]))
    steps = jnp.clip(nearest, float(lower - zero), float(upper - zero))
    steps = jnp.where(jnp.isnan(x), float(lower - zero), steps)
    return ((steps.astype(jnp.int32) + zero).astype(jnp.uint8),)


@functools.lru_cache(maxsize=512)
def _with_attributes(attributes: tuple[tuple[str, Any], ...], rule: Any, *first: Any) -> Any:
    """Gives a rule its attributes: one function for equal ones, so that layers share a trace."""
    return functools.partial(rule, *first, dict(attributes))


def q_dense(
    x: UInt8[Array, "rows depth"],
    w: Int8[Array, "depth columns"],
    bias: Int32[Array, " columns"],
    *rest: Array,
    **attributes: Attribute,
) -> Array:
    """Computes a dense layer of codes, with the operands and attributes listed above."""
    return _call("q_dense", _products, (x, w, bias, *rest), attributes)


def q_conv2d(
    x: UInt8[Array, "batch height width channels"],
    w: Int8[Array, "rows columns depth features"],
    bias: Int32[Array, " features"],
    *rest: Array,
    **attributes: Attribute,
) -> Array:
    """Computes a convolution of codes, with the operands and attributes listed above."""
    return _call("q_conv2d", _windows, (x, w, bias, *rest), attributes)


def _call(
    name: str, sums: Any, operands: tuple[Array, ...], attributes: Mapping[str, Any]
) -> Array:
    rule = _with_attributes(tuple(attributes.items()), _pooled, sums)
    (y,) = _compat.export_composite(rule, operands, f"jaxeff.{name}", attributes)
    return y


def _pooled(sums: Any, attributes: Mapping[str, Any], *operands: Array) -> tuple[Array]:
    (y,) = _rule(sums, attributes, *operands)
    if attributes.get("total"):
        # Whole numbers: the sum is the same in any order, so a kernel may add as it goes.
        return (y.astype(jnp.int32).sum((1, 2), dtype=jnp.int32),)
    window = attributes.get("pool", (1, 1))
    if window == (1, 1):
        return (y,)
    least = -jnp.inf if y.dtype == jnp.float32 else jnp.iinfo(y.dtype).min
    sizes = (1, *window, 1)
    return (lax.reduce_window(y, jnp.asarray(least, y.dtype), lax.max, sizes, sizes, "VALID"),)


def _rule(sums: Any, attributes: Mapping[str, Any], *operands: Array) -> tuple[Array]:
    x, w, bias, *rest = operands
    spec = ProductSpec.of(attributes)
    acc = (sums(x, w, attributes) << spec.guard_bits) + _along(bias, x.ndim)
    scale, added = spec.parted(rest)
    if added:
        acc = acc + _shortcut(*added, spec)
    if spec.result == "sums":
        return (acc,)
    rest = [_along(v, x.ndim) for v in scale]
    if len(rest) > 1:
        codes = multiplied(acc, *rest) + spec.zero
        return (jnp.clip(codes, spec.lower, spec.upper).astype(jnp.uint8),)
    y = acc.astype(jnp.float32) * rest[0]
    if spec.result == "float":
        return (y,)
    zero, lower, upper = spec.zero, spec.lower, spec.upper
    # Clamped while floating-point: a number beyond int32 has no defined conversion.
    steps = jnp.clip(_nearest(y), float(lower - zero), float(upper - zero))
    return ((steps.astype(jnp.int32) + zero).astype(spec.dtype),)


def _products(x: Array, w: Array, attributes: Mapping[str, Any]) -> Array:
    del attributes
    return jnp.matmul(x.astype(jnp.int32), w.astype(jnp.int32))


def _windows(x: Array, w: Array, attributes: Mapping[str, Any]) -> Array:
    top, bottom, left, right = attributes["padding"]
    zero = jnp.asarray(attributes["input_zero"], x.dtype)
    # The code of zero, which is not zero: so the padding is none of the convolution's.
    x = lax.pad(x, zero, ((0, 0, 0), (top, bottom, 0), (left, right, 0), (0, 0, 0)))
    return lax.conv_general_dilated(
        x.astype(jnp.int32),
        w.astype(jnp.int32),
        attributes["strides"],
        "VALID",
        rhs_dilation=attributes["dilation"],
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=attributes["groups"],
    )


def guard_bits(depth: int, activation_bits: int, weight_levels: int) -> int:
    """Computes by how many bits an accumulator's units may be finer than a product's.

    `depth` is the number of products in a sum; `weight_levels` the largest code of a weight.
    """
    most = depth * (2**activation_bits - 1) * weight_levels
    # Sums of many products are about sqrt(depth) of one, as are biases and shortcuts beside them:
    # room for depth times one would leave units of 1e-4 of a result's step. What few products are
    # added to may be far larger than one. Signs can't be rounded beside a bias.
    least, room = FILLED
    long = depth >= LONG and weight_levels > 1
    filled = min(room, least + (depth.bit_length() - 1) // 2) if long else least
    return max(0, filled - most.bit_length())


def biased(acc: Int32[Array, "*shape"], bias: Array, unit: Array) -> Float[Array, "*shape"]:
    """Adds a bias to sums in the units of an accumulator, and returns numbers.

    Sums are at most 2^30; bias and the unit's value fit to them.
    """
    # Whole units: a compiler that fused a product and a sum would round less.
    nearest = lax.round(bias / unit, lax.RoundingMethod.TO_NEAREST_EVEN)
    units = jnp.clip(nearest, float(-LIMIT), float(LIMIT))
    # A bias of more units than int32 holds beside the sums is added as the number that it is, and
    # zero to the others, which changes none of their bits. So is one without products: of zeros
    # alone the unit is any number.
    fits = (jnp.abs(units) < LIMIT) & (acc != 0)
    accumulator = acc + jnp.where(fits, units, 0).astype(jnp.int32)
    return accumulator.astype(jnp.float32) * unit + jnp.where(fits, 0, bias)


def _shortcut(shortcut: Array, factor: Array, *after: Any) -> Array:
    *shifts, spec = after
    value = shortcut
    if spec.shortcut == "codes":
        codes = shortcut.astype(jnp.int32) - spec.shortcut_zero
        if shifts:
            product = codes * _along(factor, codes.ndim)
            return shifted(product, _along(shifts[0], codes.ndim))
        value = codes.astype(jnp.float32)
    units = _nearest(value * _along(factor, shortcut.ndim))
    return jnp.clip(units, float(-LIMIT), float(LIMIT)).astype(jnp.int32)


def _nearest(x: Array) -> Array:
    return lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)


def _along(vector: Array, rank: int) -> Array:
    return vector.reshape((1,) * (rank - 1) + vector.shape)


MOST_BITS = 8
WIDE_BITS = 16
HALF_TO_EVEN = lax.RoundingMethod.TO_NEAREST_EVEN


class IntegerError(ValueError):
    """A network, or a part of it, that integer kernels can't compute as asked."""


@dataclass(frozen=True)
class _CodeGrid:
    """Codes on a uniform grid: a code q stands for `(q - zero) * step`.

    Attributes:
        step: Distance between the values of neighbouring codes, float32.
        zero: The code of zero.
        lower: The smallest code.
        upper: The largest.
        bits: Their width.
    """

    step: float
    zero: int
    lower: int
    upper: int
    bits: int

    @property
    def per_step(self) -> Any:
        """1 / step in float32."""
        return np.float32(1) / np.float32(self.step)

    def read(self, codes: Integer[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Reads codes as values."""
        return (codes.astype(jnp.int32) - self.zero).astype(jnp.float32) * jnp.float32(self.step)


class Codes(_CodeGrid):
    """Codes of activations, of up to eight bits: the grid they lie on and the bits they take."""

    def largest(self) -> Array:
        """Returns the largest magnitude of a value on it."""
        return jnp.float32(self.step * max(self.upper - self.zero, self.zero - self.lower))

    @classmethod
    def of(cls, quantizer: Any, tensor: Tensor) -> Codes:
        """Converts an activation's grid to codes.

        Raises:
            IntegerError: It isn't a grid of at most 8 bits with a known range around zero.
        """
        where = f"{tensor.site}/{tensor.name}"
        bits = width(quantizer, where)
        known = known_grid(quantizer, tensor)
        half = 2 ** (bits - 1)
        # Codes of activations are stored unsigned: those with a sign are shifted by half of them.
        shift = half if known.upper < half else 0
        # With q = u - shift, (q + zero) step is (u - zero_code) step.
        zero_code = int(shift - known.zero)
        if not 0 <= zero_code < 2**bits:  # the one value of a range without width
            raise IntegerError(f"{where}: its range has no code for zero.")
        return cls(
            float(known.step), zero_code, int(known.lower) + shift, int(known.upper) + shift, bits
        )

    def write(self, x: Float[Array, "*shape"]) -> UInt8[Array, "*shape"]:
        """Writes values as codes; NaN becomes the smallest."""
        return q_codes(
            x.astype(jnp.float32),
            per_step=float(self.per_step),
            zero=self.zero,
            lower=self.lower,
            upper=self.upper,
        )


class WideCodes(_CodeGrid):
    """Codes of nine to sixteen bits: data as converters write them, and results of finer steps.

    No kernel reads them: data become floats first, and the codes that layers read are made of
    these.
    """

    @classmethod
    def of(cls, quantizer: Any, tensor: Tensor) -> WideCodes:
        """Converts a grid to codes.

        Raises:
            IntegerError: It has more than 16 bits, or no range of two known numbers.
        """
        bits = width(quantizer, f"{tensor.site}/{tensor.name}", WIDE_BITS)
        known = known_grid(quantizer, tensor)
        # A grid adds its zero to a code where a header's is taken off.
        lower, upper = int(known.lower), int(known.upper)
        return cls(float(known.step), -int(known.zero), lower, upper, bits)

    def write(self, x: Float[Array, "*shape"]) -> Int16[Array, "*shape"]:
        """Writes values as codes; NaN becomes the smallest."""
        steps = jax.lax.round(x.astype(jnp.float32) * self.per_step, HALF_TO_EVEN)
        # Clamped before it is a whole number: what no integer holds has no defined one.
        steps = jnp.clip(steps, self.lower - self.zero, self.upper - self.zero)
        codes = jnp.where(jnp.isnan(x), self.lower - self.zero, steps).astype(jnp.int32) + self.zero
        return codes.astype(jnp.int16)


def known_grid(quantizer: Any, tensor: Tensor) -> Grid:
    """Returns the grid of an array whatever its values are, four numbers."""
    where = f"{tensor.site}/{tensor.name}"
    with jax.ensure_compile_time_eval():
        known = _on_grid(quantizer, where).uniform_grid(None, tensor)
        if known is None:
            raise IntegerError(
                f"{where} has no range: calibrate(f, params, batches, spec) measures one, and "
                "init(f, params, x, spec) starts methods that learn theirs; both return the spec "
                "to pass here. dynamic=True computes ranges of activations anew in every call; "
                "data and results take a range of known numbers, (low, high)."
            )
        numbers = (known.step, known.zero, known.lower, known.upper)
        if not all(map(is_concrete, numbers)):
            raise IntegerError(f"{where}: a range must be known numbers, but this one is traced.")
        if any(np.size(number) != 1 for number in numbers):
            raise IntegerError(
                f"{where}: activations have one range for the whole tensor, not "
                f"{np.shape(known.step)}."
            )
        step, zero, lower, upper = (np.asarray(number).item() for number in numbers)
    # One of zeros alone has any.
    if zero != round(zero) and lower != upper:
        raise IntegerError(
            f"{where}: its grid has no code for zero, which padding needs; take an affine one, or "
            "two bits (Uniform), or no offset (LSQ)."
        )
    return Grid(step, zero, lower, upper)


def is_open(quantizer: Any, tensor: Tensor) -> bool:
    """Tells whether a grid depends on the array."""
    if not isinstance(quantizer, OnGrid):
        return False
    return jax.eval_shape(lambda: quantizer.uniform_grid(None, tensor)) is None


def _grid_of_weight(quantizer: Any, w: Array, tensor: Tensor) -> Grid | None:
    if isinstance(quantizer, WeightsOnGrid):
        return quantizer.weight_grid(w, tensor)
    return _on_grid(quantizer, f"{tensor.site}/{tensor.name}").uniform_grid(w, tensor)


def _on_grid(quantizer: Any, where: str) -> OnGrid:
    if isinstance(quantizer, OnGrid):
        return quantizer
    raise IntegerError(
        f"{where}: integer kernels take uniform grids (Int, Uniform, LSQ, or a method of yours "
        f"with `uniform_grid`; of weights also Binary and Ternary), not "
        f"{type(quantizer).__name__}; give this site one, or None to leave it in float."
    )


def is_wide(quantizer: Any) -> bool:
    """Tells whether a grid has more codes than a byte."""
    bits = getattr(quantizer, "width", 0)
    return is_concrete(bits) and bool(np.all(np.asarray(bits) > MOST_BITS))


class CodeWidth(NamedTuple):
    """Sizes of a weight's codes.

    Attributes:
        bits: Their width.
        largest: The largest magnitude of one; full grids have one more than the symmetric ones.
    """

    bits: int
    largest: int


def code_width(quantizer: Any, tensor: Tensor, shape: tuple[int, ...]) -> CodeWidth:
    """Returns the sizes of a weight's codes."""
    where = f"{tensor.site}/{tensor.name}"
    bits = width(quantizer, where)
    largest = largest_code(quantizer, tensor, shape)
    if largest is None:
        raise IntegerError(
            f"{where} has no step yet: init(f, params, x, spec) finds one, and returns the spec to "
            "train and to pass here."
        )
    if not 0 < largest <= 2 ** (bits - 1):
        raise IntegerError(
            f"{where}: integer kernels take weights on symmetric grids, as others cost a sum over "
            "the inputs for every output: take Int(bits), and LSQ with a sign and no offset."
        )
    return CodeWidth(bits, largest)


def largest_code(quantizer: Any, tensor: Tensor, shape: tuple[int, ...]) -> int | None:
    """Returns the largest magnitude of a weight's codes: 0 if they aren't centred on zero.

    None is that of a grid that isn't known. Of one bit, whose grid has values on either side of
    zero and none at it, the codes are signs.
    """
    where = f"{tensor.site}/{tensor.name}"
    if isinstance(quantizer, AlikeInAnyShape) and quantizer.is_alike_in_any_shape():
        # Networks of many shapes compile one grid.
        shape = (1,) * len(shape)
    # Ones are on one side of zero, where an affine grid isn't centred.
    trace = jax.make_jaxpr(lambda w: _grid_of_weight(quantizer, w, tensor), return_shape=True)
    with jax.ensure_compile_time_eval():
        ones = np.ones(shape, np.float32)
        closed, of_ones = trace(ones)
        if of_ones is None:
            return None
        if not all(map(is_concrete, closed.consts)):
            raise IntegerError(f"{where}: a grid must be known numbers, but this one is traced.")
        numbers = computed_at_once(closed, [ones])
        of_ones = jax.tree.unflatten(jax.tree.structure(of_ones), numbers)
        zero, lower, upper = (np.asarray(n) for n in (of_ones.zero, of_ones.lower, of_ones.upper))
    if ((zero == 0.5) & (lower == -1) & (upper == 0)).all():
        return 1
    centred = (zero == 0) & (np.abs(lower + upper) <= 1)
    return int(np.maximum(-lower, upper).max()) if centred.all() else 0


def weight_codes(
    quantizer: Any, w: Float[Array, "..."], tensor: Tensor, sizes: CodeWidth | None = None
) -> tuple[Int8[Array, "*shape"], Float[Array, "..."]]:
    """Computes a weight's codes and their steps, of size one along axes that share them.

    Raises:
        IntegerError: Its grid isn't symmetric, or has more than 8 bits.
    """
    bits, largest = sizes or code_width(quantizer, tensor, w.shape)
    w = w.astype(jnp.float32)
    to = _grid_of_weight(quantizer, w, tensor)
    assert to is not None  # `code_width` has refused it
    if isinstance(quantizer, WeightsOnGrid):
        w = quantizer.quantize(w, tensor)
    codes = quantize(w, to)
    if largest > levels(bits):
        # A code more below zero is what two's complement has: where it is above, both change sign.
        flip = jnp.where(-to.lower < to.upper, -1, 1)
        return (codes * flip.astype(jnp.int8)).astype(jnp.int8), to.step * flip
    if bits == 1:  # -step/2 and step/2; zeros alone stay zeros
        codes = jnp.where(to.lower < to.upper, 2 * codes + 1, 0)
        return codes.astype(jnp.int8), to.step / 2
    return codes.astype(jnp.int8), to.step


def steps_of_signs(codes: Int8[Array, "*shape"], steps: Float[Array, "..."]) -> Float[Array, "..."]:
    """Returns the steps of codes of one bit, NaN where the weights are zeros alone.

    Kernels by bit planes take signs and nothing else, so `convert` refuses what isn't finite.
    """
    shared = tuple(axis for axis in range(codes.ndim) if steps.ndim == 0 or steps.shape[axis] == 1)
    has_signs = jnp.all(codes != 0, shared, keepdims=steps.ndim > 0)
    return jnp.where(has_signs, steps, jnp.nan)


def width(quantizer: Any, where: str, most: int = MOST_BITS) -> int:
    """Returns the width of a grid's codes."""
    if not isinstance(quantizer, WeightsOnGrid):
        _on_grid(quantizer, where)
    of_code = getattr(quantizer, "width", None)
    if of_code is None:
        raise IntegerError(f"{where}: {type(quantizer).__name__} has no `width`, bits of a code.")
    if not is_concrete(of_code):
        raise IntegerError(f"{where}: a bit width must be a known number, but this one is traced.")
    if np.size(of_code) != 1:
        raise IntegerError(f"{where}: one bit width per array, not {np.shape(of_code)}.")
    bits = int(np.asarray(of_code).item())
    if bits > most:
        raise IntegerError(f"{where} has {bits} bits, but integer kernels take 1 to {most}.")
    return bits


def levels(bits: int) -> int:
    """Returns the largest weight code of a width, on a symmetric grid."""
    return max(1, 2 ** (bits - 1) - 1)
