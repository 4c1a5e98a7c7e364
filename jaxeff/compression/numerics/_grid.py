"""Uniform quantization of an array to b-bit integers: grids, integer codes, straight-through.

```python
import jax
import jax.numpy as jnp

from jaxeff.compression import (
    dequantize, fake_quantize, grid, quantize, round_through, straight_through, value_range,
)

x = jnp.array([-1.0, -0.2, 0.3, 1.0])
four = grid(4, jnp.float32(-1), jnp.float32(1), symmetric=True)
codes = quantize(x, four)
assert codes.tolist() == [-7, -1, 2, 7]
assert jnp.allclose(dequantize(codes, four), codes / 7)
rounded = fake_quantize(x, 4, jnp.float32(-1), jnp.float32(1), True)    # the same, with a gradient
assert jnp.allclose(rounded, codes / 7)
low, high = value_range(x.reshape(2, 2), keep=(0,))                     # of every row
assert low.tolist() == [[-1.0], [jnp.float32(0.3)]] and high.tolist() == [[jnp.float32(-0.2)], [1]]
assert jax.grad(round_through)(0.3) == 1 and round_through(0.3) == 0
assert straight_through(x, rounded).tolist() == rounded.tolist()        # the gradient is that of x
```
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int32, Integer

from jaxeff import core

MAX_BITS = 16
FULL: Final = "full"
Symmetry = bool | Literal["full"]
"""Whether a grid is centred on zero; "full": with a value more at its further end."""

Bits = Int32[Array, "..."] | int
"""A bit width: a Python number, or an array of whole numbers, which may be traced."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Grid:
    """The values a quantized array can take: `(q + zero) * step` for lower <= q <= upper.

    A grid maps an integer code q to the value `(q + zero) * step`. Affine grids follow Galen: with
    n = 2^b - 1 steps over [low, high], `zero = round(low / step) + 2^(b-1)` and codes clamped to
    [-2^(b-1), 2^(b-1) - 1]; rounding is half to even. A range that doesn't hold zero is extended to
    it first, as integer kernels need it (they pad with the code of zero). `fake_quantize` stays in
    floating point and has a gradient of exactly one everywhere (straight-through, also where values
    are clamped).

    Attributes:
        step: Distance of neighbouring values, positive.
        zero: Added to a code before scaling; a whole number, or a half for one symmetric bit.
        lower: Smallest code, a whole number.
        upper: Largest code, a whole number.

    All four broadcast against the array: scalars for one grid per tensor, size-one axes elsewhere.
    """

    step: Float[Array, "..."]
    zero: Float[Array, "..."]
    lower: Float[Array, "..."]
    upper: Float[Array, "..."]


@core.validate(symmetric=core.one_of(False, True, FULL))
def grid(
    bits: Bits, low: Float[Array, "..."], high: Float[Array, "..."], symmetric: Symmetry = False
) -> Grid:
    """Makes the uniform grid of a range.

    Sharp edges:
        An affine grid holds zero exactly, but its ends are moved by up to half a step for it. With
        one bit this is coarse: the two values are multiples of `high - low`, so a range around zero
        becomes lopsided; take a symmetric grid for one-bit weights.
        Values far from zero share their steps with the way to it: those of [9, 10] have a tenth of
        the codes of [0, 10].
        A symmetric grid has an odd number of values, 2^b - 1 of them around zero. With one bit it
        has none at zero: its two values are -m/2 and +m/2 for the range [-m, m], the sign of the
        input (that of zero is positive) scaled to the middle of each half.
        A "full" grid has all 2^b values: from the end of larger magnitude, which is 2^(b-1) steps
        from zero, to 2^(b-1) - 1 steps on the other side. So it reaches one end of its range alone.
        With one bit, and from eight on, it is the symmetric one.
        A range of no width keeps its one value exactly: an affine grid goes from it to zero in
        2^(b-1) steps, a symmetric one to the same value of the other sign.
        A step above 8e37 has no reciprocal in float32, by which compilers multiply: values become
        zero.
        Grids are computed in float32 at least; a bfloat16 array is rounded once more to its own
        dtype.

    Args:
        bits: 1 to 16. An array broadcasts against the range; a traced one isn't checked.
        low: Smallest value of the range; broadcasts against the array to quantize. One above zero
            counts as zero where the grid isn't symmetric.
        high: Largest value of the range, of the shape of `low`; likewise one below zero.
        symmetric: Whether the grid is centred on zero; its range is then plus and minus
            max(|low|, |high|). "full": with one value more, on the side of the end of larger
            magnitude (the lower one of two that are equal).

    Returns:
        The grid, in float32 or the wider dtype of the range.

    Raises:
        TypeError: `bits` isn't a whole number, or an end of the range no number.
        ValueError: `bits` isn't between 1 and 16, or the range's ends are in the wrong order.

    References:
        Krieger et al., "Galen: Hardware-specific Automatic Compression of Neural Networks",
        arXiv:2212.07818. Jacob et al., arXiv:1712.05877. "full" is the grid of llama.cpp's Q4_0.
    """
    core.Width(1, MAX_BITS).check("bits", bits)
    _check_range("grid", low, high)
    dtype = wide_dtype(low, high)
    if isinstance(bits, int) and core.is_concrete(low) and core.is_concrete(high):
        known = _of_numbers(np.asarray(low, dtype), np.asarray(high, dtype), bits, symmetric)
        with jax.ensure_compile_time_eval():
            return jax.device_put(known)
    low, high = jnp.broadcast_arrays(jnp.asarray(low, dtype), jnp.asarray(high, dtype))
    if not isinstance(bits, int):
        # Widths per channel give a range of the tensor an axis of channels.
        shape = jnp.broadcast_shapes(low.shape, jnp.shape(bits))
        low, high = jnp.broadcast_to(low, shape), jnp.broadcast_to(high, shape)
    return _grid(low, high, *_split_width(bits), symmetric)


def _split_width(bits: Bits) -> tuple[int | None, Any]:
    """Splits a width into the part that a compiled function is made for, and its argument."""
    return (bits, None) if isinstance(bits, int) else (None, bits)


def _check_range(where: str, low: Any, high: Any) -> None:
    """Checks the ends of a range where they are known.

    NaN in an array passes, so that it shows in what is quantized: ranges are read from data.
    """
    for name, end in (("low", low), ("high", high)):
        if not isinstance(end, jax.Array | np.ndarray):
            core.check_number(f"{where}: {name}", end)
    if (
        core.is_concrete(low)
        and core.is_concrete(high)
        and np.any(np.asarray(low) > np.asarray(high))
    ):
        raise ValueError(f"{where}: low must be at most high, but they are {low} and {high}.")


class _Functions(NamedTuple):
    """What grids are computed with beside operators."""

    full_like: Callable[..., Any]
    select: Callable[..., Any]
    maximum: Callable[..., Any]
    minimum: Callable[..., Any]
    nearest: Callable[..., Any]
    least: Any


_LAX = _Functions(
    lax.full_like, lax.select, lax.max, lax.min,
    functools.partial(lax.round, rounding_method=lax.RoundingMethod.TO_NEAREST_EVEN), 0,
)  # fmt: skip


def _of_numbers(low: Any, high: Any, width: int, symmetric: Symmetry) -> Grid:
    """Computes `grid` of a known range: a network has many, and compilations are waited for."""
    # Compiled programs take what is smaller than any normal number for zero.
    tiny = np.finfo(low.dtype).tiny
    least = float(np.nextafter(tiny, tiny.dtype.type(0)))
    xp = _Functions(np.full_like, np.where, np.maximum, np.minimum, np.rint, least)
    with np.errstate(all="ignore"):
        low, high = np.broadcast_arrays(
            *(np.where(np.abs(end) <= least, end * 0, end) for end in (low, high))
        )
        return _numbers(xp, low, high, width, None, symmetric)


@functools.partial(jax.jit, static_argnums=(2, 4))
def _grid(low: Array, high: Array, width: int | None, traced: Any, symmetric: Symmetry) -> Grid:
    """Computes `grid`: compiled, for a network has many arrays of few shapes.

    `width` is the bit width if it is a Python number, `traced` otherwise.
    """
    return _numbers(_LAX, low, high, width, traced, symmetric)


def _numbers(
    xp: _Functions, low: Any, high: Any, width: int | None, traced: Any, symmetric: Symmetry
) -> Grid:
    """Computes `grid` of numbers that are known, by NumPy, or of others."""
    bits = traced if width is None else width

    def filled(value: float) -> Any:
        return xp.full_like(low, value)

    def of_bits(number: Callable[[float], float]) -> Array:
        """Returns a number of `half`, the same bits whether the width is known or traced."""
        if isinstance(bits, int):
            return filled(number(2.0 ** (bits - 1)))
        # A table instead of exp2: a traced width must give the same bits as a known one.
        table = np.array([number(2.0**b) for b in range(MAX_BITS)], low.dtype)
        entries = jnp.asarray(table)[jnp.asarray(bits, jnp.int32) - 1]
        return jnp.broadcast_to(core.with_leading_axes(entries, low.shape), low.shape)

    # Steps are written so that fusing, and turning a division by a constant into a product, as
    # compilers do, changes no bit: a step off by an ulp would move every value of the grid.
    none, half = filled(0), of_bits(float)
    least = filled(xp.least) if xp.least else none
    lower, upper = (of_bits(functools.partial(_end, symmetric, k)) for k in (0, 1))
    if symmetric:
        if symmetric == FULL:
            # The same as the symmetric grid's, and one more on the side that reaches further.
            # How far it reaches below zero is -low, not |low|: a range may lie above zero.
            further = high > -low
            more = of_bits(lambda h: float(_is_full(h)))
            upper = xp.select(further, upper + more, upper)
            lower = xp.select(further, lower, lower - more)
        high = xp.maximum(abs(low), abs(high))
        low = none * high  # a range of no width is the value zero; one of NaN stays NaN
        # With one bit the step is the range itself.
        step = high * of_bits(lambda h: 1 / _steps_to_end(symmetric, h))
        zero = of_bits(lambda h: 0.5 if h == 1 else 0.0)
    else:
        single = (low == high) & (low != none)
        low, high = xp.minimum(low, none), xp.maximum(high, none)
        # Halves are exact: the difference of the ends can't overflow.
        span = filled(0.5) * high - filled(0.5) * low
        step = span * of_bits(lambda h: 1 / (h - 0.5))
        by = xp.select(step > least, step, filled(1))
        zero = xp.nearest(low / by)
        zero = zero + half
        # A power of two of steps reaches the one value exactly.
        exact = (high - low) * of_bits(lambda h: 1 / h)
        step = xp.select(single, exact, step)
        at = xp.select(high > none, half, none)
        zero = xp.select(single, at, zero)
        upper = xp.select(single, none, upper)
    # A range of zeros alone: the grid has the one code 0, of the value `low`.
    wide = step > least
    return Grid(
        step=xp.select(wide, step, filled(1)),
        zero=xp.select(wide, zero, low),
        lower=xp.select(wide, lower, none),
        upper=xp.select(wide, upper, none),
    )


@core.validate(x=core.real_array(empty=True), grid=core.instance_of(Grid))
def quantize(x: Float[Array, "*shape"], grid: Grid) -> Integer[Array, "*shape"]:
    """Computes the integer codes of the nearest grid values. NaN has no code; don't pass it.

    Args:
        x: Values to quantize.
        grid: A grid that broadcasts against `x`.

    Returns:
        Codes between `grid.lower` and `grid.upper`, in the shape of `x`: int8, or int16 where the
        grid's ends are known and beyond it.
    """
    wide = not isinstance(grid.upper, jax.core.Tracer) and bool(jnp.any(grid.upper > 127))
    codes = _codes(x, grid, (grid.lower, grid.upper))
    return codes.astype(jnp.int16 if wide else jnp.int8)


@core.validate(codes=core.real_array(nan=True, empty=True), grid=core.instance_of(Grid))
def dequantize(codes: Integer[Array, "*shape"], grid: Grid) -> Float[Array, "*shape"]:
    """Computes the grid values of integer codes.

    Args:
        codes: Result of `quantize`.
        grid: The grid they were made with.

    Returns:
        Values in the grid's dtype, float32 at least.
    """
    return (jnp.asarray(codes, grid.step.dtype) + grid.zero) * grid.step


@core.validate(x=core.real_array(nan=True, empty=True), symmetric=core.one_of(False, True, FULL))
def fake_quantize(
    x: Float[Array, "*shape"],
    bits: Bits,
    low: Float[Array, "..."] | float,
    high: Float[Array, "..."] | float,
    symmetric: Symmetry = False,
    covered: bool = False,
) -> Float[Array, "*shape"]:
    """Rounds to the nearest value of a uniform grid, with a straight-through gradient.

    Args:
        x: Values to quantize, a real floating-point array.
        bits: 1 to 16; an array, such as a traced one, broadcasts against the range.
        low: Smallest value of the range; broadcasts against `x`.
        high: Largest value of the range; broadcasts against `x`.
        symmetric: Whether the grid is centred on zero, or "full", as `grid` has it.
        covered: Whether the range is known to hold every value of `x`, as `value_range` does. The
            result is the same, for one operation per element less.

    Returns:
        An array like `x` with at most 2^bits different values per range. Its derivative with
        respect to `x` is one everywhere, with respect to the range zero.

    Raises:
        TypeError: `x` isn't real floating-point, or an end of the range no number.
        ValueError: `bits` isn't between 1 and 16, or the range's ends are in the wrong order.
    """
    x = jnp.asarray(x)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"fake_quantize: x must be real and floating-point, not {x.dtype}.")
    _check_range("fake_quantize", low, high)
    core.Width(1, MAX_BITS).check("bits", bits)
    if isinstance(bits, int) and core.is_concrete(low) and core.is_concrete(high):
        # A range that was measured before needs no equations of a program.
        first, last = (np.asarray(end, x.dtype).astype(wide_dtype(x)) for end in (low, high))
        return _to_known(x, _of_numbers(first, last, bits, symmetric))
    low, high = jnp.asarray(low, x.dtype), jnp.asarray(high, x.dtype)
    return _rounded(x, low, high, *_split_width(bits), symmetric, covered)


def _to_known(x: Array, known: Grid) -> Array:
    """Computes `fake_quantize` to a grid of NumPy's numbers."""
    # Numbers that are all alike are one: between scalars, a program clamps in one operation.
    to = jax.tree.map(lambda n: n.flat[0] if n.size and (n == n.flat[0]).all() else n, known)
    return _nearest_of(x, to)


@jax.jit
def _nearest_of(x: Array, to: Grid) -> Array:
    """Computes the nearest values of a grid: equal layers share what is traced."""
    is_one_range = to.lower.ndim == to.upper.ndim == 0
    clip = lax.clamp if is_one_range else lambda low, codes, high: jnp.clip(codes, low, high)
    return _in_steps(x, clip(to.lower, _nearest_codes(x, to), to.upper), to)


def _in_steps(x: Array, codes: Array, to: Grid) -> Array:
    """Returns the values of codes, with the gradient of `x`."""
    return straight_through(x, ((codes + to.zero) * to.step).astype(x.dtype))


@functools.partial(jax.jit, static_argnums=2)
def rounded_around_zero(x: Array, end: Array, width: int) -> Array:
    """Computes `fake_quantize` to a grid around zero whose ends are a largest magnitude.

    The same values as of `grid`, without the cases that can't occur: weights need it in every
    step of a training, and a network has many.

    Args:
        x: Values to quantize.
        end: Largest magnitude of them, as `largest_magnitude` has it; it broadcasts against `x`.
        width: Bit width, 2 to 16.
    """
    steps = _steps_to_end(True, 2.0 ** (width - 1))
    dtype = wide_dtype(x)
    # Of zeros alone any step is right; NaN stays. No code lies beyond the ends: the quotient of the
    # largest magnitude is off by less than half a step.
    step = jnp.maximum(end.astype(dtype) * (1 / steps), jnp.finfo(dtype).tiny)
    codes = lax.round(x.astype(dtype) / step, lax.RoundingMethod.TO_NEAREST_EVEN)
    return straight_through(x, (codes * step).astype(x.dtype))


@functools.partial(jax.jit, static_argnums=(3, 5, 6))
def _rounded(
    x: Array, low: Array, high: Array, width: int | None, traced: Any, symmetric: Symmetry,
    covered: bool,
) -> Array:  # fmt: skip
    """Computes `fake_quantize`: equal layers share what is traced."""
    bits = traced if width is None else width
    to = grid(bits, low, high, symmetric)
    # Where nothing lies outside a range of no width, its ends need not be an array: XLA clamps
    # between two constants in one operation.
    ends: tuple[Any, Any] = to.lower, to.upper
    if covered and isinstance(bits, int) and symmetric != FULL:
        half = 2.0 ** (bits - 1)
        ends = _end(symmetric, 0, half), _end(symmetric, 1, half)
    return _in_steps(x, _codes(x, to, ends), to)


@core.validate(x=core.real_array(nan=True, empty=True), y=core.real_array(nan=True, empty=True))
def straight_through(x: Float[Array, "*shape"], y: Float[Array, "*shape"]) -> Array:
    """Returns the value of `y` with the gradient of `x` (Bengio et al., arXiv:1308.3432).

    Exactly `y`: x + stop_gradient(y - x) would round, and leave a grid by an ulp.
    """
    dtype, shape = jnp.result_type(x, y), jnp.broadcast_shapes(jnp.shape(x), jnp.shape(y))
    x, y = (jnp.broadcast_to(jnp.asarray(a, dtype), shape) for a in (x, y))
    return _in_place_of(x, y)


# One equation where nothing is differentiated, as in most programs: stopped gradients, written out,
# are four, and a subtraction that no compiler may leave out.
@jax.custom_jvp
def _in_place_of(x: Array, y: Array) -> Array:
    del x
    return y


@_in_place_of.defjvp
def _(primals: Any, tangents: Any) -> tuple[Any, Any]:
    return _in_place_of(*primals), tangents[0]


@core.validate(x=core.real_array(nan=True, empty=True))
def round_through(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Rounds to the nearest whole number, half to even, with a gradient of one."""
    return straight_through(x, lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN))


@core.validate(x=core.real_array(nan=True))
def value_range(
    x: Float[Array, "*shape"], keep: Sequence[int] = ()
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Returns the smallest and largest value of an array.

    Args:
        x: Any array that isn't empty.
        keep: Axes that keep a range for each of their entries: none for one range per tensor, the
            output channels of a weight, the batch axis of an activation.

    Returns:
        Two arrays that broadcast against `x`: size one along every axis that isn't kept.
    """
    axes, _ = kept_axes(x, keep)
    return jnp.min(x, axes, keepdims=True), jnp.max(x, axes, keepdims=True)


def kept_axes(
    x: Float[Array, "*shape"], keep: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Finds the axes that share a number, and the shape of numbers that broadcast against `x`.

    Args:
        x: Any array.
        keep: Axes that keep a number for each of their entries.

    Returns:
        The other axes; and a shape, () where nothing is kept, else of size one along those axes.
    """
    kept = {axis % x.ndim for axis in keep}
    axes = tuple(axis for axis in range(x.ndim) if axis not in kept)
    shape = tuple(n if axis in kept else 1 for axis, n in enumerate(x.shape))
    return axes, shape if kept else ()


def ranges(shape: Sequence[int], keep: Sequence[int]) -> int:
    """Counts the ranges of an array that keeps one for each entry of some axes."""
    return math.prod(shape[axis] for axis in keep)


def power_of_two(bits: Bits, dtype: Any) -> Float[Array, "..."]:
    """Computes 2^bits exactly, also of traced widths, which `exp2` isn't on every machine."""
    if isinstance(bits, int):
        return jnp.asarray(2.0**bits, dtype)
    powers = np.minimum(2.0 ** np.arange(MAX_BITS + 1), float(jnp.finfo(dtype).max))
    return jnp.asarray(powers, dtype)[jnp.asarray(bits, jnp.int32)]


def _is_full(half: float) -> bool:
    """Returns whether a full grid has a value more than the symmetric one.

    Codes of eight bits stay within 127 either way, as kernels multiply them; one more of 255 values
    would gain nothing.
    """
    return 1 < half < 2**7


def _steps_to_end(symmetric: Symmetry, half: float) -> float:
    """Returns how many steps a grid centred on zero has to its further end."""
    if symmetric == FULL and _is_full(half):
        return half
    return max(half - 1, 1.0)


def _end(symmetric: Symmetry, upper: int, half: float) -> float:
    """Returns the smallest or largest code of a grid of `2 half` values.

    Of a full one those that it has whichever end is further.
    """
    if not symmetric:
        return half - 1 if upper else -half
    if half == 1:
        return 0.0 if upper else -1.0
    return half - 1 if upper else 1 - half


def _codes(x: Array, grid: Grid, ends: tuple[Any, Any]) -> Array:
    """Computes codes as floating-point numbers, so that NaN stays NaN."""
    return jnp.clip(_nearest_codes(x, grid), *ends)


def _nearest_codes(x: Array, grid: Grid) -> Array:
    """Computes the nearest whole numbers of steps, whether or not the grid has them."""
    codes = x.astype(grid.step.dtype) / grid.step - grid.zero
    return lax.round(codes, lax.RoundingMethod.TO_NEAREST_EVEN)


def wide_dtype(*arrays: Any) -> Any:
    """Returns the dtype to compute in: that of the arrays, float32 at least."""
    dtype = jnp.result_type(*arrays)
    narrow = not jnp.issubdtype(dtype, jnp.floating) or jnp.finfo(dtype).bits < 32
    return jnp.float32 if narrow else dtype


@jax.jit
def nearest(x: Float[Array, "*shape"], levels: Float[Array, "..."]) -> Integer[Array, "*shape"]:
    """Finds the index of the level nearest to each value; for NaN it is 0.

    Levels lie along a last axis of their own, `[..., levels]`, and are sorted along it: `[levels]`
    for one set, or of size one along every axis of the array but those that have sets of their own.
    A value in the middle between two levels belongs to the lower one.
    """
    # Halved before adding: the sum of two large levels would overflow.
    middles = levels[..., 1:] / 2 + levels[..., :-1] / 2
    count = middles.shape[-1]
    codes = jnp.zeros(x.shape, jnp.int32)
    # By bisection, one bit at a time: an array of values by levels would be hundreds of times x.
    for bit in reversed(range(count.bit_length())):
        further = codes + 2**bit
        at = lookup_levels(middles, jnp.minimum(further, count) - 1)
        codes = jnp.where((further <= count) & (x > at), further, codes)
    return codes


def lookup_levels(levels: Float[Array, "..."], codes: Integer[Array, "*shape"]) -> Array:
    """Looks up the levels of codes; the gradient of a level is the sum over its members."""
    levels = core.with_leading_axes(levels, (*codes.shape, levels.shape[-1]))
    return jnp.take_along_axis(levels, codes[..., None], axis=-1, mode="clip")[..., 0]


@functools.partial(jax.jit, static_argnums=(2, 3))
def sums(
    x: Float[Array, "*shape"], codes: Integer[Array, "*shape"], count: int, shape: tuple[int, ...]
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Counts the values of each code, and sums them in float32 at least.

    Args:
        x: Values.
        codes: Their codes, 0 to `count` - 1.
        count: Number of codes.
        shape: Shape of one set of levels; as `jaxeff.compression.numerics.kept_axes` gives it.

    Returns:
        Two arrays of the shape `(*shape, count)`.
    """
    x = at_least_float32(x)
    # The number of the set (such as the channel) that each value belongs to: one segment
    # sum then serves all sets.
    sets: Any = jnp.zeros(x.shape, jnp.int32)
    total = 1
    for axis, size in enumerate(shape):
        if size > 1:
            sets = sets * size + lax.broadcasted_iota(jnp.int32, x.shape, axis)
            total *= size
    flat = (sets * count + codes).ravel()

    def add(values: Array) -> Array:
        return jax.ops.segment_sum(values.ravel(), flat, total * count).reshape((*shape, count))

    return add(jnp.ones_like(x)), add(x)


def at_least_float32(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Casts an array to float32 at least."""
    return x.astype(wide_dtype(x))


def least_squares(gram: Float[Array, "... n n"], right: Float[Array, "... n"]) -> Array:
    """Solves normal equations; where bases coincide, by the shortest solution."""
    # Two equal bases make the Gram matrix singular; the pseudoinverse still gives a finite
    # solution.
    inverse = jnp.linalg.pinv(gram, hermitian=True)
    return jnp.sum(inverse * right[..., None, :], axis=-1)
