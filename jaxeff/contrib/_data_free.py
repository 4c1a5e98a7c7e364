"""Grids that need neither data nor training: `HalfWave`, `HalfQuadratic`."""

import functools
import math
from dataclasses import replace
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # its `special` is loaded when first used, a fifth of a second after import
from jaxtyping import Array, Float

from jaxeff import core
from jaxeff.compression import numerics


@core.register_setting
class HalfWave(numerics.BaseQuantizer):
    """Half-wave Gaussian quantization of activations: `HalfWave(2)`.

    With u = x / scale the value is scale * Q(u): zero for u <= 0, else the nearest of 2^b - 1
    positive levels q_1 < ... < q_m (Cai et al., eq. 12). They minimise E (Q(u) - u)^2 for u > 0
    under a standard Gaussian, freely or as multiples of one step (eq. 13). Free levels are those
    that Lloyd's iteration converges to: each is the mean of what it stands for, q_i = E[u | t_i < u
    <= t_(i+1)] with thresholds t in the middle between levels and t_1 = 0; this equation is solved
    by Newton's method.

    Q has no gradient; it gets that of

    - "vanilla": max(u, 0) (section 4.1);
    - "clipped": the same up to q_m, zero beyond (eq. 16);
    - "log": q_m + log(u - (q_m - 1)) beyond q_m, whose derivative is 1 / (u - q_m + 1) (eq. 17).

    Sharp edges:
        It includes the rectifier: negative values become zero.
        The smallest positive value becomes q_1, not zero, so that zeros are those of the rectifier.
        Normalised activations have scale 1. The open scale is that of x = max(Gaussian, 0), whose
        mean square is half the variance: sqrt(2 mean(max(x, 0)^2)); an array without positive
        values has scale zero, and only zeros.

    Attributes:
        bits: Bit width, 1 to 8.
        scale: Standard deviation of the Gaussian. Open: by the mean square of the positive part.
        uniform: Whether levels are multiples of one step.
        gradient: "vanilla", "clipped" or "log".

    Raises:
        TypeError, ValueError: A number is out of bounds, or the gradient unknown.

    References:
        Cai et al., "Deep Learning with Low Precision by Half-wave Gaussian Quantization",
        arXiv:1702.00953.
    """

    bits: Annotated[int, core.Count(1, 8)] = core.static()
    scale: Annotated[Float[Array, "..."] | float | None, core.Number(0)] = None
    uniform: bool = core.static(True)
    gradient: Annotated[str, core.Choice("vanilla", "clipped", "log")] = core.static("clipped")

    def quantize(
        self, x: Float[Array, "*shape"], tensor: numerics.Tensor
    ) -> Float[Array, "*shape"]:
        """Returns the nearest levels, with the gradients above.

        Raises:
            ValueError: It is a weight.
        """
        started = self.start(jax.lax.stop_gradient(x), tensor)
        scale = tensor.fitted("HalfWave.scale", started.scale, x)
        unit = x / numerics.safe_scale(scale)
        levels = half_wave_levels(self.bits, self.uniform)
        last = float(levels[-1])
        table = jnp.asarray(levels, x.dtype)
        value = jnp.where(
            unit > 0,
            numerics.lookup_levels(table, numerics.nearest(unit, table)),
            jnp.zeros_like(unit),
        )
        # NaN has no level: it must not pass for a zero.
        value = jnp.where(jnp.isnan(unit), unit, value)
        passed = jnp.where((unit > 0) & (unit <= last), unit, 0)
        if self.gradient != "clipped":
            beyond = unit > last
            outer = jnp.where(beyond, unit, last)  # a logarithm of what isn't beyond may be NaN
            tail = jnp.log(outer - (last - 1)) if self.gradient == "log" else outer
            passed = jnp.where(beyond, tail, passed)
        return numerics.straight_through(passed, value) * scale

    def start(self, x: Float[Array, "*shape"], tensor: numerics.Tensor) -> "HalfWave":
        """Computes an open scale from an activation."""
        if tensor.role == "weight":
            raise ValueError(
                f"HalfWave has no negative values, and {tensor.site}/{tensor.name} is a weight: "
                "write LayerQuantization(weights=..., activations=HalfWave(2))."
            )
        if self.scale is not None:
            return self
        return replace(
            self, scale=jnp.sqrt(2 * jnp.mean(jnp.maximum(core.widened(x), 0) ** 2)).astype(x.dtype)
        )

    def storage(self, shape: tuple[int, ...], tensor: numerics.Tensor) -> int:
        """Counts codes and one float, the scale; levels are constants of the method."""
        return super().storage(shape, tensor) + 32


@core.validate(bits=core.static_integer())
@functools.cache
def half_wave_levels(bits: int, uniform: bool = True) -> np.ndarray:
    """Computes the positive levels of least mean squared error for a rectified standard Gaussian.

    ```python
    from jaxeff.contrib import half_wave_levels

    assert len(half_wave_levels(2)) == 3                    # beside zero
    ```

    Args:
        bits: 1 to 8; there are 2^bits - 1 levels.
        uniform: Whether they are multiples of one step.

    Returns:
        The levels, rising, in float64; not to be written to.
    """
    from scipy.optimize import minimize_scalar  # takes longer to load than all of JAX's NumPy

    count = 2**bits - 1
    numbers = np.arange(1.0, count + 1)
    if uniform:
        # Eq. 13: one number to search for, which these bounds hold for all widths.
        step = minimize_scalar(
            lambda step: half_wave_error(step * numbers),
            bounds=(0.5 / count, 6.0 / count),
            method="bounded",
            options={"xatol": 1e-12},
        ).x
        levels = step * numbers
    else:
        # The density of levels of a fine quantizer goes with the cube root of that of the values:
        # a Gaussian of thrice the variance. From there Newton's method takes a few steps.
        levels = np.sqrt(3.0) * scipy.special.ndtri((1 + (numbers - 0.5) / count) / 2)
        for _ in range(50):
            # Newton on means(q) - q = 0. Thresholds are middles of levels, so a mean depends on
            # its level and both neighbours: the derivative is tridiagonal.
            means, lower, upper = _centroids(levels)
            slopes = np.diag((lower + upper) / 2 - 1)
            slopes += np.diag(lower[1:] / 2, -1) + np.diag(upper[:-1] / 2, 1)
            change = np.linalg.solve(slopes, levels - means)
            levels = levels + change
            if np.abs(change).max() < 1e-13:
                break
    levels.setflags(write=False)
    return levels


def half_wave_error(levels: np.ndarray) -> float:
    """Computes E (Q(u) - u)^2 over positive u of a standard Gaussian, for rising levels."""
    t = np.concatenate([[0.0], (levels[1:] + levels[:-1]) / 2, [np.inf]])
    mass = scipy.special.ndtr(-t[:-1]) - scipy.special.ndtr(-t[1:])
    density = _density(t)
    # Parts of a normal: integral of u phi = phi(a) - phi(b), of u^2 phi = mass + a phi(a) -
    # b phi(b), where t phi(t) vanishes at infinity.
    edges = np.where(np.isfinite(t), t, 0) * density
    first = density[:-1] - density[1:]
    second = mass + edges[:-1] - edges[1:]
    return float(2 * np.sum(second - 2 * levels * first + levels**2 * mass))


def _centroids(levels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Computes means between thresholds, with derivatives by the thresholds below and above."""
    t = np.concatenate([[0.0], (levels[1:] + levels[:-1]) / 2, [np.inf]])
    mass = scipy.special.ndtr(-t[:-1]) - scipy.special.ndtr(-t[1:])
    density = _density(t)
    means = (density[:-1] - density[1:]) / mass
    # By Leibniz: d mean / da = phi(a) (mean - a) / mass, d mean / db = phi(b) (b - mean) / mass.
    lower = density[:-1] * (means - t[:-1]) / mass
    upper = density[1:] * (np.where(np.isfinite(t[1:]), t[1:], 0) - means) / mass
    lower[0] = upper[-1] = 0.0  # these ends stay
    return means, lower, upper


def _density(x: np.ndarray) -> np.ndarray:
    return np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)


_BITS = {"float32": 32, "float16": 16}
_LEAST = {"float32": 2.0**-126, "float16": 2.0**-24}
_MOST_ZERO = 2.0**12
"""The largest zero of an open grid, which float16 still holds: values far from zero, close
together, get wider steps."""


@core.register_setting
class HalfQuadratic(numerics.BaseQuantizer):
    """Half-quadratic quantization (HQQ): `Grouped(HalfQuadratic(4), 64)`.

    The step is that of the range. The zero z, no whole number, minimises the sum of |e|^p over the
    errors e = w - s (q - z), p < 1, which a few large errors change little. With a second array m
    for the errors, two problems that have closed forms take turns (Badri and Shaji, sub-problems 1
    and 2):

        m <- sign(e) max(|e| - |e|^(p - 1) / beta, 0)
        z <- mean(q - (w - m) / s),        beta <- growth * beta

    ```python
    from jaxeff.compression import Grouped, LayerQuantization, init, quantized
    from jaxeff.contrib import HalfQuadratic
    from jaxeff.nn import small_classifier

    f, params, (x, y) = small_classifier()
    four = LayerQuantization(Grouped(HalfQuadratic(4), 4))
    spec = init(f, params, x, {"*:linear": four, "conv1": None})     # the solver runs once
    logits = quantized(f, spec)(params, x)
    ```

    Sharp edges:
        Errors count in steps, so that `beta` doesn't depend on how large weights are.
        Zero is none of the values, so that padded or pruned weights don't stay zero.

    Attributes:
        bits: Bit width, 1 to 16; an array may be traced.
        step: Distance of neighbouring values, positive. Open: that of the array's range.
        zero: The code, no whole number, of the value zero. Open: by the solver.
        per: Part with its own step and zero: the output "channel" of a weight, or the "tensor".
        power: The p of the error's norm.
        beta: How closely the second array follows the errors at first.
        growth: Factor of beta from turn to turn.
        turns: Turns of the solver.
        numbers: Numbers that steps and zeros are stored as: "float32" or "float16".

    Raises:
        TypeError, ValueError: A number is out of bounds.

    References:
        Badri and Shaji, "Half-Quadratic Quantization of Large Machine Learning Models", 2023,
        https://mobiusml.github.io/hqq_blog, sub-problems 1 and 2 of the solver.
    """

    bits: Annotated[numerics.Bits, core.Width(1, numerics.MAX_BITS)] = core.static_number()
    step: Annotated[Float[Array, "..."] | float | None, core.Number(above=0)] = None
    zero: Float[Array, "..."] | float | None = None
    per: Annotated[str, core.Choice("channel", "tensor")] = core.static("channel")
    power: Annotated[float, core.Number(above=0, high=1)] = core.static(0.7)
    beta: Annotated[float, core.Number(above=0)] = core.static(10.0)
    growth: Annotated[float, core.Number(low=1)] = core.static(1.01)
    turns: Annotated[int, core.Count(0)] = core.static(20)
    numbers: Annotated[str, core.Choice(*_BITS)] = core.static("float32")

    def quantize(
        self, x: Float[Array, "*shape"], tensor: numerics.Tensor
    ) -> Float[Array, "*shape"]:
        """Returns the nearest values, with straight-through gradients where none is clipped."""
        started = self.start(jax.lax.stop_gradient(x), tensor)
        value = numerics.at_least_float32(x)
        step = numerics.keep_positive(tensor.fitted("HalfQuadratic.step", started.step, value))
        zero = tensor.fitted("HalfQuadratic.zero", started.zero, value)
        # Clipped before rounding: values outside of the range have no gradient.
        codes = numerics.round_through(jnp.clip(value / step + zero, 0, self._top(value.dtype)))
        return ((codes - zero) * step).astype(x.dtype)

    def start(self, x: Float[Array, "*shape"], tensor: numerics.Tensor) -> "HalfQuadratic":
        """Computes an open step by the range, and an open zero by the solver."""
        if self.step is not None and self.zero is not None:
            return self
        value = numerics.at_least_float32(x)
        axes, shape = numerics.kept_axes(value, tensor.axes(self.per))
        low, high = (end(value, axes).reshape(shape) for end in (jnp.min, jnp.max))
        step: Any = self.step
        if step is None:
            widest = jnp.maximum(jnp.abs(low), jnp.abs(high))
            step = jnp.maximum((high - low) / self._top(value.dtype), widest / _MOST_ZERO)
            # An array of zeros has no range, and any step is right for it.
            # One that would vanish in float16 is the smallest that doesn't.
            least = _LEAST[self.numbers]
            step = self._stored(jnp.where(step > 0, jnp.maximum(step, least), jnp.ones_like(step)))
        step = numerics.keep_positive(jnp.asarray(step, value.dtype))
        zero = self.zero
        if zero is None:
            zero = self._solved(value, step, -low / step, axes, shape)
        return replace(self, step=step, zero=zero)

    def storage(self, shape: tuple[int, ...], tensor: numerics.Tensor) -> Any:
        """Counts the bits of the codes, steps and zeros."""
        numbers = 2 * _BITS[self.numbers] * numerics.ranges(shape, tensor.axes(self.per))
        return math.prod(shape) * self.bits + numbers

    def _solved(
        self, x: Array, step: Array, zero: Array, axes: tuple[int, ...], shape: tuple[int, ...]
    ) -> Array:
        """Runs the solver, and returns the best zero that it came by."""

        def errors(zero: Array) -> tuple[Array, Array]:
            codes = jnp.clip(jnp.round(x / step + zero), 0, self._top(x.dtype))
            return codes, x / step - (codes - zero)

        def total(e: Array) -> Array:
            return jnp.sum(jnp.abs(e) ** self.power, axes).reshape(shape)

        def turn(state: tuple[Array, Array, Array], i: Array) -> tuple[Any, None]:
            best, lowest, zero = state
            codes, e = errors(zero)
            # It grows, so that m comes nearer to the errors.
            beta = self.beta * self.growth**i
            # |e|^(p - 1) is infinite at zero, where nothing is left of e anyway.
            size = jnp.maximum(jnp.abs(e), jnp.finfo(e.dtype).tiny)
            m = jnp.sign(e) * jnp.maximum(size - size ** (self.power - 1) / beta, 0)
            zero = self._stored(jnp.mean(codes - x / step + m, axes).reshape(shape))
            # Not every turn is better: codes change, which the second problem takes as fixed.
            cost = total(errors(zero)[1])
            better = cost < lowest
            return (jnp.where(better, zero, best), jnp.where(better, cost, lowest), zero), None

        zero = self._stored(zero)
        first = zero, total(errors(zero)[1]), zero
        turns = jnp.arange(self.turns, dtype=x.dtype)
        (best, _, _), _ = jax.lax.scan(turn, first, turns)
        return best

    def _stored(self, number: Array) -> Array:
        """Rounds numbers to what they are stored as; the nearest where that has no such ones."""
        kind = jnp.finfo(self.numbers)
        number = jnp.clip(number, float(kind.min), float(kind.max))
        return number.astype(self.numbers).astype(number.dtype)

    def _top(self, dtype: Any) -> Any:
        return numerics.power_of_two(self.bits, dtype) - 1
