"""Moments of softmax, softmin and log-softmax of independent Gaussians.

softmax_i = sigmoid(z_i - L_i), where L_i is the log-sum-exp of the others. L_i is independent of
z_i, so with L_i taken as Gaussian each output is a function of one Gaussian, z_i - L_i, and
integrated by quadrature. The log-sums are built in a binary tree of pairs (Schwartz and Yeh 1982),

    log(e^x + e^y) = y + softplus(d), d = x - y,
    mean = m_y + E softplus(d),  var = v_y (1 - 2 E sigmoid(d)) + Var softplus(d)

(the covariance by Stein's lemma), upwards for the sums and downwards for the sums without one
member: about three pairs per entry, nothing subtracted.

Measured against 4e5 Monte-Carlo samples, 3 to 30 classes, logit variances from 0.01 to 9: means of
the probabilities within 0.009, their standard deviations within 0.009 (absolute); log-softmax
means within 5 % of a standard deviation, standard deviations within 9 %. Matching a log-normal to
the sum instead (Fenton-Wilkinson) is as good below a variance of 0.5 and useless above 2, where
the means are off by 0.2 and add up to 2.

Sharp edges
- Outputs are returned with diagonal covariance, though probabilities are negatively correlated
  (their mean probabilities add up to 1 within 2 %), and as a mean and variance, though the
  distribution on [0, 1] is far from Gaussian at high variance.
- It costs about 60 exponentials per entry: nothing for logits, noticeable for long attention.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from jaxeff.moment_propagation.rules._arithmetic import negate
from jaxeff.moment_propagation.rules._quadrature import gauss_legendre
from jaxeff.moment_propagation.values import Gaussian, Random, near, tail, to_variance

# A mixture of normal CDFs Phi(scale x) that is the sigmoid within 6.2e-6 (our least-maximum fit,
# after Monahan and Stefanski 1992).
_MIXTURE_WEIGHTS = (0.09636922, 0.4466386, 0.38951286, 0.06747932)
_MIXTURE_SCALES = (1.03590072, 0.70959706, 0.48248666, 0.32494155)
_NOTHING = -1e4  # its exponential is zero in every dtype, its square is finite


def softmax(x: Random, axis: int = -1) -> Gaussian:
    """Computes the moments of `jax.nn.softmax(x, axis)`.

    Args:
        x: Logits; a mean of -inf with zero variance marks a masked entry.
        axis: The axis of classes.

    Returns:
        Mean and variance of each probability, shaped like `x`.
    """
    # softmax_i = sigmoid(z_i - L_i) with L_i independent of z_i: one Gaussian, one integral.
    _, margin = _margins(x, axis)
    p = gauss_legendre(jax.nn.sigmoid, margin)
    return Gaussian(jnp.moveaxis(p.mean, -1, axis), jnp.moveaxis(p.var, -1, axis))


def softmin(x: Random, axis: int = -1) -> Gaussian:
    """Computes the moments of `jax.nn.softmax(-x, axis)`."""
    return softmax(negate(to_variance(x)), axis)


def log_softmax(x: Random, axis: int = -1) -> Gaussian:
    """Computes the moments of `jax.nn.log_softmax(x, axis)`."""
    clipped, margin = _margins(x, axis)
    p = gauss_legendre(jax.nn.log_sigmoid, margin)
    # log_sigmoid of a margin clipped at -1e4 is -1e4: what was cut off is added back exactly.
    return Gaussian(jnp.moveaxis(p.mean + clipped, -1, axis), jnp.moveaxis(p.var, -1, axis))


def logsumexp(x: Random, axis: int = -1) -> Gaussian:
    """Computes the moments of `jax.nn.logsumexp(x, axis)`, without the axis."""
    top, _, level = _centred(x, axis)
    total = _levels(level)[-1]
    mean, var = total.mean[..., 0] + top[..., 0], total.var[..., 0]
    nothing = jnp.all(jnp.isneginf(x.mean), axis)  # all of it is masked
    return Gaussian(jnp.where(nothing, -jnp.inf, mean), jnp.where(nothing, 0, var))


def _margins(x: Random, axis: int) -> tuple[Array, Gaussian]:
    """Returns what was clipped off the means, and each entry less the log-sum-exp of the others."""
    _, clipped, entries = _centred(x, axis)
    others = _leave_one_out(entries)
    return clipped, Gaussian(entries.mean - others.mean, entries.var + others.var)


def _centred(x: Random, axis: int) -> tuple[Array, Array, Gaussian]:
    """Returns the largest mean, what is clipped off each mean, and the entries less the largest."""
    x = to_variance(x)
    mean, var = jnp.moveaxis(x.mean, axis, -1), jnp.moveaxis(x.var, axis, -1)
    # Shifting all logits alike changes no probability, so the shift carries no derivative. Where
    # all means are minus infinity there is nothing to shift by.
    top = lax.stop_gradient(jnp.max(mean, -1, keepdims=True))
    top = jnp.where(jnp.isfinite(top), top, 0)
    kept = jnp.maximum(mean - top, _NOTHING)
    return top, (mean - top) - kept, Gaussian(kept, var)


def _log_add(x: Gaussian, y: Gaussian) -> Gaussian:
    """Computes the moments of log(exp(x) + exp(y)) for independent x and y.

    The sigmoid is a mixture of normal CDFs, so the expectations of softplus and of its derivatives
    are closed forms, and Var f(d) = sum_k v^k / k! (E f^(k)(d))^2, an expansion in Hermite
    polynomials, whose terms beyond the sixth are below 2 % of the standard deviation.
    """
    # The entry with the smaller mean makes d, so m <= 0: softplus(d) is then a small correction and
    # -m g >= 0, as `tail` takes it.
    swap = x.mean > y.mean
    m = jnp.where(swap, y.mean - x.mean, x.mean - y.mean)
    high_mean, high_var = jnp.where(swap, x.mean, y.mean), jnp.where(swap, x.var, y.var)
    v = x.var + y.var
    shape = (-1,) + (1,) * m.ndim
    weight = jnp.asarray(_MIXTURE_WEIGHTS, m.dtype)
    scale = jnp.asarray(_MIXTURE_SCALES, m.dtype).reshape(shape)
    # E Phi(s d) = Phi(s m / sqrt(1 + s^2 v)) for Gaussian d, and E softplus(d) is its integral up
    # to m, h(t) / g with h the expected exceedance.
    g = scale * lax.rsqrt(1 + scale * scale * v)
    t = near(-m * g)
    density, below, exceedance = tail(t)
    terms = [exceedance / g, below]
    power = density
    # Derivative j + 1 of Phi(g m) by m is g^(j + 1) phi(t) He_j(t), at t = -g m.
    for hermite in (1.0, t, t * t - 1, t * (t * t - 3), t**4 - 6 * t * t + 3):
        power = power * g
        terms.append(power * hermite)
    # One contraction over the mixture, so that XLA computes the terms once.
    gain, share, *slopes = jnp.tensordot(
        weight, jnp.stack(terms, 1), 1, precision=lax.Precision.HIGHEST
    )
    # Powers v^k / k! as a running factor: their terms are squares, so the sum is never negative.
    spread, factor = v * share * share, v
    for k, slope in enumerate(slopes):
        factor = factor * v / (k + 2)
        spread += factor * slope * slope
    # Cov(y, softplus(d)) = -v_y E sigmoid(d) by Stein's lemma.
    var = high_var * (1 - 2 * share) + spread
    return Gaussian(high_mean + gain, jnp.maximum(var, 0))


def _levels(entries: Gaussian) -> list[Gaussian]:
    """Returns the log-sums of a binary tree over the last axis, padded leaves first."""
    size = entries.shape[-1]
    # Padded to a power of two, so that every level is one vectorised call on pairs. Padding has an
    # exponential of zero: it adds nothing to a sum.
    padding = [(0, 0)] * (entries.ndim - 1) + [(0, (1 << (size - 1).bit_length()) - size)]
    level = Gaussian(
        jnp.pad(entries.mean, padding, constant_values=_NOTHING), jnp.pad(entries.var, padding)
    )
    levels = [level]
    while level.shape[-1] > 1:
        level = _log_add(
            Gaussian(level.mean[..., ::2], level.var[..., ::2]),
            Gaussian(level.mean[..., 1::2], level.var[..., 1::2]),
        )
        levels.append(level)
    return levels


def _leave_one_out(entries: Gaussian) -> Gaussian:
    """Computes for each entry of the last axis the log-sum-exp of all other entries."""
    levels = _levels(entries)
    root = levels[-1]
    outside = Gaussian(jnp.full_like(root.mean, _NOTHING), jnp.zeros_like(root.var))
    # Downwards: what lies outside a child is what lies outside its parent, and its sibling. Leaving
    # one out by subtraction from the total has no rule, for both share the entry.
    for depth, level in enumerate(reversed(levels[:-1])):
        sibling = Gaussian(*(_swap_pairs(m) for m in (level.mean, level.var)))
        parent = Gaussian(*(jnp.repeat(m, 2, -1) for m in (outside.mean, outside.var)))
        # Outside of the root lies nothing, whose log-sum with the sibling is the sibling.
        outside = sibling if depth == 0 else _log_add(parent, sibling)
    size = entries.shape[-1]
    return Gaussian(outside.mean[..., :size], outside.var[..., :size])


def _swap_pairs(value: Array) -> Array:
    pairs = value.reshape(*value.shape[:-1], -1, 2)
    return pairs[..., ::-1].reshape(value.shape)
