"""Fixed values times a scale: `Levels`, `PowersOfTwo`, `Floating`, and formats in groups.

```python
from jaxeff.compression import LayerQuantization, mxfp, mxint, nf4, nvfp4, quantized
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
logits = quantized(f, {"fc2": LayerQuantization(nf4(16))})(params, x)      # weights alone
logits = quantized(f, {"fc2": nvfp4()})(params, x)                         # what it reads, too
both = LayerQuantization(mxfp("e2m1"), mxint(8))                           # MXFP4 times MXINT8
logits = quantized(f, {"fc2": both})(params, x)
```
"""

import itertools
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxeff import core
from jaxeff.compression import numerics
from jaxeff.compression.numerics import BaseQuantizer, Tensor, nearest, power_of_two
from jaxeff.compression.quantizers._uniform import Grouped

Scaling = Annotated[str, core.Choice("none", "real", "power_of_two", "shared_exponent", "e4m3")]
"""How an open scale is chosen; `open_scale` has the choices."""


class ScaledValues(BaseQuantizer):
    """A fixed set of values times a scale; subclasses have the fields below, and a `width`."""

    scale: Any
    scaling: str
    per: str

    @property
    def most(self) -> float:
        """The largest value."""
        raise NotImplementedError

    def start(self, x: Float[Array, "*shape"], tensor: Tensor) -> Self:
        """Computes an open scale from an array, if there is to be one."""
        if self.scale is not None or self.scaling == "none":
            return self
        top = numerics.magnitude(numerics.at_least_float32(x), tensor, self.per)
        scale = open_scale(self.scaling, top, self.most)
        return replace(self, scale=scale)  # type: ignore[type-var]

    def storage(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Counts codes, and for each scale a float or eight bits."""
        scaled = self.scale is not None or self.scaling != "none"
        bits = 32 if self.scaling in ("none", "real") else 8
        return super().storage(shape, tensor) + bits * tensor.count(shape, self.per) * int(scaled)


def open_scale(
    scaling: str, top: Float[Array, "*numbers"], most: float
) -> Float[Array, "*numbers"]:
    """Computes the scales of a format from the largest magnitudes of what shares them.

    Args:
        scaling: "real": the largest magnitude becomes the format's largest value. "power_of_two":
            the smallest power of two that keeps it below. "shared_exponent": the power of two that
            brings its exponent to the format's (values that then exceed the format saturate).
            "e4m3": as "real", rounded to 8-bit floats in units that bring the largest scale of all
            to the largest of these.
        top: Largest magnitudes.
        most: Largest value of the format.

    References:
        Rouhani et al., "OCP Microscaling Formats (MX) Specification", 2023, section 6.3
        (shared exponents). NVIDIA, "Pretraining Large Language Models with NVFP4",
        arXiv:2509.25149 (two levels of scales).
    """
    limit, power = np.frexp(most)
    if scaling == "real":
        scale = top * (1 / most)
    elif scaling == "e4m3":
        scale = _two_levels(top * (1 / most))
    else:
        fraction, exponent = jnp.frexp(top)
        exponent = exponent - int(power)
        if scaling == "power_of_two":
            # The smallest power of two with top / scale <= most, whose fraction is `limit`.
            exponent = exponent + (fraction > float(limit)).astype(exponent.dtype)
        scale = jnp.ldexp(jnp.ones_like(top), exponent)
    # An array of zeros has no scale, and any is right for it.
    return jnp.where(top > 0, scale, jnp.ones_like(scale))


def _two_levels(scale: Array) -> Array:
    """Rounds scales to three bits of mantissa, subnormals of e4m3 included."""
    info = jnp.finfo(jnp.float8_e4m3fn)
    unit = jnp.max(scale) * (1 / float(info.max))
    unit = jnp.where(unit > 0, unit, jnp.ones_like(unit))
    relative = scale / unit
    exponent = jnp.maximum(jnp.frexp(relative)[1] - 1, int(info.minexp)) - int(info.nmant)
    codes: Any = lax.round(jnp.ldexp(relative, -exponent), lax.RoundingMethod.TO_NEAREST_EVEN)
    # A scale of zero would lose values that are small beside the largest of the array.
    return jnp.maximum(jnp.ldexp(codes, exponent), float(info.smallest_subnormal)) * unit


@core.register_setting
class Levels(ScaledValues):
    """Values and their scale: `Levels((-1.0, 0.0, 0.5, 1.0))`.

    A value becomes the nearest of scale v for the values v. The gradient is straight-through; that
    of the scale is the one of the product.

    Attributes:
        values: The values, in increasing order.
        scale: Factor of the values, positive; learnt by its gradient. Open: by `scaling`.
        scaling: Choice of an open scale, as `Floating` has it.
        per: Part with its own scale: the output "channel" of a weight, or the "tensor".

    Raises:
        TypeError, ValueError: There are fewer than two values, they aren't increasing or aren't
            finite, the scaling is unknown, or the scale isn't positive.

    References:
        Dettmers et al., "QLoRA", arXiv:2305.14314 (NF4).
    """

    values: tuple[float, ...] = core.static()
    scale: Annotated[Float[Array, "..."] | float | None, core.Number(above=0)] = None
    scaling: Scaling = core.static("real")
    per: Annotated[str, core.Choice("channel", "tensor")] = core.static("tensor")

    def __post_init__(self) -> None:
        super().__post_init__()
        values = self.values
        if not isinstance(values, tuple) or not all(isinstance(v, float | int) for v in values):
            raise TypeError(f"Levels.values must be a tuple of numbers, not {values!r}.")
        apart = all(a < b for a, b in itertools.pairwise(values))
        if len(values) < 2 or not apart or not max(map(abs, values)) < float("inf"):
            raise ValueError(
                "Levels.values must be two finite numbers or more, in increasing order: "
                f"{values!r}."
            )

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Returns the nearest of the scaled values."""
        started = self.start(lax.stop_gradient(x), tensor)
        value = numerics.at_least_float32(x)
        levels = jnp.asarray(self.values, value.dtype)
        scale = jnp.ones((), value.dtype) if started.scale is None else started.scale
        scale = numerics.keep_positive(tensor.fitted("Levels.scale", scale, value))
        unit = value / scale
        codes = nearest(lax.stop_gradient(unit), levels)
        y = numerics.straight_through(unit, numerics.lookup_levels(levels, codes)) * scale
        return jnp.where(jnp.isnan(x), x, y.astype(x.dtype))

    @property
    def most(self) -> float:
        """The largest value of either sign."""
        return float(max(map(abs, self.values)))

    @property
    def width(self) -> int:
        """Bits of one code."""
        return (len(self.values) - 1).bit_length()


FORMATS = (
    "bfloat16", "float16",
    "float8_e4m3fn", "float8_e5m2", "float8_e4m3", "float8_e3m4",
    "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e4m3b11fnuz",
    "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn",
)  # fmt: skip
_NAMES = ("e4m3", "e5m2")
"""Short for the two formats of OCP and of NVIDIA's and ARM's hardware."""


@core.register_setting
class Floating(ScaledValues):
    """A floating-point format: `Floating("bfloat16")`, `Floating("e4m3", scaling="power_of_two")`.

    A value is rounded to the nearest of the format, half to even, subnormals included: with e the
    exponent of x, or the format's smallest where that is larger, it is round(x / 2^(e-m)) 2^(e-m)
    for m bits of mantissa. This is what a cast to the dtype of that name gives, bit for bit, but on
    every machine alike and without the casts that compilers remove. Beyond the largest value values
    saturate, or become what the cast gives, infinity or NaN where there is none.

    With a scale the value is that of x / scale, times the scale: what fits an array into eight
    bits.

    The gradient is straight-through, and zero beyond the largest value where values saturate.

    Attributes:
        format: A dtype of `FORMATS`: those with a sign that `ml_dtypes` has. "e4m3" and "e5m2" are
            short for "float8_e4m3fn" and "float8_e5m2"; "fn" formats have no infinities, "fnuz" no
            negative zero either, and their own exponents.
        scale: Divisor of values before rounding, positive; learnt by its gradient. Open: by
            `scaling`.
        scaling: Choice of an open scale: "none" has none; "real" takes the largest magnitude to
            the format's largest value; "power_of_two" the smallest power of two that keeps it
            below, so that scaling is exact; "shared_exponent" the power of two of the MX formats,
            whose largest values saturate; "e4m3" rounds a "real" one to an 8-bit float in units of
            the array (NVFP4).
        saturate: Whether values beyond the largest become it.
        per: Part with its own scale: the output "channel" of a weight, or the "tensor".

    Raises:
        TypeError, ValueError: The format or scaling is unknown, or the scale isn't positive.

    References:
        Micikevicius et al., "FP8 Formats for Deep Learning", arXiv:2209.05433. Noune et al., "8-bit
        Numerical Formats for Deep Neural Networks", arXiv:2206.02915 (fnuz).
    """

    format: Annotated[str, core.Choice(*FORMATS, *_NAMES)] = core.static("bfloat16")
    scale: Annotated[Float[Array, "..."] | float | None, core.Number(above=0)] = None
    scaling: Scaling = core.static("none")
    saturate: bool = core.static(True)
    per: Annotated[str, core.Choice("channel", "tensor")] = core.static("tensor")

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Returns the nearest values of the format, times the scale."""
        started = self.start(lax.stop_gradient(x), tensor)
        value = numerics.at_least_float32(x)
        if started.scale is None:
            return self._nearest(value).astype(x.dtype)
        scale = tensor.fitted("Floating.scale", started.scale, value)
        scale = numerics.keep_positive(scale)
        return (self._nearest(value / scale) * scale).astype(x.dtype)

    @property
    def most(self) -> float:
        """The format's largest value."""
        return float(self._info.max)

    @property
    def width(self) -> int:
        """The format's bits."""
        return int(self._info.bits)

    @property
    def _info(self) -> Any:
        return jnp.finfo(_dtype(self.format))

    def _nearest(self, x: Array) -> Array:
        info, most = self._info, self.most
        fixed = lax.stop_gradient(x)
        # The exponent e of 2^e <= |x|; that of zero is below all.
        exponent = jnp.frexp(fixed)[1] - 1
        exponent = jnp.where(fixed == 0, int(info.minexp), exponent)
        exponent = jnp.maximum(exponent, int(info.minexp)) - int(info.nmant)
        # In units of the last place: powers of two scale exactly, so `round` alone rounds.
        unit = jnp.ldexp(fixed, -exponent)
        rounded = lax.round(unit, lax.RoundingMethod.TO_NEAREST_EVEN)
        y = jnp.ldexp(rounded, exponent)
        beyond = jnp.abs(y) > most
        if self.saturate:
            # A constant there: saturated values have no gradient.
            ends = jnp.clip(fixed, -most, most)
            y = jnp.where(beyond, ends, y)
            x = jnp.where(jnp.abs(fixed) > most, ends, x)
        else:
            y = jnp.where(beyond, jnp.sign(fixed) * _overflow(self.format), y)
            x = jnp.where(jnp.isfinite(fixed), x, jnp.zeros_like(x))
        return numerics.straight_through(x, jnp.where(jnp.isnan(fixed), fixed, y))


def _dtype(name: str) -> Any:
    full = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}.get(name, name)
    return jnp.dtype(full)


def _overflow(name: str) -> float:
    """Returns what a cast makes of a value beyond the largest."""
    dtype = _dtype(name)
    with np.errstate(over="ignore"):
        return float(np.asarray(2 * float(jnp.finfo(dtype).max), np.float64).astype(dtype))


NF4_VALUES = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip
"""Quantiles of a normal distribution, scaled to [-1, 1], zero among them (QLoRA, appendix E)."""
MX, NV = 32, 16
"""Values that share a scale."""


@core.validate(size=core.static_integer(1))
def nf4(size: int = 64) -> Grouped:
    """Returns NF4: 16 values at the quantiles of a normal distribution.

    Args:
        size: Entries that share a scale.

    References:
        Dettmers et al., "QLoRA", arXiv:2305.14314, section 3 and appendix E.
    """
    return Grouped(Levels(NF4_VALUES), size)


@core.validate()
def mxfp(format: Literal["e2m1", "e2m3", "e3m2", "e4m3", "e5m2"] = "e2m1") -> Grouped:
    """Returns an MX format of floating-point values: MXFP4, MXFP6 or MXFP8.

    Args:
        format: Bits of exponent and mantissa of a value.

    Raises:
        ValueError: The format is unknown.

    References:
        Rouhani et al., "Microscaling Data Formats for Deep Learning", arXiv:2310.10537, table 1.
    """
    names = {
        "e2m1": "float4_e2m1fn", "e2m3": "float6_e2m3fn", "e3m2": "float6_e3m2fn",
        "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2",
    }  # fmt: skip
    if format not in names:
        raise ValueError(f"mxfp: format must be one of {', '.join(names)}, not {format!r}.")
    return Grouped(Floating(names[format], scaling="shared_exponent"), MX)


@core.validate(bits=core.static_integer(2, 8))
def mxint(bits: int = 8) -> Grouped:
    """Returns an MX format of whole numbers that share an exponent.

    MXINT8 is the standard's; other widths have its grid of fewer values. Its values are those of
    two's complement without the lowest, as the standard allows. What lies in the middle of two
    becomes the lower.

    Args:
        bits: Width of a value, 2 to 8.

    References:
        Rouhani et al., arXiv:2310.10537, table 1.
    """
    most = 2 ** (bits - 1) - 1
    unit = 2.0 ** (2 - bits)
    values = tuple(k * unit for k in range(-most, most + 1))
    return Grouped(Levels(values, scaling="shared_exponent"), MX)


@core.validate()
def nvfp4() -> Grouped:
    """Returns NVFP4: 4-bit floats whose groups of 16 have a scale of 8 bits in a unit of the array.

    References:
        NVIDIA, "Pretraining Large Language Models with NVFP4", arXiv:2509.25149.
    """
    return Grouped(Floating("float4_e2m1fn", scaling="e4m3"), NV)


@core.register_setting
class PowersOfTwo(BaseQuantizer):
    """Zero and powers of two: `PowersOfTwo(4)`.

    The values are {0} and ±2^k for top - count < k <= top. A magnitude takes the nearest: from 3/4
    2^k to 3/2 2^k it is 2^k (Zhou et al., eq. 4), or, rounded in its exponent as by Miyashita et
    al., from 2^(k-1/2) to 2^(k+1/2). Below half the smallest power it is zero. The largest is top =
    floor(log2(4/3 max|x|)) (Zhou et al., eq. 2). Gradients pass straight through.

    With b bits, one of the codes is zero and 2^(b-1) - 1 are powers of each sign, or 2^b - 1 where
    there is no sign.

    Sharp edges:
        A value in the middle between two belongs to the larger one, as in equation 4.
        Powers end where the dtype does: float16 has none below 2^-14.

    Attributes:
        bits: Bit width, 2 to 8; an array may be traced.
        top: Exponent of the largest power, a whole number; has no gradient. Open: by the largest
            magnitude.
        signed: Whether there are negative values. Open: for weights there are, for activations if
            one is negative.
        nearest: Whether a magnitude is rounded by "value" or by "exponent".
        per: Part with its own exponent: the output "channel" of a weight, or the "tensor".

    Raises:
        TypeError, ValueError: `bits` is out of bounds or not whole, or `top` not finite.

    References:
        Miyashita et al., "Convolutional Neural Networks using Logarithmic Data Representation",
        arXiv:1603.01025. Zhou et al., "Incremental Network Quantization", arXiv:1702.03044.
    """

    bits: Annotated[numerics.Bits, core.Width(2, 8)] = core.static_number()
    top: Annotated[Float[Array, "..."] | float | None, core.Number()] = None
    signed: bool | Array | None = core.static_number(None)
    nearest: Annotated[str, core.Choice("value", "exponent")] = core.static("value")
    per: Annotated[str, core.Choice("channel", "tensor")] = core.static("tensor")

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Returns the nearest values, with a gradient of one."""
        fixed = lax.stop_gradient(x)
        started = self.start(fixed, tensor)
        top = tensor.fitted("PowersOfTwo.top", started.top, x)
        half = power_of_two(self.bits, x.dtype) / 2
        signed = jnp.asarray(started.signed).astype(bool)
        # One code is zero; the others are powers, of each sign if there are two.
        count = jnp.where(signed, half, 2 * half) - 1
        y = nearest_powers(fixed, lax.stop_gradient(top), count, self.nearest == "exponent")
        # Without a sign, negative values become zero.
        keep = (y >= 0) | signed | jnp.isnan(y)
        return numerics.straight_through(x, jnp.where(keep, y, jnp.zeros_like(y)))

    def start(self, x: Float[Array, "*shape"], tensor: Tensor) -> "PowersOfTwo":
        """Computes an open largest exponent and sign from an array."""
        signed = self.signed
        if signed is None:
            signed = numerics.infer_sign(x, tensor)
        top = top_exponent(x, tensor.axes(self.per)) if self.top is None else self.top
        return replace(self, top=top, signed=signed)

    def storage(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Counts codes, and 8 bits for each exponent."""
        return super().storage(shape, tensor) + 8 * tensor.count(shape, self.per)


def top_exponent(x: Float[Array, "*shape"], keep: tuple[int, ...] = ()) -> Float[Array, "..."]:
    """Computes the exponent of the power of two nearest to the largest magnitude; 0 for zeros.

    It is floor(log2(4/3 max|x|)), exactly.

    Args:
        x: Any array.
        keep: Axes whose entries have exponents of their own.
    """
    largest = numerics.largest_magnitude(x, keep)
    fraction, exponent = jnp.frexp(largest)  # largest = fraction 2^exponent, fraction in [1/2, 1)
    # 4/3 fraction 2^e reaches 2^e from a fraction of 3/4 on.
    top = jnp.where(fraction < 0.75, exponent - 1, exponent)
    return jnp.where(largest > 0, top, 0).astype(x.dtype)


def nearest_powers(
    x: Float[Array, "*shape"], top: Any, count: Any, by_exponent: bool = False
) -> Float[Array, "*shape"]:
    """Rounds to zero or plus or minus the nearest power of two; without a gradient.

    Args:
        x: Values.
        top: The largest exponent; broadcasts against `x`.
        count: Number of exponents; broadcasts against `x`.
        by_exponent: Whether exponents are rounded, and not magnitudes.
    """
    size = jnp.abs(x)
    fraction, _ = jnp.frexp(size)
    normal = fraction > 0
    # A quotient of a number and its fraction is a power of two exactly; `exp2` may not be.
    above = size / jnp.where(normal, fraction, jnp.ones_like(fraction))
    # Between 2^(e-1) and 2^e: 3/4 2^e in value, 2^(e-1/2) in the exponent.
    middle = np.sqrt(0.5) if by_exponent else 0.75
    power = jnp.where(fraction >= middle, above, above / 2)
    smallest = _power(top + 1 - count, x.dtype)
    power = jnp.clip(power, smallest, _power(top, x.dtype))
    value = jnp.where(normal & (size >= smallest / 2), jnp.copysign(power, x), jnp.zeros_like(x))
    return jnp.where(jnp.isnan(x), x, value)


def _power(exponent: Any, dtype: Any) -> Array:
    """Computes 2^exponent exactly, for the exponents of a dtype without subnormals."""
    info = jnp.finfo(dtype)
    low, high = int(info.minexp), int(info.maxexp) - 1
    table = jnp.asarray(np.ldexp(1.0, np.arange(low, high + 1)), dtype)
    index = jnp.clip(jnp.round(exponent), low, high).astype(jnp.int32) - low
    return table[index]


def nearest_power(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Rounds positive numbers to powers of two, exactly at the middle of the logarithm."""
    fraction, exponent = jnp.frexp(x)
    # x = fraction 2^e with fraction in [1/2, 1), whose logarithm has its middle at 2^-1/2.
    half = jnp.ones_like(x) / 2
    return jnp.ldexp(jnp.where(fraction < 2**-0.5, half, 2 * half), exponent)
