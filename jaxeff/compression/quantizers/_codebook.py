"""Learnt values: `Codebook` (k-means), `LearnedBasis` (LQ-Net), `Discrete` distributions."""

import functools
import heapq
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxeff.compression.numerics import (
    BaseQuantizer,
    Tensor,
    at_least_float32,
    kept_axes,
    least_squares,
    lookup_levels,
    nearest,
    safe_scale,
    straight_through,
    sums,
)
from jaxeff.core import (
    Choice,
    Count,
    Number,
    is_concrete,
    register_setting,
    static,
    static_number,
    with_leading_axes,
)
from jaxeff.moment_propagation import Gaussian


def code_lengths(counts: Sequence[int] | np.ndarray) -> np.ndarray:
    """Computes the length of each symbol's code in a Huffman code.

    Args:
        counts: Number of occurrences of each symbol.

    Returns:
        Whole numbers of bits, of the shape of `counts`; 0 for what doesn't occur, and for a symbol
        that is the only one.

    Raises:
        ValueError: A count is negative or not finite, or there is none above zero.
    """
    numbers = _checked(counts)
    lengths = np.zeros(numbers.shape, int)
    order = itertools.count()  # decides between equal counts, so that members aren't compared
    heap = [(float(n), next(order), [i]) for i, n in enumerate(numbers) if n > 0]
    heapq.heapify(heap)
    # Joining the two rarest groups lengthens the code of each member by one bit.
    while len(heap) > 1:
        (n, _, members), (m, _, others) = heapq.heappop(heap), heapq.heappop(heap)
        lengths[members + others] += 1
        heapq.heappush(heap, (n + m, next(order), members + others))
    return lengths


def mean_length(counts: Sequence[int] | np.ndarray) -> float:
    """Computes the bits per symbol of a Huffman code: from the entropy to one bit above it."""
    numbers = _checked(counts)
    return float(np.sum(code_lengths(numbers) * numbers) / np.sum(numbers))


def entropy(counts: Sequence[int] | np.ndarray) -> float:
    """Computes the entropy of the symbols in bits, which no code gets below."""
    numbers = _checked(counts)
    shares = numbers[numbers > 0] / np.sum(numbers)
    # The zero added turns the -0.0 of a single symbol into 0.
    return float(-np.sum(shares * np.log2(shares))) + 0.0


def _checked(counts: Any) -> np.ndarray:
    numbers = np.asarray(counts, np.float64).ravel()
    if not (np.isfinite(numbers).all() and (numbers >= 0).all() and (numbers > 0).any()):
        raise ValueError(f"counts must be at least zero, and one of them above, but are {counts}.")
    return numbers


TURNS = 300
"""The most turns of k-means, as elsewhere."""
STILL = 1e-4
"""It ends when no value moves by more than this share of their mean distance."""


@register_setting
@dataclass(frozen=True)
class Codebook(BaseQuantizer):
    """Shared values: `Codebook(4)` has 16.

    The codebook minimises the sum of squared distances to the nearest of its 2^b values (Han et
    al., eq. 2). It starts from values evenly spaced between the smallest and the largest (linear
    initialisation, section 3.2) and takes turns (Lloyd): members are those that are nearest, the
    shared value is their mean. Then the values are trained, the gradient of each being the sum over
    its members (eq. 3).

    Indices can be stored by a Huffman code, the frequent ones shorter (section 4).

    Sharp edges:
        Once weights have a codebook they have no gradient, so that members stay: learn the spec.
        With `reassign`, and for activations, gradients pass straight through.
        A value without members stays where it is.

    Attributes:
        bits: Bit width of an index, 1 to 8.
        values: The codebook along its last axis; the other axes are of size one, or those that
            have a codebook of their own. Open: by k-means.
        per: Part with its own codebook: the output "channel" of a weight, or the "tensor".
        coding: Storage of indices: with "fixed" lengths, or by a "huffman" code.
        length: Bits of an index by the Huffman code of the array that it started from, on average;
            has no gradient. Open: `bits`.
        reassign: Whether weights are trained too, and may change their shared value.

    Raises:
        TypeError, ValueError: A number is out of bounds, or there is another number of values.

    References:
        Han et al., "Deep Compression", arXiv:1510.00149.
    """

    bits: Annotated[int, Count(1, 8)] = static()
    values: Annotated[Float[Array, "... values"] | None, Number()] = None
    per: Annotated[str, Choice("channel", "tensor")] = static("tensor")
    coding: Annotated[str, Choice("fixed", "huffman")] = static("fixed")
    length: Annotated[Float[Array, ""] | float | None, Number(0)] = None
    reassign: bool = static(False)

    def __post_init__(self) -> None:
        """Checks the fields."""
        super().__post_init__()
        shape = jnp.shape(self.values) if self.values is not None else (2**self.bits,)
        if shape[-1:] != (2**self.bits,):
            raise ValueError(
                f"Codebook.values has shape {shape}; its last axis must have the {2**self.bits} "
                f"values of {self.bits} bit(s)."
            )

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Returns the nearest values of the codebook.

        Raises:
            ValueError: The codebook is larger than what it stands for.
        """
        # Assignments have no gradient; a shared value gets the sum of its members' (Han et
        # al., section 3.3), through `lookup_levels`.
        fixed = lax.stop_gradient(x)
        values = self.values if self.values is not None else self._k_means(fixed, tensor)
        tensor.fitted("Codebook.values", values[..., 0], x)
        levels = jnp.sort(jnp.asarray(values, x.dtype), axis=-1)
        y = lookup_levels(levels, nearest(fixed, lax.stop_gradient(levels)))
        through = self.reassign or self.values is None or tensor.role == "activation"
        return y + ((x if through else fixed) - fixed)

    def start(self, x: Float[Array, "*shape"], tensor: Tensor) -> "Codebook":
        """Computes an open codebook from an array, and the length of its indices."""
        values = self.values
        if values is None:
            values = self._k_means(x, tensor).astype(x.dtype)
        started = replace(self, values=values)
        if self.coding == "huffman" and self.length is None and is_concrete(x):
            started = replace(started, length=started._length(x, tensor))
        return started

    def storage(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Counts indices, and for each shared value a float and the 8-bit length of its code."""
        entries = 2**self.bits * tensor.count(shape, self.per)
        coded = self.coding == "huffman"
        indices = super().storage(shape, tensor)
        if coded and self.length is not None:
            indices = indices / self.bits * self.length
        return indices + entries * (40 if coded else 32)

    def _k_means(self, x: Array, tensor: Tensor) -> Array:
        axes, shape = kept_axes(x, tensor.axes(self.per))
        members = x.size // tensor.count(x.shape, self.per)
        if members < 2**self.bits:
            raise ValueError(
                f"{tensor.site}/{tensor.name} has {members} value(s) for a codebook of "
                f"{2**self.bits}: take fewer bits there, "
                + ('per="tensor", ' if self.per == "channel" and shape else "")
                + "or leave the layer alone (None)."
            )
        return _lloyd(x, 2**self.bits, axes, shape)

    def _length(self, x: Array, tensor: Tensor) -> Array:
        levels = jnp.sort(jnp.asarray(self.values, x.dtype), axis=-1)
        _, shape = kept_axes(x, tensor.axes(self.per))
        levels = jnp.broadcast_to(levels, (*shape, 2**self.bits))
        counts, _ = sums(x, nearest(x, levels), 2**self.bits, shape)
        # Every codebook has a code of its own, and all have equally many members.
        lengths = [mean_length(row) for row in counts.reshape(-1, 2**self.bits)]
        return jnp.asarray(sum(lengths) / len(lengths), x.dtype)


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _lloyd(x: Array, count: int, axes: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    """Computes shared values by k-means, from evenly spaced ones."""
    wide = at_least_float32(x)
    low, high = (end(wide, axes).reshape(shape)[..., None] for end in (jnp.min, jnp.max))
    # Linear initialization: large weights, few but important, get shared values too (Han et
    # al., section 3.2).
    parts = jnp.arange(count, dtype=wide.dtype) / (count - 1)
    first = low + (high - low) * parts.reshape((1,) * len(shape) + (count,))

    still = STILL * (high - low) / count

    def turn(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        levels, _, turns = carry
        codes = nearest(wide, levels)
        # Sums of distances, which are small, lose less to rounding than sums of values.
        counts, totals = sums(wide - lookup_levels(levels, codes), codes, count, shape)
        # An empty cluster stays where it is.
        moved = levels + totals / jnp.maximum(counts, 1)
        return moved, jnp.any(jnp.abs(moved - levels) > still), turns + 1

    def goes_on(carry: tuple[Array, Array, Array]) -> Array:
        return carry[1] & (carry[2] < TURNS)

    levels, _, _ = lax.while_loop(goes_on, turn, (first, jnp.array(True), jnp.array(0)))
    return levels


MIDDLE = 0.6745
"""The median of |x| of a standard Gaussian: where the authors' first basis has its middle."""


@register_setting
@dataclass(frozen=True)
class LearnedBasis(BaseQuantizer):
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

    bits: Annotated[int, Count(1, 8)] = static()
    basis: Annotated[Float[Array, "... bits"] | None, Number()] = None
    per: Annotated[str, Choice("channel", "tensor")] = static("channel")
    turns: Annotated[int, Count(1)] = static(10)
    momentum: Annotated[float, Number(0, 1)] = static(0.9)

    def __post_init__(self) -> None:
        """Checks the fields."""
        super().__post_init__()
        if self.basis is not None and np.shape(self.basis)[-1:] != (self.bits,):
            raise ValueError(
                f"LearnedBasis.basis has shape {np.shape(self.basis)}; its last axis must have one "
                f"entry for each of the {self.bits} bits."
            )

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Returns the nearest levels, with the gradients above."""
        fixed = lax.stop_gradient(x)
        started = self.start(fixed, tensor)
        basis = jnp.asarray(started.basis, x.dtype)
        tensor.fitted("LearnedBasis.basis", basis[..., 0], x)
        levels, _ = self._levels(basis, tensor)
        value = lookup_levels(levels, nearest(fixed, lax.stop_gradient(levels)))
        passed = x
        if tensor.role == "activation":
            # Activations above the highest level have no gradient: they are clipped.
            last = tensor.fitted("LearnedBasis.basis", lax.stop_gradient(levels[..., -1]), x)
            passed = jnp.where(fixed > last, fixed, x)
        return value + (passed - lax.stop_gradient(passed))

    def start(self, x: Float[Array, "*shape"], tensor: Tensor) -> "LearnedBasis":
        """Computes an open basis from an array: `turns` turns from evenly spaced levels."""
        if self.basis is not None:
            return self
        first = self._first(x, tensor)
        basis = lax.fori_loop(0, self.turns, lambda _, v: self._turn(v, x, tensor), first)
        return replace(self, basis=basis.astype(x.dtype))

    def update_statistics(self, x: Float[Array, "*shape"], tensor: Tensor) -> "LearnedBasis":
        """Averages the basis with that of one turn on another array."""
        if self.basis is None:
            return self.start(x, tensor)
        x = lax.stop_gradient(x)
        old = lax.stop_gradient(jnp.asarray(self.basis))
        wide = at_least_float32(old)
        # One turn per training step: codes change little between steps (the paper's algorithm).
        new = self._turn(wide, x, tensor)
        mixed = self.momentum * wide + (1 - self.momentum) * new
        return replace(self, basis=mixed.astype(old.dtype))

    def storage(self, shape: tuple[int, ...], tensor: Tensor) -> int:
        """Counts codes, and a float for each number of a basis."""
        return super().storage(shape, tensor) + 32 * self.bits * tensor.count(shape, self.per)

    def _first(self, x: Array, tensor: Tensor) -> Array:
        """Makes a basis of powers of two, whose levels are evenly spaced."""
        axes, shape = kept_axes(x, tensor.axes(self.per))
        wide = at_least_float32(x)
        square = jnp.mean(wide**2, axes).reshape(shape)
        if tensor.role == "weight":
            unit = MIDDLE * jnp.sqrt(square) / 2 ** (self.bits - 1)
        else:  # the square of a rectified Gaussian is half its variance
            unit = 2 * MIDDLE * jnp.sqrt(2 * square) / (2**self.bits - 1)
        powers = jnp.asarray(2.0 ** np.arange(self.bits), wide.dtype)
        return unit[..., None] * with_leading_axes(powers, (*shape, self.bits))

    def _levels(self, basis: Array, tensor: Tensor) -> tuple[Array, Array]:
        """Sorts the levels, and returns which code each of them has."""
        codes = jnp.asarray(_codes(self.bits, tensor), basis.dtype)
        codes = codes.reshape((1,) * (basis.ndim - 1) + codes.shape)
        # Level of a code: the inner product of its bits with the basis.
        levels = jnp.sum(codes * basis[..., None, :], axis=-1)
        order = jnp.argsort(lax.stop_gradient(levels), axis=-1)
        return jnp.take_along_axis(levels, order, axis=-1), order

    def _turn(self, basis: Array, x: Array, tensor: Tensor) -> Array:
        """Computes the basis of least error for the codes of the nearest levels."""
        x = x.astype(basis.dtype)
        _, shape = kept_axes(x, tensor.axes(self.per))
        basis = jnp.broadcast_to(basis, (*shape, self.bits))
        levels, order = self._levels(basis, tensor)
        counts, totals = sums(x, nearest(x, levels), 2**self.bits, shape)
        chosen = jnp.asarray(_codes(self.bits, tensor), basis.dtype)[order]
        # Sums over levels are sums over values: the same codes have the same level.
        weighted = chosen * (counts / x.size)[..., None]
        gram = jnp.sum(weighted[..., :, None] * chosen[..., None, :], axis=-3)
        right = jnp.sum(chosen * (totals / x.size)[..., None], axis=-2)
        # Solved for the change of the basis: a pseudoinverse then leaves alone what the
        # data don't determine, such as a bit that no value uses.
        missing = right - jnp.sum(gram * basis[..., None, :], axis=-1)
        return basis + least_squares(gram, missing)


def _codes(bits: int, tensor: Tensor) -> np.ndarray:
    """Returns all codes, `[2^bits, bits]`."""
    ends = (-1.0, 1.0) if tensor.role == "weight" else (0.0, 1.0)
    return np.array(list(itertools.product(ends, repeat=bits)))


_LEAST = 0.05
"""The smallest probability to start from."""


@register_setting
@dataclass(frozen=True)
class Discrete(BaseQuantizer):
    """A distribution over discrete weights: `Discrete()` is ternary, `Discrete(2)` binary.

    A weight is scale * v with v in {-1, 1} or {-1, 0, 1} and probabilities softmax(logits), so

        mean = scale * sum_k p_k v_k        var = scale^2 * sum_k p_k (v_k - sum_j p_j v_j)^2

    (Shayer et al., section 3). Sums of many such weights are normal by the central limit theorem,
    so training needs no draw of a weight: the local reparametrization trick draws what a layer
    returns.

    ```python
    import jax
    import optax
    from jaxeff.compression import (
        Discrete, LayerQuantization, deterministic, init, quantized, random_weights,
    )
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

    levels: Annotated[int, Choice(2, 3)] = static(3)
    logits: Annotated[Float[Array, "*shape levels"] | None, Number()] = None
    scale: Annotated[Float[Array, "..."] | float | None, Number(above=0)] = None
    draw: Annotated[str, Choice("sample", "mode")] = static("sample")
    decay: Annotated[Float[Array, "..."] | float, Number(0)] = static_number(0.0)
    per: Annotated[str, Choice("channel", "tensor")] = static("channel")

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
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
        return straight_through(mean, y).astype(x.dtype)

    def gaussian(self, x: Float[Array, "*shape"], tensor: Tensor) -> Gaussian:
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

    def start(self, x: Float[Array, "*shape"], tensor: Tensor) -> "Discrete":
        """Computes open scales and logits from weights."""
        self._check_role(tensor)
        if self.logits is not None and self.scale is not None:
            return self
        value = at_least_float32(x)
        scale = self.scale
        if scale is None:
            axes, shape = kept_axes(value, tensor.axes(self.per))
            fixed = lax.stop_gradient(value)
            std = jnp.std(fixed, axes).reshape(shape)
            size = jnp.mean(jnp.abs(fixed), axes).reshape(shape)
            # A constant has no deviation but rounding errors; its magnitude serves.
            scale = jnp.where(std > 1e-6 * size, std, size)
            scale = safe_scale(scale)
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

    def storage(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Counts the codes of the chosen values, and a float for each scale."""
        return math.prod(shape) * self.width + 32 * tensor.count(shape, self.per)

    @property
    def width(self) -> int:
        """One bit for two values, two for three."""
        return self.levels - 1

    def penalty(self, x: Float[Array, "*shape"], tensor: Tensor) -> Any:
        """Returns the squares of the logits."""
        logits = jnp.asarray(self.start(lax.stop_gradient(x), tensor).logits)
        return jnp.asarray(self.decay, logits.dtype) * jnp.sum(logits * logits)

    def _fitted(self, x: Array, tensor: Tensor) -> tuple["Discrete", Array]:
        started = self.start(x, tensor)
        shape = jnp.asarray(started.logits).shape
        if shape != (*x.shape, self.levels):
            raise ValueError(
                f"Discrete.logits at {tensor.site}/{tensor.name} has shape {shape}, but there is a "
                f"weight of shape {x.shape} with {self.levels} values; give it "
                f"{(*x.shape, self.levels)}, or leave it to init."
            )
        value = at_least_float32(x)
        return started, tensor.fitted("Discrete.scale", started.scale, value)

    def _values(self, like: Array) -> Array:
        return with_leading_axes(jnp.linspace(-1, 1, self.levels, dtype=like.dtype), like.shape)

    def _check_role(self, tensor: Tensor) -> None:
        if tensor.role != "weight":
            raise ValueError(
                f"Discrete at {tensor.site}/{tensor.name} has an activation to quantize, but is a "
                "distribution over weights: use LayerQuantization(weights=Discrete())."
            )
