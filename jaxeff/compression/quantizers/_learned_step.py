"""Uniform grids that training fits: `LSQ`, `PACT`, and `DoReFa`, with coarse gradients."""

import math
from dataclasses import replace
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff import core
from jaxeff.compression import numerics
from jaxeff.compression.numerics import BaseQuantizer, Tensor

_STARTS = 64


@core.register_setting
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

    bits: Annotated[numerics.Bits, core.Width(1, numerics.MAX_BITS)] = core.static_number()
    step: Annotated[Float[Array, "..."] | float | None, core.Number(above=0)] = None
    signed: bool | Array | None = core.static_number(None)
    offset: Float[Array, "..."] | float | None = None
    asymmetric: bool = core.static(False)
    per: Annotated[str, core.Choice("channel", "tensor")] = core.static("tensor")
    initial: Annotated[str, core.Choice("mean", "error")] = core.static("mean")
    scaled: bool = core.static(True)
    narrow: bool = core.static(False)

    def __post_init__(self) -> None:
        super().__post_init__()
        # A traced width can't be told; searches over widths sweep such ones.
        if self.narrow and core.is_concrete(self.bits) and np.any(np.asarray(self.bits) == 1):
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
        step = numerics.keep_positive(step)
        codes = numerics.round_through(jnp.clip((x - offset) / step, lower, upper))
        return codes * step + offset

    def start(self, x: Float[Array, "*shape"], tensor: Tensor) -> "LSQ":
        """Computes open step, sign and offset from an array."""
        if self.step is not None and self.signed is not None:
            return self
        axes, shape = numerics.kept_axes(x, tensor.axes(self.per))
        signed = self.signed
        if signed is None:
            # With an offset, codes of activations start at zero, whatever the values are.
            unsigned = self.asymmetric and tensor.role == "activation"
            signed = False if unsigned else numerics.infer_sign(x, tensor)
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
        step = numerics.safe_scale(jnp.asarray(step)).astype(x.dtype)
        return replace(known, step=step, offset=offset)

    def storage(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Counts the bits of the codes, and of steps and offsets in float32."""
        each = 64 if self.asymmetric else 32
        return math.prod(shape) * self.bits + numerics.ranges(shape, tensor.axes(self.per)) * each

    def ends(self, dtype: Any, role: str) -> tuple[Array, Array]:
        """Returns the lowest and the highest code, once the sign is known."""
        lower, upper = numerics.code_range(self.bits, self.signed, dtype)
        return (jnp.maximum(lower, -upper) if self.narrow and role == "weight" else lower), upper

    def uniform_grid(
        self, x: Float[Array, "*shape"] | None, tensor: Tensor
    ) -> numerics.Grid | None:
        """Returns the grid, once step and sign are known."""
        if self.step is None or self.signed is None:
            return None
        step = numerics.keep_positive(jnp.asarray(self.step, jnp.float32))
        ends = self.ends(step.dtype, tensor.role)
        offset = jnp.asarray(0.0 if self.offset is None else self.offset, step.dtype)
        zero = offset / step
        # Steps times a whole number in float32 divide to a neighbour of it.
        zero = jnp.where(jnp.round(zero) * step == offset, jnp.round(zero), zero)
        return numerics.Grid(step, *(jnp.broadcast_to(n, step.shape) for n in (zero, *ends)))


def _least_error(
    x: Array, axes: tuple[int, ...], shape: tuple[int, ...], lower: Any, upper: Any
) -> Array:
    """Searches for the step of least squared error, among `_STARTS` even parts of the widest."""
    # The step at which nothing is clipped; smaller ones clip more and round finer.
    below = jnp.where(lower < 0, x / jnp.minimum(lower, -1), jnp.zeros_like(x))
    above = jnp.maximum(x, 0) / jnp.maximum(upper, 1)
    widest = jnp.max(jnp.maximum(below, above), axes).reshape(shape)

    def error(factor: Array) -> Array:
        step = numerics.keep_positive(widest * factor)
        value = jnp.clip(jnp.round(x / step), lower, upper) * step
        return jnp.sum(jnp.square(core.widened(x - value)), axes).reshape(shape)

    factors = jnp.arange(1, _STARTS + 1, dtype=x.dtype) / _STARTS
    errors = jax.lax.map(error, factors)
    return widest * factors[jnp.argmin(errors, axis=0)]


def _scaled(value: Array, scale: Array) -> Array:
    """Multiplies the gradient of a value."""
    fixed = jax.lax.stop_gradient(value)
    return fixed + scale * (value - fixed)


@core.register_setting
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

    bits: Annotated[numerics.Bits, core.Width(1, numerics.MAX_BITS)] = core.static_number()
    alpha: Annotated[Float[Array, "..."] | float | None, core.Number(above=0)] = None
    signed: bool | Array | None = core.static_number(None)
    decay: Annotated[Float[Array, "..."] | float, core.Number(0)] = core.static_number(1e-4)
    per: Annotated[str, core.Choice("channel", "tensor")] = core.static("tensor")

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Returns the nearest values of the grid, with the gradients above."""
        started = self.start(lax.stop_gradient(x), tensor)
        value = numerics.at_least_float32(x)
        alpha = started._level(value, tensor)
        lower, upper = numerics.code_range(self.bits, started.signed, value.dtype)
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
        return numerics.straight_through(clipped, codes * step).astype(x.dtype)

    def start(self, x: Float[Array, "*shape"], tensor: Tensor) -> "PACT":
        """Computes open clipping level and sign from an array."""
        signed, alpha = self.signed, self.alpha
        if signed is None:
            signed = numerics.infer_sign(x, tensor)
        if signed is True and isinstance(self.bits, int) and self.bits == 1:
            raise ValueError(
                f"PACT at {tensor.site}/{tensor.name} has negative values to quantize, and one bit "
                "for them: give it 2 or more, or signed=False."
            )
        if self.signed is not None and alpha is not None:
            return self
        if alpha is None:
            alpha = numerics.start_scale(x, tensor, self.per)
        return replace(self, signed=signed, alpha=alpha)

    def uniform_grid(
        self, x: Float[Array, "*shape"] | None, tensor: Tensor
    ) -> numerics.Grid | None:
        """Returns the grid, once clipping level and sign are known."""
        if self.alpha is None or self.signed is None:
            return None
        alpha = numerics.keep_positive(jnp.asarray(self.alpha, jnp.float32), 2.0**numerics.MAX_BITS)
        upper = jnp.maximum(numerics.code_range(self.bits, self.signed, alpha.dtype)[1], 1)
        lower = -upper * jnp.asarray(self.signed, alpha.dtype)
        numbers = (jnp.zeros((), alpha.dtype), lower, upper)
        return numerics.Grid(
            alpha * (1 / upper), *(jnp.broadcast_to(n, alpha.shape) for n in numbers)
        )

    def storage(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Counts codes, and a float for each clipping level."""
        return super().storage(shape, tensor) + 32 * tensor.count(shape, self.per)

    def penalty(self, x: Float[Array, "*shape"], tensor: Tensor) -> Any:
        """Returns the squares of the clipping levels."""
        started = self.start(lax.stop_gradient(x), tensor)
        alpha = jnp.asarray(started.alpha, numerics.wide_dtype(x))
        return jnp.asarray(self.decay, alpha.dtype) * jnp.sum(alpha * alpha)

    def _level(self, x: Array, tensor: Tensor) -> Array:
        alpha = tensor.fitted("PACT.alpha", self.alpha, x)
        # A level that training brought to zero or below stays a level.
        return numerics.keep_positive(alpha, 2.0**numerics.MAX_BITS)


@core.register_setting
class DoReFa(BaseQuantizer):
    """DoReFa-Net: `DoReFa(1)` for weights, `DoReFa(2, gradient_bits=6)` for activations.

    With q_k(r) = round((2^k - 1) r) / (2^k - 1), through whose rounding gradients pass (Zhou et
    al., eq. 5), k being `bits`:

    - weights are 2 q_k(tanh(w) / (2 max |tanh(w)|) + 1/2) - 1, with the gradient of that formula
      (eq. 9); for one bit they are sign(w) times the mean magnitude, with a gradient of one (eq.
      7);
    - activations are q_k(clip(x, 0, 1)) (eq. 11), with a gradient of one inside and zero outside;
    - where `gradient_bits` g are given, the gradient dr with respect to an activation's quantized
      value becomes 2 m (q_g(dr / (2 m) + 1/2 + n) - 1/2) with m = max |dr| over an example and n
      uniform in +-1/2 / (2^g - 1) (eq. 12): rounded at random, it is right on average.

    Sharp edges:
        Weights end in [-1, 1] whatever they were, so a trained network needs training or a
        normalization after each layer. There is no zero among them; zeros become 1 / (2^k - 1).
        Gradients are quantized on the way to the layers before. For the gradients with which a
        layer's own weights are updated, quantize what it returns: `LayerQuantization(...,
        at="output")`.
        The maximum of a gradient is that over all but the first axis, the batch.

    Attributes:
        bits: Bit width, 1 to 16; an array may be traced.
        gradient_bits: Bit width of an activation's gradient, likewise; None leaves gradients alone.
            Needs `quantized(..., keyed=True)`.

    Raises:
        TypeError, ValueError: A width is out of bounds or not whole.

    References:
        Zhou et al., "DoReFa-Net: Training Low Bitwidth Convolutional Neural Networks with Low
        Bitwidth Gradients", arXiv:1606.06160.
    """

    bits: Annotated[numerics.Bits, core.Width(1, numerics.MAX_BITS)] = core.static_number()
    gradient_bits: Annotated[numerics.Bits | None, core.Width(1, numerics.MAX_BITS)] = (
        core.static_number(None)
    )

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Returns the values above, of a weight or of an activation."""
        value = numerics.at_least_float32(x)
        if tensor.role == "weight":
            return self._weights(value).astype(x.dtype)
        # Written by `where`: `jnp.clip` would halve the gradient at its ends.
        inside = (value >= 0) & (value <= 1)
        clipped = jnp.where(inside, value, lax.stop_gradient(jnp.clip(value, 0, 1)))
        y = _rounded(clipped, self.bits).astype(x.dtype)
        if self.gradient_bits is None:
            return y
        steps = numerics.power_of_two(self.gradient_bits, value.dtype) - 1
        return _coarse_gradient(y, steps, tensor.random("DoReFa(gradient_bits=...)"))

    def deterministic(self) -> "DoReFa":
        """Returns the same with gradients left alone."""
        return replace(self, gradient_bits=None)

    def storage(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Counts codes, and for weights of one bit a float."""
        codes = super().storage(shape, tensor)
        if tensor.role == "activation":
            return codes
        if isinstance(self.bits, int):
            return codes + (32 if self.bits == 1 else 0)
        return codes + jnp.where(jnp.asarray(self.bits) == 1, 32, 0).astype(codes.dtype)

    def _weights(self, w: Array) -> Array:
        if isinstance(self.bits, int):
            return _binary(w) if self.bits == 1 else _squashed(w, self.bits)
        single = jnp.asarray(self.bits) == 1
        return jnp.where(single, _binary(w), _squashed(w, self.bits))


def _binary(w: Array) -> Array:
    mean = lax.stop_gradient(jnp.mean(jnp.abs(w)))
    return numerics.straight_through(w, jnp.where(w < 0, -mean, mean))


def _squashed(w: Array, bits: numerics.Bits) -> Array:
    # tanh limits the range before quantizing, so that single large weights don't set the scale.
    squashed = jnp.tanh(w)
    unit = squashed / numerics.safe_scale(2 * numerics.largest_magnitude(squashed))
    return 2 * _rounded(unit + 0.5, bits) - 1


def _rounded(r: Array, bits: numerics.Bits) -> Array:
    """Computes q_k by a product: compilers make one of a division by a constant anyway."""
    steps = numerics.power_of_two(bits, r.dtype) - 1
    codes = lax.round(lax.stop_gradient(r) * steps, lax.RoundingMethod.TO_NEAREST_EVEN)
    return numerics.straight_through(r, codes * (1 / steps))


@jax.custom_vjp
def _coarse_gradient(x: Array, steps: Array, key: PRNGKeyArray) -> Array:
    """Passes values, and rounds their gradient at random to a number of steps."""
    return x


def _forward(x: Array, steps: Array, key: PRNGKeyArray) -> tuple[Array, tuple[Array, Any]]:
    return x, (steps, key)


def _backward(kept: tuple[Array, Any], gradient: Array) -> tuple[Array, None, None]:
    steps, key = kept
    dr = gradient.astype(numerics.wide_dtype(gradient))
    # A scale per example: gradients differ by orders of magnitude between examples. Uniform
    # noise before rounding makes the coarse gradient unbiased.
    top = numerics.largest_magnitude(dr, (0,) if dr.ndim > 1 else ())
    scale = 2 * numerics.safe_scale(top)
    noise = jax.random.uniform(key, dr.shape, dr.dtype, -0.5, 0.5)
    codes = lax.round((dr / scale + 0.5) * steps + noise, lax.RoundingMethod.TO_NEAREST_EVEN)
    rounded = scale * (jnp.clip(codes, 0, steps) * (1 / steps) - 0.5)
    rounded = jnp.where(top > 0, rounded, jnp.zeros_like(rounded))
    return rounded.astype(gradient.dtype), None, None


_coarse_gradient.defvjp(_forward, _backward)
