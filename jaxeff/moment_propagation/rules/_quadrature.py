"""Moments of any function of one Gaussian by quadrature, vectorised over the nodes.

Two rules. `gauss_hermite` (32 nodes) is exact for polynomials up to degree 63 and the default for
an elementwise region nothing is known about. `gauss_legendre` splits the line at given kinks and
at the centre of an activation, and holds its accuracy where Gauss-Hermite loses it: at kinks and
at standard deviations far larger than the function's own scale (a tanh seen from far away is a
step).

Both measure f from f(m) and, below a standard deviation of about the cube root of the machine
epsilon (times 1 + |m|), take difference quotients at that floor: means, variances and their
gradients tend to the delta method's (f + v f''/2 and v f'^2) and are finite at zero variance.

Sharp edges
- Gauss-Hermite of a function with a kink is off by about 5e-3 of a standard deviation times the
  jump in slope. Functions with a closed form in `closed_forms` and `piecewise` don't come here.
- Outside a function's domain there are no moments. Where the function is defined at the mean, and
  less than `OUTSIDE` of the mass lies where it is not, they are those given that it is defined;
  above that the result is NaN.
- An infinite mean is a certain value, as is an infinite result: they have no variance.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxeff.moment_propagation.values import Gaussian, Random, is_random, to_variance

HERMITE_NODES = 32
LEGENDRE_NODES = 20
_INV_SQRT_2PI = 0.3989422804014327
OUTSIDE = 1e-3
_REACH = 6.0  # standard deviations; 2e-9 of the mass lies outside


def gauss_hermite(
    fn: Callable[[Array], Any], x: Random, nodes: int = HERMITE_NODES, limited: bool = False
) -> Any:
    """Computes the moments of `fn(x)` by Gauss-Hermite quadrature.

    Args:
        fn: An elementwise function of one array; may return any pytree of arrays, each shaped
            like the input or broadcast from it.
        x: Random input.
        nodes: Number of nodes (physicists' rule of `numpy.polynomial.hermite`).
        limited: Whether `fn` may be undefined somewhere; costs a second evaluation.

    Returns:
        `fn`'s output tree with a `Gaussian` for each floating-point leaf; others are evaluated
        at the mean.
    """
    roots, masses = np.polynomial.hermite.hermgauss(nodes)
    x = to_variance(x)
    shape = (nodes,) + (1,) * x.ndim
    # From the weight exp(-t^2) to the normal density: z = sqrt(2) t, masses over sqrt(pi).
    z = jnp.asarray(roots * np.sqrt(2), x.dtype).reshape(shape)
    weight = jnp.asarray(masses / np.sqrt(np.pi), x.dtype).reshape(shape)
    return _integrate(fn, x, [(z, weight)], limited)


def gauss_legendre(
    fn: Callable[[Array], Any],
    x: Random,
    kinks: Sequence[float] = (0.0,),
    nodes: int = LEGENDRE_NODES,
    limited: bool = False,
    above: float | None = None,
) -> Any:
    """Computes the moments of `fn(x)` by Gauss-Legendre quadrature of each piece between kinks.

    Args:
        fn: Same as for `gauss_hermite`.
        x: Random input.
        kinks: Ascending points where `fn` isn't smooth or changes fastest. Jumps give inaccurate
            gradients: use `piecewise` for those.
        nodes: Nodes per piece; there is one more piece than kinks.
        limited: Same as for `gauss_hermite`.
        above: A bound below the mean; mass under the bound counts as if it were at the mean.

    Returns:
        As `gauss_hermite`.
    """
    roots, masses = np.polynomial.legendre.leggauss(nodes)
    x = to_variance(x)
    std = _floored_std(x)
    shape = (nodes,) + (1,) * x.ndim
    t = jnp.asarray(0.5 * (roots + 1), x.dtype).reshape(shape)
    weight = jnp.asarray(0.5 * masses, x.dtype).reshape(shape)
    reach = jnp.full(x.shape, _REACH, x.dtype)
    # Beyond the reach there is too little mass to count in float32; a kink out there makes a piece
    # of width zero, whose nodes weigh nothing.
    lowest = -reach
    if above is not None:
        lowest = lax.stop_gradient(jnp.maximum(lowest, (above - x.mean) / std))
    # The integral doesn't depend on where it is split, so neither should its gradient.
    inner = [lax.stop_gradient(jnp.clip((k - x.mean) / std, lowest, _REACH)) for k in kinks]
    ends = [lowest, *inner, reach]
    pieces = []
    # The density is part of the weight, so each piece integrates a smooth function.
    for lo, hi in itertools.pairwise(end[None] for end in ends):
        z = lo + (hi - lo) * t
        pieces.append((z, weight * (hi - lo) * jnp.exp(-0.5 * z * z) * _INV_SQRT_2PI))
    return _integrate(fn, x, pieces, limited)


def gauss_pair(
    fn: Callable[[Array, Array], Any],
    x: Random,
    y: Random,
    kinks: Sequence[float] = (0.0,),
    limited: bool = False,
) -> Any:
    """Computes the moments of `fn(x, y)` for independent operands.

    Legendre over `x`, Hermite over `y`: about eight times the cost of `gauss_legendre`.

    Args:
        fn: A pointwise function of two arrays of one shape.
        x: The operand in which `fn` may have kinks.
        y: The operand in which `fn` is close to a polynomial (a slope, a scale); 8 nodes.
        kinks: Kinks in `x`.
        limited: Same as for `gauss_hermite`.

    Returns:
        `fn`'s output tree with a `Gaussian` for each floating-point leaf.
    """

    def given(value: Array) -> Any:
        moments = gauss_legendre(lambda point: fn(point, value), x, kinks, limited=limited)
        return jax.tree.map(lambda g: (g.mean, g.var), moments, is_leaf=is_random)

    outer = gauss_hermite(given, y, 8)
    # The law of total variance: variance of the means plus mean of the variances.
    return jax.tree.map(
        lambda pair: Gaussian(pair[0].mean, pair[0].var + pair[1].mean),
        outer,
        is_leaf=lambda t: isinstance(t, tuple) and len(t) == 2 and is_random(t[0]),
    )


def _floored_std(x: Gaussian) -> Float[Array, "*shape"]:
    """Returns the standard deviation, or eps^(1/3) (1 + |m|) where that is larger."""
    mean = lax.stop_gradient(x.mean)
    mean = jnp.where(jnp.isfinite(mean), mean, 0)
    # The best step of a central difference: truncation, h^2, balances rounding, eps / h.
    floor = float(jnp.finfo(x.dtype).eps) ** (1 / 3) * (1 + jnp.abs(mean))
    # The maximum is inside of the root: the gradient at a variance of zero is zero, not infinite.
    return jnp.sqrt(jnp.maximum(x.var, floor * floor))


def _inside(
    fn: Callable[[Array], Any], mean: Array, points: Sequence[Array], pieces: Sequence[tuple]
) -> tuple[list[Array], list[tuple]]:
    """Keeps the nodes at which a function is defined, with weights that sum to one again.

    Nodes outside are moved to the mean, so that no derivative passes through what is undefined.
    """

    def defined(at: Array) -> Array:
        floats = [
            v for v in jax.tree.leaves(jax.vmap(fn)(at)) if jnp.issubdtype(v.dtype, jnp.floating)
        ]
        return functools.reduce(
            jnp.logical_and, map(jnp.isfinite, floats), jnp.full(at.shape, True)
        )

    # Where a function is defined is found by evaluating it: a second time, at the same nodes.
    masks = [defined(lax.stop_gradient(point)) for point in points]
    weights = [jnp.where(mask, w, 0) for mask, (_, w) in zip(masks, pieces, strict=True)]
    inside = sum(jnp.sum(w, 0) for w in weights)
    scale = jnp.where(inside > 1 - OUTSIDE, 1 / inside, jnp.nan)
    kept = [jnp.where(mask, point, mean[None]) for mask, point in zip(masks, points, strict=True)]
    return kept, [(z, w * scale[None]) for (z, _), w in zip(pieces, weights, strict=True)]


def _integrate(
    fn: Callable[[Array], Any], x: Gaussian, pieces: Sequence[tuple], limited: bool
) -> Any:
    """Computes the moments of fn(mean + std z); (z, weight) pairs have the nodes in front."""
    std = _floored_std(x)
    # Below the floor the sums are difference quotients at the floor, scaled by this ratio: the mean
    # f + v f''/2 and the variance v f'^2 of the delta method.
    ratio = x.var / (std * std)  # 1 above the floor
    centre = fn(x.mean)
    # A masked score is minus infinity at every node.
    known = jnp.isfinite(x.mean)[None]
    points = [jnp.where(known, x.mean[None] + std[None] * z, x.mean[None]) for z, _ in pieces]
    if limited:
        points, pieces = _inside(fn, x.mean, points, pieces)
    values = [jax.vmap(fn)(point) for point in points]

    def moments(at_mean: Array, *at_nodes: Array) -> Array | Gaussian:
        if not jnp.issubdtype(at_mean.dtype, jnp.floating):
            return at_mean
        first, second = jnp.zeros_like(at_mean), jnp.zeros_like(at_mean)
        for value, (_, weight) in zip(at_nodes, pieces, strict=True):
            # Infinite at the mean and at the node alike: no difference; inf - inf would be NaN.
            same = jnp.isinf(value) & (value == at_mean[None])
            delta = jnp.where(same, 0, value - at_mean[None])
            first += jnp.sum(weight * delta, 0)
            second += jnp.sum(weight * delta * delta, 0)
        return Gaussian(at_mean + ratio * first, ratio * jnp.maximum(second - first * first, 0))

    return jax.tree.map(moments, centre, *values)
