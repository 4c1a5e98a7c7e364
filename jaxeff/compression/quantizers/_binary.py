"""Two or three values per weight: `Binary`, `Ternary` and `TrainedTernary`."""

from dataclasses import dataclass, replace
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxeff.compression import numerics
from jaxeff.core import Choice, NonNegative, Number, register_setting, static


@register_setting
class Binary(numerics.BaseQuantizer):
    """One bit: `Binary()` is XNOR-Net's, `Binary(per="none")` the plain sign.

    The value is scale * b with b in {-1, +1}, where b = +1 for x >= 0 (Hubara et al., eq. 1), or
    drawn: P(b = +1) = clip((u + 1) / 2, 0, 1) with u = x / scale (Courbariaux et al., eq. 2 and 3),
    so that its mean is x within the scale. The sign has no gradient, so it gets that of

    - clip(u, -1, 1): one for |u| <= 1, zero elsewhere (Hubara et al., eq. 4); or of
    - the polynomial u (2 - |u|) there: 2 - 2|u| (ApproxSign, Liu et al., section 3.2),

    with u = x where nothing is drawn. The scale that is nearest to x is its mean magnitude
    (Rastegari et al., eq. 6). While it follows the array, its own share of the gradient is 1/n for
    n values under one scale, so that in total dy/dx = 1/n + scale * db/dx (section 3.1, "Training
    XNOR-Networks"); as there, the terms between different values are left out.

    Sharp edges:
        Gradients vanish where |x| > 1. The authors also keep float weights in [-1, 1]
        (`jaxeff.hardening.clamped`).
        Zeros get the sign +1; an array of zeros alone has scale zero, and stays one of zeros.

    Attributes:
        scale: Factor of the signs. Open: the mean magnitude.
        per: Part with its own scale: the output "channel" of a weight, or the "tensor"; "none":
            there are no scales.
        gradient: "clipped", or "polynomial" (Bi-Real Net, of activations).
        stochastic: Whether signs are drawn; needs `quantized(..., keyed=True)`.
        follow: Whether the scales of weights stay open in `init`, and so follow the weights as in
            XNOR-Net; else they are learnt by their own gradient.

    Raises:
        TypeError, ValueError: The scale is no finite number, or a choice is unknown.

    References:
        Courbariaux et al., "BinaryConnect", arXiv:1511.00363. Hubara et al., "Binarized Neural
        Networks", arXiv:1602.02830. Rastegari et al., "XNOR-Net", arXiv:1603.05279. Liu et al.,
        "Bi-Real Net", arXiv:1808.00278.
    """

    scale: Annotated[Float[Array, "..."] | float | None, Number()] = None
    per: Annotated[str, Choice("channel", "tensor", "none")] = static("channel")
    gradient: Annotated[str, Choice("clipped", "polynomial")] = static("clipped")
    stochastic: bool = static(False)
    follow: bool = static(False)

    def quantize(
        self, x: Float[Array, "*shape"], tensor: numerics.Tensor
    ) -> Float[Array, "*shape"]:
        """Returns the signs times their scale, with the gradients above."""
        fixed = jax.lax.stop_gradient(x)
        scale = self._mean(fixed, tensor) if self.scale is None else self.scale
        scale = tensor.fitted("Binary.scale", scale, x)
        unit = x
        if self.stochastic:
            # A subnormal scale has no finite reciprocal; such values are drawn as zeros are.
            small = jnp.abs(scale) < jnp.finfo(x.dtype).tiny
            unit = x / jnp.where(small, jnp.ones_like(scale), scale)
        signs = self._signs(jax.lax.stop_gradient(unit), tensor)
        # Hubara et al., eq. 4: no gradient beyond one, where a step would change no sign.
        inside = jnp.where(jnp.abs(unit) <= 1, unit, 0)
        smooth = inside if self.gradient == "clipped" else inside * (2 - jnp.abs(inside))
        y = numerics.straight_through(smooth, signs) * scale
        if self.scale is None and self.per != "none":
            # The scale's own share: dy/dscale dscale/dx = b sign(x) / n, 1/n where b is the sign.
            shared = x.size // max(scale.size, 1)
            follows = x * (signs * _sign(fixed) / shared)
            y = y + (follows - jax.lax.stop_gradient(follows))
        return y

    def weight_grid(self, w: Float[Array, "..."], tensor: numerics.Tensor) -> numerics.Grid:
        """Returns the grid of two values."""
        scale = jnp.abs(jnp.asarray(self._mean(w, tensor) if self.scale is None else self.scale))
        # An array of zeros alone has no step, and stays one.
        has_values = scale > 0
        half, one = (jnp.where(has_values, n, 0).astype(jnp.float32) for n in (0.5, 1.0))
        step = numerics.safe_scale(2 * scale).astype(jnp.float32)
        return numerics.Grid(step, half, -one, jnp.zeros_like(step))

    def deterministic(self) -> "Binary":
        """Returns the same with the signs themselves."""
        return replace(self, stochastic=False)

    def start(self, x: Float[Array, "*shape"], tensor: numerics.Tensor) -> "Binary":
        """Measures an open scale, the mean magnitude, unless it stays open."""
        stays = self.per == "none" or (self.follow and tensor.role == "weight")
        if self.scale is not None or stays:
            return self
        return replace(self, scale=self._mean(x, tensor))

    def storage(self, shape: tuple[int, ...], tensor: numerics.Tensor) -> int:
        """Counts a bit for each value and a float for each scale."""
        scales = 0 if self.per == "none" else tensor.count(shape, self.per)
        return super().storage(shape, tensor) + 32 * scales

    @property
    def width(self) -> int:
        """One bit."""
        return 1

    def _mean(self, x: Array, tensor: numerics.Tensor) -> Array:
        if self.per == "none":
            return jnp.ones((), x.dtype)
        axes, shape = numerics.kept_axes(x, tensor.axes(self.per))
        return jnp.mean(jnp.abs(x), axes).reshape(shape)

    def _signs(self, x: Array, tensor: numerics.Tensor) -> Array:
        if not self.stochastic:
            return _sign(x)
        # The hard sigmoid (Courbariaux et al., eq. 3), in float32: narrow dtypes are coarse.
        chance = jnp.clip((x + 1) / 2, 0, 1).astype(jnp.float32)
        up = jax.random.bernoulli(tensor.random("Binary(stochastic=True)"), chance)
        return jnp.where(jnp.isnan(x), x, jnp.where(up, jnp.ones_like(x), -1))


def _sign(x: Array) -> Array:
    """Returns the sign, that of zero being +1; of NaN it is NaN."""
    return jnp.where(x >= 0, jnp.ones_like(x), jnp.where(x < 0, -jnp.ones_like(x), x))


Open = Annotated[Float[Array, "..."] | float | None, Number(0)]


@dataclass(frozen=True)
class Thresholded(numerics.BaseQuantizer):
    """Three values, of which a threshold decides: what both methods share.

    Sharp edges:
        Thresholds follow weights on every call; of activations `init` fixes them, so that a
        prediction doesn't depend on its batch. Thresholds have no gradient.
        An array of zeros stays one; all other constants are kept up to the rounding of their mean.

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
class Ternary(Thresholded):
    """Three values with a scale that follows the weights, {-a, 0, a}: `Ternary()`.

    Values within the threshold, .7 mean|w|, become zero; a is the mean magnitude beyond it (Li et
    al., eq. 5 and 6). Gradients pass straight through.

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

    def quantize(
        self, x: Float[Array, "*shape"], tensor: numerics.Tensor
    ) -> Float[Array, "*shape"]:
        """Returns the three values, with a gradient of one."""
        started = self._filled(jax.lax.stop_gradient(x), tensor)
        scale = tensor.fitted("Ternary.scale", started.scale, x)
        threshold = tensor.fitted("Ternary.threshold", started.threshold, x)
        return _three(x, threshold, scale, scale) + (x - jax.lax.stop_gradient(x))

    def weight_grid(self, w: Float[Array, "..."], tensor: numerics.Tensor) -> numerics.Grid:
        """Returns the grid of three values."""
        scale = jnp.asarray(self._filled(w, tensor).scale, jnp.float32)
        one = jnp.ones_like(scale)
        return numerics.Grid(numerics.safe_scale(scale), 0 * one, -one, one)

    def start(self, x: Float[Array, "*shape"], tensor: numerics.Tensor) -> "Ternary":
        """Fixes threshold and scale of activations; those of weights follow them."""
        started = self._filled(x, tensor) if tensor.role == "activation" else self
        return replace(started, fraction=jnp.asarray(self.fraction, x.dtype))

    def storage(self, shape: tuple[int, ...], tensor: numerics.Tensor) -> int:
        """Counts two bits for each value and a float for each scale."""
        return super().storage(shape, tensor) + 32 * tensor.count(shape, self.per)

    def _filled(self, x: Array, tensor: numerics.Tensor) -> "Ternary":
        axes, shape = numerics.kept_axes(x, tensor.axes(self.per))
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
class TrainedTernary(Thresholded):
    """Three values, two of them learnt, {-n, 0, p}: `TrainedTernary()`.

    The threshold is .05 max|w| (Zhu et al., eq. 9). The gradient of p is the sum over the values
    that became p (eq. 7), that of n the same with a minus, since the value is -n: equation 7 has no
    minus for n; with one the gradient is that of equation 6. The gradient of w is multiplied with p
    above the threshold, with n below the other, with one between (eq. 8).

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

    def quantize(
        self, x: Float[Array, "*shape"], tensor: numerics.Tensor
    ) -> Float[Array, "*shape"]:
        """Returns the three values, with the gradients above."""
        fixed = jax.lax.stop_gradient(x)
        started = self._filled(fixed, tensor)
        up = tensor.fitted("TrainedTernary.positive", started.positive, x)
        down = tensor.fitted("TrainedTernary.negative", started.negative, x)
        threshold = tensor.fitted("TrainedTernary.threshold", self._threshold(fixed, tensor), x)
        one = jnp.ones_like(x)
        # Gradients of weights are scaled by the value they take, of those at zero by one.
        slope = jnp.where(fixed > threshold, up, jnp.where(fixed < -threshold, down, one))
        passed = x * jax.lax.stop_gradient(slope)
        return _three(x, threshold, up, down) + (passed - jax.lax.stop_gradient(passed))

    def start(self, x: Float[Array, "*shape"], tensor: numerics.Tensor) -> "TrainedTernary":
        """Computes open values from an array, and for activations the threshold."""
        started = replace(self._filled(x, tensor), fraction=jnp.asarray(self.fraction, x.dtype))
        if tensor.role == "activation":
            started = replace(started, threshold=self._threshold(x, tensor))
        return started

    def storage(self, shape: tuple[int, ...], tensor: numerics.Tensor) -> int:
        """Counts two bits for each value and a float for each learnt one."""
        return super().storage(shape, tensor) + 64 * tensor.count(shape, self.per)

    def _threshold(self, x: Array, tensor: numerics.Tensor) -> Any:
        if self.threshold is not None:
            return self.threshold
        return jnp.asarray(self.fraction, x.dtype) * numerics.magnitude(x, tensor, self.per)

    def _filled(self, x: Array, tensor: numerics.Tensor) -> "TrainedTernary":
        axes, shape = numerics.kept_axes(x, tensor.axes(self.per))
        threshold = tensor.fitted("TrainedTernary.threshold", self._threshold(x, tensor), x)
        above = _mean(x, x > threshold, axes, shape)
        below = _mean(x, x < -threshold, axes, shape)
        # A side without values starts from the other's number, so that training may use it.
        up, down = jnp.where(above > 0, above, below), jnp.where(below > 0, below, above)
        up, down = map(numerics.safe_scale, (up, down))
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
