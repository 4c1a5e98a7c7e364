"""Steps whose codes are drawn while they are learnt, and steps that learn their width."""

from dataclasses import replace
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxeff import core
from jaxeff.compression import numerics
from jaxeff.compression.numerics import BaseQuantizer, Tensor


@core.register_setting
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

    bits: Annotated[numerics.Bits, core.Width(1, numerics.MAX_BITS)] = core.static_number()
    step: Annotated[Float[Array, "..."] | float | None, core.Number(above=0)] = None
    sigma: Annotated[Float[Array, "..."] | float | None, core.Number(above=0)] = None
    signed: bool | Array | None = core.static_number(None)
    temperature: Annotated[Float[Array, "..."] | float, core.Number(above=0)] = core.static_number(
        1.0
    )
    draw: Annotated[str, core.Choice("soft", "hard", "deterministic")] = core.static("soft")
    reach: Annotated[int, core.Count(1, 64)] = core.static(2)
    per: Annotated[str, core.Choice("channel", "tensor")] = core.static("tensor")

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Draws values of the grid, or takes the nearest."""
        started = self.start(lax.stop_gradient(x), tensor)
        value = numerics.at_least_float32(x)
        step = tensor.fitted("Relaxed.step", started.step, value)
        step = numerics.keep_positive(step)
        lower, upper = numerics.code_range(self.bits, started.signed, value.dtype)
        codes = value / step
        nearest = lax.round(jnp.clip(codes, lower, upper), lax.RoundingMethod.TO_NEAREST_EVEN)
        nearest = lax.stop_gradient(nearest)
        if self.draw == "deterministic":
            passed = numerics.straight_through(jnp.clip(codes, lower, upper), nearest)
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
            y = numerics.straight_through(y, chosen * lax.stop_gradient(step))
        return y.astype(x.dtype)

    def deterministic(self) -> "Relaxed":
        """Returns the same with the nearest values."""
        return replace(self, draw="deterministic")

    def start(self, x: Float[Array, "*shape"], tensor: Tensor) -> "Relaxed":
        """Computes open step, noise and sign from an array."""
        signed, step, sigma = self.signed, self.step, self.sigma
        if signed is None:
            signed = numerics.infer_sign(x, tensor)
        if step is None:
            top = numerics.start_scale(x, tensor, self.per).astype(numerics.wide_dtype(x))
            _, upper = numerics.code_range(self.bits, signed, top.dtype)
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


@core.register_setting
class LearnedWidth(numerics.LearnedBits):
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

    initial: Annotated[int, core.Count(2, 16)] = core.static(8)
    step: Annotated[Float[Array, "..."] | float | None, core.Number(above=0)] = None
    maximum: Annotated[Float[Array, "..."] | float | None, core.Number(above=0)] = None
    signed: bool | Array | None = core.static_number(None)
    price: Annotated[Float[Array, "..."] | float, core.Number(0)] = core.static_number(0.0)
    per: Annotated[str, core.Choice("channel", "tensor")] = core.static("tensor")

    beside: ClassVar[int] = 64  # step and maximum, as floats

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Returns the nearest values of the grid, with the gradients above."""
        started = self.start(lax.stop_gradient(x), tensor)
        value = numerics.at_least_float32(x)
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
        return numerics.straight_through(smooth, codes * lax.stop_gradient(step)).astype(x.dtype)

    def start(self, x: Float[Array, "*shape"], tensor: Tensor) -> "LearnedWidth":
        """Computes open step, maximum and sign from an array."""
        signed, step, maximum = self.signed, self.step, self.maximum
        if signed is not None and step is not None and maximum is not None:
            return self
        if signed is None:
            signed = numerics.infer_sign(x, tensor)
        if maximum is None:
            maximum = numerics.start_scale(x, tensor, self.per)
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
        return numerics.straight_through(smooth, exponent) + jnp.asarray(sign, step.dtype)


def _sound(step: Array, maximum: Array) -> tuple[Array, Array]:
    """Repairs a step and a maximum that training brought near zero, or past each other."""
    # At least one step, or zero would be the only value.
    step, maximum = numerics.keep_ordered(step, maximum)
    # Beyond this a code is no whole number of the dtype.
    return jnp.where(maximum > step * 2.0**MAX_WIDTH, maximum * 2.0**-MAX_WIDTH, step), maximum
