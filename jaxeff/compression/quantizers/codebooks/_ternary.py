"""`Ternary` and `TrainedTernary`: three values, {-a, 0, a} or {-n, 0, p}.

Values within a threshold become zero. Ternary weight networks take the threshold .7 mean|w| and the
mean magnitude beyond it as the value a (Li et al., eq. 5 and 6); gradients pass straight through.

Trained ternary quantization takes the threshold .05 max|w| (Zhu et al., eq. 9) and learns p and n:
the gradient of p is the sum over the values that became p (eq. 7), that of n the same with a minus,
since the value is -n. The gradient of w is multiplied with p above the threshold, with n below the
other, with one between (eq. 8).

Sharp edges:
    Thresholds follow weights on every call; of activations `init` fixes them, so that a prediction
    doesn't depend on its batch. Thresholds have no gradient.
    Equation 7 has no minus for n; with one the gradient is that of equation 6.
    An array of zeros stays one; all other constants are kept up to the rounding of their mean.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxeff.compression.numerics import BaseQuantizer, Tensor, kept_axes, magnitude, safe_scale
from jaxeff.core import Choice, NonNegative, Number, register_setting, static

Open = Annotated[Float[Array, "..."] | float | None, Number(0)]


@dataclass(frozen=True)
class Thresholded(BaseQuantizer):
    """Three values, of which a threshold decides: what both methods share.

    Attributes:
        fraction: The threshold over a magnitude of the array.
        threshold: Largest magnitude that becomes zero. Open: by `fraction`.
    """

    fraction: NonNegative
    threshold: Open = None

    @property
    def width(self) -> int:
        """Two bits."""
        return 2


@register_setting
@dataclass(frozen=True)
class Ternary(Thresholded):
    """Three values with a scale that follows the weights: `Ternary()`.

    Attributes:
        fraction: The threshold over the mean magnitude.
        threshold: Largest magnitude that becomes zero. Open: by `fraction`.
        scale: The value a. Open: the mean magnitude beyond the threshold.
        per: Part with its own scale: the output "channel" of a weight, or the "tensor".

    Raises:
        TypeError, ValueError: A number is negative or not finite.

    References:
        Li et al., "Ternary Weight Networks", arXiv:1605.04711.
    """

    fraction: NonNegative = 0.7
    scale: Open = None
    per: Annotated[str, Choice("channel", "tensor")] = static("tensor")

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Returns the three values, with a gradient of one."""
        own = self._filled(lax.stop_gradient(x), tensor)
        scale = tensor.fitted("Ternary.scale", own.scale, x)
        threshold = tensor.fitted("Ternary.threshold", own.threshold, x)
        return _three(x, threshold, scale, scale) + (x - lax.stop_gradient(x))

    def start(self, x: Float[Array, "*shape"], tensor: Tensor) -> "Ternary":
        """Fixes threshold and scale of activations; those of weights follow them."""
        started = self._filled(x, tensor) if tensor.role == "activation" else self
        return replace(started, fraction=jnp.asarray(self.fraction, x.dtype))

    def storage(self, shape: tuple[int, ...], tensor: Tensor) -> int:
        """Counts two bits for each value and a float for each scale."""
        return super().storage(shape, tensor) + 32 * tensor.count(shape, self.per)

    def _filled(self, x: Array, tensor: Tensor) -> "Ternary":
        axes, shape = kept_axes(x, tensor.axes(self.per))
        threshold: Any = self.threshold
        if threshold is None:
            mean = jnp.mean(jnp.abs(x), axes).reshape(shape)
            # Eq. 6: 0.7 lies between the best for uniform weights, 2/3, and for normal ones, 3/4.
            threshold = jnp.asarray(self.fraction, x.dtype) * mean
        scale: Any = self.scale
        if scale is None:
            beyond = jnp.abs(x) > tensor.fitted("Ternary.threshold", threshold, x)
            # Eq. 5: given the threshold, this mean has the least squared error.
            scale = _mean(x, beyond, axes, shape)
        return replace(self, threshold=threshold, scale=scale)


@register_setting
@dataclass(frozen=True)
class TrainedTernary(Thresholded):
    """Three values, two of them learnt: `TrainedTernary()`.

    Attributes:
        fraction: The threshold over the largest magnitude.
        threshold: Largest magnitude that becomes zero. Open: by `fraction`.
        positive: The value p above the threshold. Open: the mean there.
        negative: Minus the value below the other threshold. Open: the mean magnitude there. A side
            without values takes the number of the other side; one, if both have none.
        per: Part with its own values: the output "channel" of a weight, or the "tensor".

    Raises:
        TypeError, ValueError: A number is negative or not finite.

    References:
        Zhu et al., "Trained Ternary Quantization", arXiv:1612.01064.
    """

    fraction: NonNegative = 0.05
    positive: Open = None
    negative: Open = None
    per: Annotated[str, Choice("channel", "tensor")] = static("tensor")

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Returns the three values, with the gradients above."""
        fixed = lax.stop_gradient(x)
        own = self._filled(fixed, tensor)
        up = tensor.fitted("TrainedTernary.positive", own.positive, x)
        down = tensor.fitted("TrainedTernary.negative", own.negative, x)
        threshold = tensor.fitted("TrainedTernary.threshold", self._threshold(fixed, tensor), x)
        one = jnp.ones_like(x)
        # Gradients of weights are scaled by the value they take, of those at zero by one.
        slope = jnp.where(fixed > threshold, up, jnp.where(fixed < -threshold, down, one))
        passed = x * lax.stop_gradient(slope)
        return _three(x, threshold, up, down) + (passed - lax.stop_gradient(passed))

    def start(self, x: Float[Array, "*shape"], tensor: Tensor) -> "TrainedTernary":
        """Computes open values from an array, and for activations the threshold."""
        started = replace(self._filled(x, tensor), fraction=jnp.asarray(self.fraction, x.dtype))
        if tensor.role == "activation":
            started = replace(started, threshold=self._threshold(x, tensor))
        return started

    def storage(self, shape: tuple[int, ...], tensor: Tensor) -> int:
        """Counts two bits for each value and a float for each learnt one."""
        return super().storage(shape, tensor) + 64 * tensor.count(shape, self.per)

    def _threshold(self, x: Array, tensor: Tensor) -> Any:
        if self.threshold is not None:
            return self.threshold
        return jnp.asarray(self.fraction, x.dtype) * magnitude(x, tensor, self.per)

    def _filled(self, x: Array, tensor: Tensor) -> "TrainedTernary":
        axes, shape = kept_axes(x, tensor.axes(self.per))
        threshold = tensor.fitted("TrainedTernary.threshold", self._threshold(x, tensor), x)
        above = _mean(x, x > threshold, axes, shape)
        below = _mean(x, x < -threshold, axes, shape)
        # A side without values starts from the other's number, so that training may use it.
        up, down = jnp.where(above > 0, above, below), jnp.where(below > 0, below, above)
        up, down = map(safe_scale, (up, down))
        return replace(
            self,
            positive=up if self.positive is None else self.positive,
            negative=down if self.negative is None else self.negative,
        )


def _three(x: Array, threshold: Array, up: Array, down: Array) -> Array:
    zero = jnp.zeros_like(x)
    return jnp.where(x > threshold, up, jnp.where(x < -threshold, -down, zero))


def _mean(
    x: Array, where: Bool[Array, "..."], axes: tuple[int, ...], shape: tuple[int, ...]
) -> Array:
    """Computes the mean magnitude of some values, zero where there are none."""
    some = jnp.any(where, axes, keepdims=True)
    # An empty choice takes all values instead of 0 / 0, and is zero in the end.
    mean = jnp.mean(jnp.abs(x), axes, where=where | ~some).reshape(shape)
    return jnp.where(some.reshape(shape), mean, jnp.zeros_like(mean))
