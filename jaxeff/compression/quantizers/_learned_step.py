"""Uniform grids whose step or end is learnt: `LSQ`, `PACT`, `Relaxed`, `LearnedWidth`."""

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxeff.compression.numerics import (
    MAX_BITS,
    BaseQuantizer,
    Bits,
    Grid,
    LearnedBits,
    Tensor,
    at_least_float32,
    code_range,
    infer_sign,
    keep_ordered,
    keep_positive,
    kept_axes,
    ranges,
    round_through,
    safe_scale,
    start_scale,
    straight_through,
    wide_dtype,
)
from jaxeff.core import (
    Choice,
    Count,
    Number,
    Width,
    is_concrete,
    register_setting,
    static,
    static_number,
    widened,
)

_STARTS = 64


@register_setting
@dataclass(frozen=True)
class LSQ(BaseQuantizer):
    """Learned step size quantization: `LSQ(4)`.

    With v = clip((x - offset) / step, -Qn, Qp) the value is round(v) * step + offset, and rounding
    passes gradients through. Inside the range the step's gradient is round(v) - v, outside it is
    the code of the end (Esser et al., eq. 3); that of x is one inside and zero outside (eq. 5). The
    offset's is zero inside and one outside (Bhalgat et al., eq. 6).

    Attributes:
        bits: Bit width, 1 to 16; an array may be traced. One signed bit has the codes -1 and 0.
        step: Distance of neighbouring values, positive. Open: 2 <|x|> / sqrt(Qp) (section 2.1).
        signed: Whether codes reach below zero. Open: for weights they do, for activations if one is
            negative.
        offset: The value of code zero; learnt where `asymmetric`. Open: the smallest value for
            unsigned codes (LSQ+, section 3).
        asymmetric: Whether there is an offset (LSQ+). Codes are then unsigned for activations.
        per: Part with its own step: the output "channel" of a weight, or the "tensor".
        initial: Start of an open step: the "mean" magnitude, as in the paper, or the least
            squared "error" of the array among steps that clip it less and less, which a short
            training on of activations needs.
        scaled: Whether the gradients of step and offset are divided by sqrt(n Qp), n the values
            that share the step (section 2.2).
        narrow: Whether weights go without the lowest code, which has no counterpart above zero:
            `integer` computes with such codes alone. It takes two bits or more: without its lowest
            code one bit has zero alone.

    Raises:
        TypeError, ValueError: `bits` or `step` is out of bounds, or one bit is `narrow`.

    References:
        Esser et al., "Learned Step Size Quantization", arXiv:1902.08153. Bhalgat et al., "LSQ+",
        arXiv:2004.09576.
    """

    bits: Annotated[Bits, Width(1, MAX_BITS)] = static_number()
    step: Annotated[Float[Array, "..."] | float | None, Number(above=0)] = None
    signed: bool | Array | None = static_number(None)
    offset: Float[Array, "..."] | float | None = None
    asymmetric: bool = static(False)
    per: Annotated[str, Choice("channel", "tensor")] = static("tensor")
    initial: Annotated[str, Choice("mean", "error")] = static("mean")
    scaled: bool = static(True)
    narrow: bool = static(False)

    def __post_init__(self) -> None:
        """Checks the fields."""
        super().__post_init__()
        # A traced width can't be told; searches over widths sweep such ones.
        if self.narrow and is_concrete(self.bits) and np.any(np.asarray(self.bits) == 1):
            raise ValueError(
                "LSQ.narrow leaves one bit the code 0 alone, so that all weights were zero: take "
                "two bits or more, or narrow=False."
            )

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Returns the nearest values of the grid, with the gradients above."""
        started = self.start(jax.lax.stop_gradient(x), tensor)
        lower, upper = started.ends(x.dtype, tensor.role)
        step = jnp.asarray(started.step, x.dtype)
        if self.scaled:
            # g = 1 / sqrt(N Qp): keeps the ratio of update to value of a step near that of
            # the weights (Esser et al., section 2.2).
            shared = x.size // max(step.size, 1)
            scale = jax.lax.rsqrt(shared * jnp.maximum(upper, 1))
            step = _scaled(step, scale)
        offset: Any = 0.0
        if started.offset is not None:
            offset = jnp.asarray(started.offset, x.dtype)
            offset = _scaled(offset, scale) if self.scaled else offset
        # A step that training brought to zero or below stays a step.
        step = keep_positive(step)
        codes = round_through(jnp.clip((x - offset) / step, lower, upper))
        return codes * step + offset

    def start(self, x: Float[Array, "*shape"], tensor: Tensor) -> "LSQ":
        """Computes open step, sign and offset from an array."""
        if self.step is not None and self.signed is not None:
            return self
        axes, shape = kept_axes(x, tensor.axes(self.per))
        signed = self.signed
        if signed is None:
            # With an offset, codes of activations start at zero, whatever the values are.
            unsigned = self.asymmetric and tensor.role == "activation"
            signed = False if unsigned else infer_sign(x, tensor)
        known = replace(self, signed=signed)
        lower, upper = known.ends(x.dtype, tensor.role)
        offset: Any = self.offset
        if self.asymmetric and offset is None:
            bottom = jnp.min(x, axes).reshape(shape)
            offset = bottom if signed is False else jnp.zeros_like(bottom)
        step: Any = self.step
        # LSQ+: codes span from the smallest to the largest value.
        if step is None and self.asymmetric and signed is False:
            top = jnp.max(x, axes).reshape(shape)
            step = (top - offset) / (upper - lower)
        elif step is None and self.initial == "error":
            step = _least_error(x, axes, shape, lower, upper)
        elif step is None:
            mean = jnp.mean(jnp.abs(x), axes).reshape(shape)
            step = 2 * mean / jnp.sqrt(jnp.maximum(upper, 1))
        # An array of zeros has no scale, and any step is right for it.
        step = safe_scale(jnp.asarray(step)).astype(x.dtype)
        return replace(known, step=step, offset=offset)

    def storage(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Counts the bits of the codes, and of steps and offsets in float32."""
        each = 64 if self.asymmetric else 32
        return math.prod(shape) * self.bits + ranges(shape, tensor.axes(self.per)) * each

    def ends(self, dtype: Any, role: str) -> tuple[Array, Array]:
        """Returns the lowest and the highest code, once the sign is known."""
        lower, upper = code_range(self.bits, self.signed, dtype)
        return (jnp.maximum(lower, -upper) if self.narrow and role == "weight" else lower), upper

    def grid(self, dtype: Any) -> Grid:
        """Returns the values that weights take, once step and sign are known."""
        step = jnp.asarray(self.step, dtype)
        lower, upper = (jnp.broadcast_to(end, step.shape) for end in self.ends(dtype, "weight"))
        offset = jnp.asarray(0.0 if self.offset is None else self.offset, dtype)
        return Grid(step, jnp.broadcast_to(offset / step, step.shape), lower, upper)


def _least_error(
    x: Array, axes: tuple[int, ...], shape: tuple[int, ...], lower: Any, upper: Any
) -> Array:
    """Searches for the step of least squared error, among `_STARTS` even parts of the widest."""
    # The step at which nothing is clipped; smaller ones clip more and round finer.
    below = jnp.where(lower < 0, x / jnp.minimum(lower, -1), jnp.zeros_like(x))
    above = jnp.maximum(x, 0) / jnp.maximum(upper, 1)
    widest = jnp.max(jnp.maximum(below, above), axes).reshape(shape)

    def error(factor: Array) -> Array:
        step = keep_positive(widest * factor)
        value = jnp.clip(jnp.round(x / step), lower, upper) * step
        return jnp.sum(jnp.square(widened(x - value)), axes).reshape(shape)

    factors = jnp.arange(1, _STARTS + 1, dtype=x.dtype) / _STARTS
    errors = jax.lax.map(error, factors)
    return widest * factors[jnp.argmin(errors, axis=0)]


def _scaled(value: Array, scale: Array) -> Array:
    """Multiplies the gradient of a value."""
    fixed = jax.lax.stop_gradient(value)
    return fixed + scale * (value - fixed)


@register_setting
@dataclass(frozen=True)
class PACT(BaseQuantizer):
    """Parameterized clipping activation: `PACT(4)`.

    With n = 2^bits - 1 the value is round(clip(x, 0, alpha) n / alpha) alpha / n (Choi et al., eq.
    1 and 2). Its derivative with respect to alpha is zero for x < alpha and one for x >= alpha (eq.
    3), that with respect to x one inside the range and zero outside. What pulls alpha down is a
    penalty decay * alpha^2 (section 3).

    Codes with a sign, for weights, are ours: clip(x, -alpha, alpha), n = 2^(bits-1) - 1, and the
    derivative at the lower end is minus one.

    Attributes:
        bits: Bit width, 1 to 16, with a sign 2 to 16; an array may be traced, and one bit with a
            sign counts as two there.
        alpha: Value at which values are clipped, positive. Open: the largest magnitude; of an array
            of zeros one.
        signed: Whether codes reach below zero. Open: for weights they do, for activations if one is
            negative.
        decay: The penalty's factor (`jaxeff.compression.penalty`). A plain number isn't learnt.
        per: Part with its own alpha: the output "channel" of a weight, or the "tensor".

    Raises:
        TypeError, ValueError: A number is out of bounds, or one bit has a sign.

    References:
        Choi et al., "PACT: Parameterized Clipping Activation for Quantized Neural Networks",
        arXiv:1805.06085.
    """

    bits: Annotated[Bits, Width(1, MAX_BITS)] = static_number()
    alpha: Annotated[Float[Array, "..."] | float | None, Number(above=0)] = None
    signed: bool | Array | None = static_number(None)
    decay: Annotated[Float[Array, "..."] | float, Number(0)] = static_number(1e-4)
    per: Annotated[str, Choice("channel", "tensor")] = static("tensor")

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Returns the nearest values of the grid, with the gradients above."""
        started = self.start(lax.stop_gradient(x), tensor)
        value = at_least_float32(x)
        alpha = started._level(value, tensor)
        lower, upper = code_range(self.bits, started.signed, value.dtype)
        # The range is symmetric: one bit with a sign has the codes -1, 0 and 1.
        n, least = jnp.maximum(upper, 1), jnp.sign(lower)
        # The gradient to alpha is one exactly where values are clipped (Choi et al.,
        # section 3), so the clip is written by `where`: `jnp.clip` would split it at ties.
        inside = (value >= least * alpha) & (value < alpha)
        clipped = jnp.where(inside, value, jnp.where(value < alpha, least * alpha, alpha))
        fixed = lax.stop_gradient(clipped)
        # A product: compilers make one of a division by a constant, and move values by an ulp.
        step = lax.stop_gradient(alpha) * (1 / n)
        codes = lax.round(fixed / step, lax.RoundingMethod.TO_NEAREST_EVEN)
        return straight_through(clipped, codes * step).astype(x.dtype)

    def start(self, x: Float[Array, "*shape"], tensor: Tensor) -> "PACT":
        """Computes open clipping level and sign from an array."""
        signed, alpha = self.signed, self.alpha
        if signed is None:
            signed = infer_sign(x, tensor)
        if signed is True and isinstance(self.bits, int) and self.bits == 1:
            raise ValueError(
                f"PACT at {tensor.site}/{tensor.name} has negative values to quantize, and one bit "
                "for them: give it 2 or more, or signed=False."
            )
        if self.signed is not None and alpha is not None:
            return self
        if alpha is None:
            alpha = start_scale(x, tensor, self.per)
        return replace(self, signed=signed, alpha=alpha)

    def storage(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Counts codes, and a float for each clipping level."""
        return super().storage(shape, tensor) + 32 * tensor.count(shape, self.per)

    def penalty(self, x: Float[Array, "*shape"], tensor: Tensor) -> Any:
        """Returns the squares of the clipping levels."""
        started = self.start(lax.stop_gradient(x), tensor)
        alpha = jnp.asarray(started.alpha, wide_dtype(x))
        return jnp.asarray(self.decay, alpha.dtype) * jnp.sum(alpha * alpha)

    def _level(self, x: Array, tensor: Tensor) -> Array:
        alpha = tensor.fitted("PACT.alpha", self.alpha, x)
        # A level that training brought to zero or below stays a level.
        return keep_positive(alpha, 2.0**MAX_BITS)


@register_setting
@dataclass(frozen=True)
class Relaxed(BaseQuantizer):
    """Relaxed quantization: `Relaxed(4)`, in `quantized(..., keyed=True)`.

    Logistic noise of scale sigma takes x to the bin of the grid value g_i = step * i with
    probability

    ```text
    pi_i = sigmoid((g_i + step/2 - x) / sigma) - sigmoid((g_i - step/2 - x) / sigma)
    ```

    (Louizos et al., section 2.1), here among the `reach` neighbours on each side of the nearest
    value (their local grid), and made to sum to one. The value is sum_i z_i g_i with weights z =
    softmax((log pi + Gumbel noise) / temperature) (section 2.2): differentiable with respect to x,
    step and sigma. "hard" takes the one value with the largest weight, whose distribution is pi,
    with the gradients of the soft one (RQ ST of the paper); "deterministic" the nearest value, the
    most probable one, as at test time.

    Sharp edge: soft values lie between those of the grid; train softly, then evaluate with
    `dataclasses.replace(quantizer, draw="deterministic")`.

    Attributes:
        bits: Bit width, 1 to 16; an array may be traced. One signed bit has the codes -1 and 0.
        step: Distance of neighbouring values, positive. Open: the largest magnitude gets the
            largest code.
        sigma: Scale of the noise, positive; at least a thousandth of the step. Open: step / 3.
        signed: Whether codes reach below zero. Open: for weights they do, for activations if one is
            negative.
        temperature: Temperature of the softmax over neighbouring values; a plain number isn't
            learnt.
        draw: "soft", "hard" or "deterministic", which needs no key.
        reach: Neighbours on each side.
        per: Part with its own step: the output "channel" of a weight, or the "tensor".

    Raises:
        TypeError, ValueError: A number is out of bounds, or a choice is unknown.

    References:
        Louizos et al., "Relaxed Quantization for Discretized Neural Networks", arXiv:1810.01875.
    """

    bits: Annotated[Bits, Width(1, MAX_BITS)] = static_number()
    step: Annotated[Float[Array, "..."] | float | None, Number(above=0)] = None
    sigma: Annotated[Float[Array, "..."] | float | None, Number(above=0)] = None
    signed: bool | Array | None = static_number(None)
    temperature: Annotated[Float[Array, "..."] | float, Number(above=0)] = static_number(1.0)
    draw: Annotated[str, Choice("soft", "hard", "deterministic")] = static("soft")
    reach: Annotated[int, Count(1, 64)] = static(2)
    per: Annotated[str, Choice("channel", "tensor")] = static("tensor")

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Draws values of the grid, or takes the nearest."""
        started = self.start(lax.stop_gradient(x), tensor)
        value = at_least_float32(x)
        step = tensor.fitted("Relaxed.step", started.step, value)
        step = keep_positive(step)
        lower, upper = code_range(self.bits, started.signed, value.dtype)
        codes = value / step
        nearest = lax.round(jnp.clip(codes, lower, upper), lax.RoundingMethod.TO_NEAREST_EVEN)
        nearest = lax.stop_gradient(nearest)
        if self.draw == "deterministic":
            passed = straight_through(jnp.clip(codes, lower, upper), nearest)
            return (passed * step).astype(x.dtype)
        sigma = tensor.fitted("Relaxed.sigma", started.sigma, value)
        options, logits = _local(value, step, sigma, nearest, lower, upper, self.reach)
        key = tensor.random("Relaxed")
        logits = logits + jax.random.gumbel(key, logits.shape, logits.dtype)
        temperature = jnp.asarray(self.temperature, logits.dtype)
        # Gumbel-softmax (section 2.2): it cancels the constant that log pi lacks.
        weights = jax.nn.softmax(logits / temperature, axis=0)
        y = jnp.sum(weights * options, axis=0) * step
        if self.draw == "hard":
            # Gumbel-max: the largest is an exact draw from pi, at any temperature.
            best = jnp.argmax(logits, axis=0)[None]
            chosen = jnp.take_along_axis(options, best, axis=0)[0]
            y = straight_through(y, chosen * lax.stop_gradient(step))
        return y.astype(x.dtype)

    def deterministic(self) -> "Relaxed":
        """Returns the same with the nearest values."""
        return replace(self, draw="deterministic")

    def start(self, x: Float[Array, "*shape"], tensor: Tensor) -> "Relaxed":
        """Computes open step, noise and sign from an array."""
        signed, step, sigma = self.signed, self.step, self.sigma
        if signed is None:
            signed = infer_sign(x, tensor)
        if step is None:
            top = start_scale(x, tensor, self.per).astype(wide_dtype(x))
            _, upper = code_range(self.bits, signed, top.dtype)
            # A product: compilers make one of a division by a constant, and move values by an ulp.
            step = top * (1 / jnp.maximum(upper, 1))
        if sigma is None:
            sigma = jnp.asarray(step) * (1 / 3)
        return replace(self, signed=signed, step=step, sigma=sigma)

    def storage(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Counts codes, and a float for each step."""
        return super().storage(shape, tensor) + 32 * tensor.count(shape, self.per)


def _local(
    x: Array, step: Array, sigma: Array, nearest: Array, lower: Any, upper: Any, reach: int
) -> tuple[Array, Array]:
    """Lists the codes near each value and their log probabilities, but for a constant.

    A difference of sigmoids, sigmoid(b) - sigmoid(a), is sigmoid(b) sigmoid(-a) (1 - e^(a-b)), of
    which the last factor is the same for all codes: so nothing cancels.
    """
    offsets = jnp.arange(-reach, reach + 1, dtype=x.dtype).reshape(-1, *(1,) * x.ndim)
    options = nearest[None] + offsets
    step, sigma, lower, upper = (
        jnp.broadcast_to(number, x.shape)[None] for number in (step, sigma, lower, upper)
    )
    inside = (options >= lower) & (options <= upper)
    # Noise that training brought to zero would make logits infinite.
    sigma = jnp.maximum(sigma, 1e-3 * lax.stop_gradient(step))
    above = ((options + 0.5) * step - x[None]) / sigma
    below = ((options - 0.5) * step - x[None]) / sigma
    logits = jax.nn.log_sigmoid(above) + jax.nn.log_sigmoid(-below)
    return options, jnp.where(inside, logits, -1e30)


MAX_WIDTH = 24
"""A code of more bits is none of float32's whole numbers."""


@register_setting
@dataclass(frozen=True)
class LearnedWidth(LearnedBits):
    """A uniform grid whose width is learnt: `LearnedWidth()`.

    With a sign, the value is d round(x / d) for |x| <= q_max and sign(x) q_max beyond (Uhlich et
    al., eq. 1), and the width follows from q_max = (2^(bits-1) - 1) d (eq. 2):

    ```text
    bits = ceil(log2(q_max / d + 1) + 1)
    ```

    In this parametrization (U3 of the paper, its best) the derivatives with respect to (d, q_max)
    are ((Q(x) - x) / d, 0) inside the range and (0, sign(x)) outside (eq. 3c); that with respect to
    x is one inside and zero outside. The width has the derivatives of its formula, rounding passed
    through, so bits are learnt by any loss in which they appear: here `price` per bit (`penalty`),
    or a constraint on what all arrays take (`jaxeff.compression.memory`), as in the paper's section
    3:

    ```text
    loss + weight * max(0, memory(f, params, x, spec) - budget)^2
    ```

    Codes without a sign need one bit less.

    Sharp edges:
        A q_max between two steps counts as the nearer one, so that every value has a code.
        Steps are no powers of two as the paper has them for its hardware; `LearnedPowers` learns
        values that are.

    Attributes:
        initial: Width to start from, 2 to 16.
        step: Distance of neighbouring values, d; positive. Open: what the initial width gives.
        maximum: Largest value, q_max; positive. Open: the largest magnitude, one if that is zero.
        signed: Whether there are values below zero. Open: for weights there are, for activations if
            one is negative.
        price: Price of a bit in the penalty. A plain number isn't learnt.
        per: Part with its own numbers: the output "channel" of a weight, or the "tensor".

    Raises:
        TypeError, ValueError: A number is out of bounds.
    """

    initial: Annotated[int, Count(2, 16)] = static(8)
    step: Annotated[Float[Array, "..."] | float | None, Number(above=0)] = None
    maximum: Annotated[Float[Array, "..."] | float | None, Number(above=0)] = None
    signed: bool | Array | None = static_number(None)
    price: Annotated[Float[Array, "..."] | float, Number(0)] = static_number(0.0)
    per: Annotated[str, Choice("channel", "tensor")] = static("tensor")

    beside: ClassVar[int] = 64  # step and maximum, as floats

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Returns the nearest values of the grid, with the gradients above."""
        started = self.start(lax.stop_gradient(x), tensor)
        value = at_least_float32(x)
        step = tensor.fitted("LearnedWidth.step", started.step, value)
        maximum = tensor.fitted("LearnedWidth.maximum", started.maximum, value)
        step, maximum = _sound(step, maximum)
        least = -maximum if started.signed is True else jnp.zeros_like(maximum)
        if not isinstance(started.signed, bool):
            least = jnp.where(jnp.asarray(started.signed), -maximum, 0)
        low, high = lax.stop_gradient(least), lax.stop_gradient(maximum)
        codes = lax.round(
            jnp.clip(lax.stop_gradient(value), low, high) / lax.stop_gradient(step),
            lax.RoundingMethod.TO_NEAREST_EVEN,
        )
        # Inside, d round(x / d) has the derivative round(x / d) - x / d with respect to d.
        slope = codes - lax.stop_gradient(value / step)
        inside = value + slope * (step - lax.stop_gradient(step))
        smooth = jnp.where(value > high, maximum, jnp.where(value < low, least, inside))
        return straight_through(smooth, codes * lax.stop_gradient(step)).astype(x.dtype)

    def start(self, x: Float[Array, "*shape"], tensor: Tensor) -> "LearnedWidth":
        """Computes open step, maximum and sign from an array."""
        signed, step, maximum = self.signed, self.step, self.maximum
        if signed is not None and step is not None and maximum is not None:
            return self
        if signed is None:
            signed = infer_sign(x, tensor)
        if maximum is None:
            maximum = start_scale(x, tensor, self.per)
        if step is None:
            # Eq. 2 solved for d: q_max / (2^(bits-1) - 1), and a bit more without a sign.
            with_sign, without = (1 / (2.0 ** (self.initial - s) - 1) for s in (1, 0))
            share: Any = with_sign if signed is True else without
            if not isinstance(signed, bool):
                share = jnp.where(signed, with_sign, without)
            ends = jnp.asarray(maximum)
            step = ends * jnp.asarray(share, ends.dtype)
        return replace(self, signed=signed, step=step, maximum=maximum)

    @property
    def width(self) -> Any:
        """Bits of a code, whole numbers with a gradient; before `init` those to start from."""
        if self.step is None or self.maximum is None:
            return self.initial
        sign: Any = 1.0 if self.signed is None else self.signed
        step, maximum = _sound(jnp.asarray(self.step), jnp.asarray(self.maximum))
        count = lax.round(lax.stop_gradient(maximum / step), lax.RoundingMethod.TO_NEAREST_EVEN)
        # 2^e > count, exactly.
        exponent = jnp.frexp(count)[1].astype(step.dtype)
        smooth = jnp.log2(maximum / step + 1)
        return straight_through(smooth, exponent) + jnp.asarray(sign, step.dtype)


def _sound(step: Array, maximum: Array) -> tuple[Array, Array]:
    """Repairs a step and a maximum that training brought near zero, or past each other."""
    # At least one step, or zero would be the only value.
    step, maximum = keep_ordered(step, maximum)
    # Beyond this a code is no whole number of the dtype.
    return jnp.where(maximum > step * 2.0**MAX_WIDTH, maximum * 2.0**-MAX_WIDTH, step), maximum
