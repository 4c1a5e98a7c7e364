"""Learnt levels: sums of a basis (`LearnedBasis`, `BinaryBases`), or `Discrete` distributions."""

import itertools
import math
from dataclasses import replace
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxeff import core
from jaxeff.compression import numerics
from jaxeff.moment_propagation import Gaussian

MIDDLE = 0.6745
"""The median of |x| of a standard Gaussian: where the authors' first basis has its middle."""


@core.register_setting
class LearnedBasis(numerics.BaseQuantizer):
    """Learned quantization: `LearnedBasis(2)`.

    With K bits the levels are the products of a basis v in R^K and all codes: {-1, +1}^K for
    weights, {0, 1}^K for activations (Zhang et al., eq. 4 and 5); a value takes the nearest level.
    The basis minimises the error |x - B v|^2 in turns (algorithm 1): codes B are those of the
    nearest levels; then v = (B^T B)^-1 B^T x (eq. 8). Neither step makes the error larger.

    In training the paper does one such turn per step and averages: v becomes
    momentum v + (1 - momentum) v'. `LearnedBasis.update_statistics` does that for an array, and
    `jaxeff.compression.update_statistics` for a model. The basis is a leaf with the gradient of its
    levels, so it can be learnt by that as well.

    The gradient of x is one; of activations above the largest level it is zero, as in the code of
    the authors.

    Sharp edges:
        Where a part of the basis isn't determined, as codes are unused, the basis moves the least.
        An array of zeros has a basis of zeros, and only zeros.

    Attributes:
        bits: Bit width, 1 to 8.
        basis: The last axis has one number for each bit; the others are of size one, or those that
            have a basis of their own. Open: by least squares.
        per: Part with its own basis: the output "channel" of a weight, or the "tensor".
        turns: Number of turns in which an open basis and its codes are computed.
        momentum: Share of the basis that stays in an update.

    Raises:
        TypeError, ValueError: A number is out of bounds, or the basis has none for some bit.

    References:
        Zhang et al., "LQ-Nets: Learned Quantization for Highly Accurate and Compact Deep Neural
        Networks", arXiv:1807.10029.
    """

    bits: Annotated[int, core.Count(1, 8)] = core.static()
    basis: Annotated[Float[Array, "... bits"] | None, core.Number()] = None
    per: Annotated[str, core.Choice("channel", "tensor")] = core.static("channel")
    turns: Annotated[int, core.Count(1)] = core.static(10)
    momentum: Annotated[float, core.Number(0, 1)] = core.static(0.9)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_entries(self.bits, "basis")

    def quantize(
        self, x: Float[Array, "*shape"], tensor: numerics.Tensor
    ) -> Float[Array, "*shape"]:
        """Returns the nearest levels, with the gradients above."""
        fixed = lax.stop_gradient(x)
        started = self.start(fixed, tensor)
        basis = jnp.asarray(started.basis, x.dtype)
        tensor.fitted("LearnedBasis.basis", basis[..., 0], x)
        levels, _ = self._levels(basis, tensor)
        value = numerics.lookup_levels(levels, numerics.nearest(fixed, lax.stop_gradient(levels)))
        passed = x
        if tensor.role == "activation":
            # Activations above the highest level have no gradient: they are clipped.
            last = tensor.fitted("LearnedBasis.basis", lax.stop_gradient(levels[..., -1]), x)
            passed = jnp.where(fixed > last, fixed, x)
        return value + (passed - lax.stop_gradient(passed))

    def start(self, x: Float[Array, "*shape"], tensor: numerics.Tensor) -> "LearnedBasis":
        """Computes an open basis from an array: `turns` turns from evenly spaced levels."""
        if self.basis is not None:
            return self
        first = self._first(x, tensor)
        basis = lax.fori_loop(0, self.turns, lambda _, v: self._turn(v, x, tensor), first)
        return replace(self, basis=basis.astype(x.dtype))

    def update_statistics(
        self, x: Float[Array, "*shape"], tensor: numerics.Tensor
    ) -> "LearnedBasis":
        """Averages the basis with that of one turn on another array."""
        if self.basis is None:
            return self.start(x, tensor)
        x = lax.stop_gradient(x)
        old = lax.stop_gradient(jnp.asarray(self.basis))
        wide = numerics.at_least_float32(old)
        # One turn per training step: codes change little between steps (the paper's algorithm).
        new = self._turn(wide, x, tensor)
        mixed = self.momentum * wide + (1 - self.momentum) * new
        return replace(self, basis=mixed.astype(old.dtype))

    def storage(self, shape: tuple[int, ...], tensor: numerics.Tensor) -> int:
        """Counts codes, and a float for each number of a basis."""
        return super().storage(shape, tensor) + 32 * self.bits * tensor.count(shape, self.per)

    def _first(self, x: Array, tensor: numerics.Tensor) -> Array:
        """Makes a basis of powers of two, whose levels are evenly spaced."""
        axes, shape = numerics.kept_axes(x, tensor.axes(self.per))
        wide = numerics.at_least_float32(x)
        square = jnp.mean(wide**2, axes).reshape(shape)
        if tensor.role == "weight":
            unit = MIDDLE * jnp.sqrt(square) / 2 ** (self.bits - 1)
        else:  # the square of a rectified Gaussian is half its variance
            unit = 2 * MIDDLE * jnp.sqrt(2 * square) / (2**self.bits - 1)
        powers = jnp.asarray(2.0 ** np.arange(self.bits), wide.dtype)
        return unit[..., None] * core.with_leading_axes(powers, (*shape, self.bits))

    def _levels(self, basis: Array, tensor: numerics.Tensor) -> tuple[Array, Array]:
        """Sorts the levels, and returns which code each of them has."""
        codes = jnp.asarray(_codes(self.bits, tensor), basis.dtype)
        codes = codes.reshape((1,) * (basis.ndim - 1) + codes.shape)
        # Level of a code: the inner product of its bits with the basis.
        levels = jnp.sum(codes * basis[..., None, :], axis=-1)
        order = jnp.argsort(lax.stop_gradient(levels), axis=-1)
        return jnp.take_along_axis(levels, order, axis=-1), order

    def _turn(self, basis: Array, x: Array, tensor: numerics.Tensor) -> Array:
        """Computes the basis of least error for the codes of the nearest levels."""
        x = x.astype(basis.dtype)
        _, shape = numerics.kept_axes(x, tensor.axes(self.per))
        basis = jnp.broadcast_to(basis, (*shape, self.bits))
        levels, order = self._levels(basis, tensor)
        counts, totals = numerics.sums(x, numerics.nearest(x, levels), 2**self.bits, shape)
        chosen = jnp.asarray(_codes(self.bits, tensor), basis.dtype)[order]
        # Sums over levels are sums over values: the same codes have the same level.
        weighted = chosen * (counts / x.size)[..., None]
        gram = jnp.sum(weighted[..., :, None] * chosen[..., None, :], axis=-3)
        right = jnp.sum(chosen * (totals / x.size)[..., None], axis=-2)
        # Solved for the change of the basis: a pseudoinverse then leaves alone what the
        # data don't determine, such as a bit that no value uses.
        missing = right - jnp.sum(gram * basis[..., None, :], axis=-1)
        return basis + numerics.least_squares(gram, missing)


def _codes(bits: int, tensor: numerics.Tensor) -> np.ndarray:
    """Returns all codes, `[2^bits, bits]`."""
    ends = (-1.0, 1.0) if tensor.role == "weight" else (0.0, 1.0)
    return np.array(list(itertools.product(ends, repeat=bits)))


_LEAST = 0.05
"""The smallest probability to start from."""


@core.register_setting
class Discrete(numerics.BaseQuantizer):
    """A distribution over discrete weights: `Discrete()` is ternary, `Discrete(2)` binary.

    A weight is scale * v with v in {-1, 1} or {-1, 0, 1} and probabilities softmax(logits), so

        mean = scale * sum_k p_k v_k        var = scale^2 * sum_k p_k (v_k - sum_j p_j v_j)^2

    (Shayer et al., section 3). Sums of many such weights are normal by the central limit theorem,
    so training needs no draw of a weight: the local reparametrization trick draws what a layer
    returns.

    ```python
    import jax
    import optax
    from jaxeff.compression import LayerQuantization, deterministic, init, quantized, random_weights
    from jaxeff.contrib import Discrete
    from jaxeff.moment_propagation import moments, sampled
    from jaxeff.nn import small_classifier

    f, params, (x, y) = small_classifier()
    spec = init(f, params, x, {"*:linear": LayerQuantization(Discrete())})

    def loss(spec, key):
        logits = sampled(f)(key, random_weights(f, params, x, spec), x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    grads = jax.grad(loss)(spec, jax.random.key(0))
    logits = moments(f)(random_weights(f, params, x, spec), x)       # mean and variance in one pass
    logits = quantized(f, spec, keyed=True)(jax.random.key(0), params, x)       # weights drawn
    logits = quantized(f, deterministic(spec))(params, x)            # the most probable ones
    ```

    Logits start as in the paper, at w / scale = u: P(0) = clip(.95 - .9 |u|, .05, .95) and P(1 |
    not 0) = clip((1 + u / (1 - P(0))) / 2, .05, .95), the scale being the standard deviation of the
    weights. `quantized` gives values their mean's gradient.

    Attributes:
        levels: 2 for -1 and 1, or 3 with zero between.
        logits: Log-probabilities of the values but for a constant, ``[*shape, levels]``. Open: see
            above.
        scale: Factor of the values, positive. Open: the standard deviation of what
            shares it, or its mean magnitude where that is zero.
        draw: "sample" needs a key; "mode" takes the most probable value.
        decay: The penalty's factor, of the sum of squared logits (the paper's probability decay).
            A plain number isn't learnt.
        per: Part with its own scale: the output "channel" of a weight, or the "tensor".

    Raises:
        TypeError, ValueError: A number is out of bounds, or a choice is unknown.

    References:
        Shayer et al., "Learning Discrete Weights Using the Local Reparameterization Trick",
        arXiv:1710.07739. Roth and Pernkopf, "Discrete-Valued Neural Networks Using Variational
        Inference" (2019).
    """

    levels: Annotated[int, core.Choice(2, 3)] = core.static(3)
    logits: Annotated[Float[Array, "*shape levels"] | None, core.Number()] = None
    scale: Annotated[Float[Array, "..."] | float | None, core.Number(above=0)] = None
    draw: Annotated[str, core.Choice("sample", "mode")] = core.static("sample")
    decay: Annotated[Float[Array, "..."] | float, core.Number(0)] = core.static_number(0.0)
    per: Annotated[str, core.Choice("channel", "tensor")] = core.static("channel")

    def quantize(
        self, x: Float[Array, "*shape"], tensor: numerics.Tensor
    ) -> Float[Array, "*shape"]:
        """Draws values or takes the most probable ones, with the gradient of their mean."""
        started, scale = self._fitted(x, tensor)
        logits = jnp.asarray(started.logits, scale.dtype)
        values = self._values(logits)
        mean = scale * jnp.sum(jax.nn.softmax(logits) * values, -1)
        if self.draw == "sample":
            key = tensor.random("Discrete")
            # Gumbel-max: the argmax of logits plus Gumbel noise is a draw from their softmax.
            logits = logits + jax.random.gumbel(key, logits.shape, logits.dtype)
        chosen = jnp.argmax(logits, -1)
        # Index k stands for k step - 1: -1 and 1, or -1, 0 and 1.
        step = 2 / (self.levels - 1)
        y = lax.stop_gradient(scale) * (step * chosen.astype(scale.dtype) - 1)
        return numerics.straight_through(mean, y).astype(x.dtype)

    def gaussian(self, x: Float[Array, "*shape"], tensor: numerics.Tensor) -> Gaussian:
        """Computes the mean and variance of every weight, exactly."""
        started, scale = self._fitted(x, tensor)
        p = jax.nn.softmax(jnp.asarray(started.logits, scale.dtype))
        values = self._values(p)
        mean = jnp.sum(p * values, -1)
        # About the mean: E[v^2] - E[v]^2 would cancel for weights that are nearly sure.
        var = jnp.sum(p * (values - mean[..., None]) ** 2, -1)
        return Gaussian((scale * mean).astype(x.dtype), (scale**2 * var).astype(x.dtype))

    def deterministic(self) -> "Discrete":
        """Returns the same with its most probable values."""
        return replace(self, draw="mode")

    def start(self, x: Float[Array, "*shape"], tensor: numerics.Tensor) -> "Discrete":
        """Computes open scales and logits from weights."""
        self._check_role(tensor)
        if self.logits is not None and self.scale is not None:
            return self
        value = numerics.at_least_float32(x)
        scale = self.scale
        if scale is None:
            axes, shape = numerics.kept_axes(value, tensor.axes(self.per))
            fixed = lax.stop_gradient(value)
            std = jnp.std(fixed, axes).reshape(shape)
            size = jnp.mean(jnp.abs(fixed), axes).reshape(shape)
            # A constant has no deviation but rounding errors; its magnitude serves.
            scale = jnp.where(std > 1e-6 * size, std, size)
            scale = numerics.safe_scale(scale)
        if self.logits is not None:
            return replace(self, scale=scale)
        unit = value / tensor.fitted("Discrete.scale", scale, value)
        if self.levels == 2:
            up = jnp.clip((1 + unit) / 2, _LEAST, 1 - _LEAST)
            logits = jnp.log(jnp.stack([1 - up, up], -1))
        else:
            # Off 0 and 1, where the softmax has no gradient and a weight would never change.
            most = 1 - _LEAST
            zero = jnp.clip(most - (most - _LEAST) * jnp.abs(unit), _LEAST, most)
            up = jnp.clip((1 + unit / (1 - zero)) / 2, _LEAST, most)
            logits = jnp.log(jnp.stack([(1 - zero) * (1 - up), zero, (1 - zero) * up], -1))
        return replace(self, logits=logits, scale=scale)

    def storage(self, shape: tuple[int, ...], tensor: numerics.Tensor) -> Any:
        """Counts the codes of the chosen values, and a float for each scale."""
        return math.prod(shape) * self.width + 32 * tensor.count(shape, self.per)

    @property
    def width(self) -> int:
        """One bit for two values, two for three."""
        return self.levels - 1

    def penalty(self, x: Float[Array, "*shape"], tensor: numerics.Tensor) -> Any:
        """Returns the squares of the logits."""
        logits = jnp.asarray(self.start(lax.stop_gradient(x), tensor).logits)
        return jnp.asarray(self.decay, logits.dtype) * jnp.sum(logits * logits)

    def _fitted(self, x: Array, tensor: numerics.Tensor) -> tuple["Discrete", Array]:
        started = self.start(x, tensor)
        shape = jnp.asarray(started.logits).shape
        if shape != (*x.shape, self.levels):
            raise ValueError(
                f"Discrete.logits at {tensor.site}/{tensor.name} has shape {shape}, but there is a "
                f"weight of shape {x.shape} with {self.levels} values; give it "
                f"{(*x.shape, self.levels)}, or leave it to init."
            )
        value = numerics.at_least_float32(x)
        return started, tensor.fitted("Discrete.scale", started.scale, value)

    def _values(self, like: Array) -> Array:
        return core.with_leading_axes(
            jnp.linspace(-1, 1, self.levels, dtype=like.dtype), like.shape
        )

    def _check_role(self, tensor: numerics.Tensor) -> None:
        if tensor.role != "weight":
            raise ValueError(
                f"Discrete at {tensor.site}/{tensor.name} has an activation to quantize, but is a "
                "distribution over weights: use LayerQuantization(weights=Discrete())."
            )


MAX_BASES = 8


@core.register_setting
class BinaryBases(numerics.BaseQuantizer):
    """Several binary bases: `BinaryBases(3)`.

    Weights are W ~ sum_i scale_i B_i with B_i = sign(W - mean(W) + shift_i std(W)) and shifts that
    are evenly spaced from -1 to 1; the scales solve min |W - sum_i scale_i B_i|^2 (section 3.1).
    Scales are constants to the gradient of W, and signs pass gradients straight through: dC/dW =
    sum_i scale_i dC/dy.

    Activations are R ~ sum_i scale_i A_i with A_i = 2 [clip(R + shift_i, 0, 1) >= 1/2] - 1; scales
    and shifts are learnt, with dA_i/dR = dA_i/dshift_i = [0 <= R + shift_i <= 1] (section 3.2).

    Sharp edges:
        Shifts are ordered, so n bases have n + 1 values, not 2^n.
        The scales of weights follow them on every call, until `init` makes them numbers to learn.
        An array with a single value is kept, up to rounding.

    Attributes:
        bases: Number of bases, 1 to 8.
        shifts: One for each. Open: for weights evenly spaced from -1 to 1, in standard deviations;
            for activations such that the thresholds 1/2 - shift divide their range evenly.
        scales: One for each, along the last axis, the others being of size one or those that have
            scales of their own. Open: those of least squares.
        per: Part with its own scales: the output "channel" of a weight, or the "tensor".
        follow: Whether the scales of weights stay open in `init`, and so follow the weights as in
            the paper; else they are learnt by their own gradient.

    Raises:
        TypeError, ValueError: The number of bases is no integer between 1 and 8, or there is
            another number of shifts or scales.

    References:
        Lin et al., "Towards Accurate Binary Convolutional Neural Network", arXiv:1711.11294.
    """

    bases: Annotated[int, core.Count(1, MAX_BASES)] = core.static(3)
    shifts: Annotated[Float[Array, " bases"] | None, core.Number()] = None
    scales: Annotated[Float[Array, "... bases"] | None, core.Number()] = None
    per: Annotated[str, core.Choice("channel", "tensor")] = core.static("tensor")
    follow: bool = core.static(False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_entries(self.bases, "shifts", "scales")

    def quantize(
        self, x: Float[Array, "*shape"], tensor: numerics.Tensor
    ) -> Float[Array, "*shape"]:
        """Returns the sum of the bases, with the gradients above."""
        fixed = lax.stop_gradient(x)
        shifts = self._shifts(fixed, tensor) if self.shifts is None else self.shifts
        shifts = jnp.asarray(shifts, x.dtype)
        scales = self.scales
        if scales is None:
            # Section 3.1: scales are constants to the gradient of W.
            known = replace(self, shifts=lax.stop_gradient(shifts))
            scales = known._scales(fixed, tensor)
        scales = jnp.asarray(scales, x.dtype)
        y: Any = jnp.zeros_like(x)
        for i in range(self.bases):
            basis = self._basis(x, shifts[..., i], tensor)
            y = y + basis * tensor.fitted("BinaryBases.scales", scales[..., i], x)
        return y

    def start(self, x: Float[Array, "*shape"], tensor: numerics.Tensor) -> "BinaryBases":
        """Computes open shifts and scales from an array."""
        started = self
        if self.shifts is None:
            started = replace(started, shifts=self._shifts(x, tensor))
        if self.scales is None and not (self.follow and tensor.role == "weight"):
            started = replace(started, scales=started._scales(x, tensor))
        return started

    def storage(self, shape: tuple[int, ...], tensor: numerics.Tensor) -> int:
        """Counts a bit for each basis of a value, and a float for each scale."""
        scales = self.bases * tensor.count(shape, self.per)
        return super().storage(shape, tensor) + 32 * scales

    @property
    def width(self) -> int:
        """A bit for each basis."""
        return self.bases

    def _basis(self, x: Array, shift: Array, tensor: numerics.Tensor) -> Array:
        """Computes one of the binary arrays, -1 and +1."""
        one = jnp.ones_like(x)
        if tensor.role == "weight":
            fixed = lax.stop_gradient(x)
            axes, shape = numerics.kept_axes(x, tensor.axes(self.per))
            # B_i = sign(W - mean(W) + shift_i std(W)), whose statistics have no gradient either.
            mean = jnp.mean(fixed, axes).reshape(shape)
            moved = x - mean + shift * jnp.std(fixed, axes).reshape(shape)
            return numerics.straight_through(
                moved, jnp.where(moved >= 0, one, jnp.where(moved < 0, -1, x))
            )
        moved = x + shift
        # Section 3.2: the derivative is one within [0, 1] of the shifted value, zero outside.
        bounded = jnp.where((moved >= 0) & (moved <= 1), moved, 0)
        signs = jnp.where(moved >= 0.5, one, jnp.where(moved < 0.5, -1, x))
        return numerics.straight_through(bounded, signs)

    def _shifts(self, x: Array, tensor: numerics.Tensor) -> Array:
        steps = np.linspace(-1.0, 1.0, self.bases) if self.bases > 1 else np.zeros(1)
        if tensor.role == "weight":
            return jnp.asarray(steps, x.dtype)
        # Thresholds 1/2 - shift at even parts of the range: every basis splits the values.
        parts = jnp.asarray(np.arange(1, self.bases + 1) / (self.bases + 1), x.dtype)
        low, high = jnp.min(x), jnp.max(x)
        return 0.5 - (low + (high - low) * parts)

    def _scales(self, x: Array, tensor: numerics.Tensor) -> Array:
        wide = numerics.at_least_float32(x)
        shifts = jnp.asarray(self.shifts, x.dtype)
        signs = [self._basis(x, shifts[..., i], tensor) for i in range(self.bases)]
        bases = [b.astype(wide.dtype) for b in signs]
        axes, shape = numerics.kept_axes(x, tensor.axes(self.per))

        def mean(values: Array) -> Array:
            return jnp.mean(values, axes).reshape(shape)

        # Normal equations of min |W - sum_i scale_i B_i|^2; means keep large arrays in range.
        right = jnp.stack([mean(wide * b) for b in bases], -1)
        rows = [jnp.stack([mean(a * b) for a in bases], -1) for b in bases]
        return numerics.least_squares(jnp.stack(rows, -2), right).astype(x.dtype)
