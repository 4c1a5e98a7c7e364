"""Moments of linear layers and of contractions of two random arrays.

Any operation that is linear in each operand and whose outputs are sums of products, each pair of
entries met once (`dot_general`, `conv_general_dilated`, with whatever stride, padding, dilation
and groups), propagates moments by calling that same operation on means and variances:

    mean = op(E[x], E[w])
    var  = op(E[x^2], Var[w]) + op(Var[x], E[w]^2)        mean-variance form
         = op(E[x^2], E[w^2]) - op(E[x]^2, E[w]^2)        second-raw-moment form

(Klein's thesis, eqs. (8.1), (8.3) and (8.9); Roth 2021). Both cost three contractions. The first is
the default because its terms are all non-negative: in float32 the second loses the variance when it
is below about 1e-7 mean^2. A deterministic operand drops a contraction: fixed weights leave
`op(Var[x], w^2)`, a fixed input (the first layer) `op(x^2, Var[w])`.

Sharp edges
- Independence of all entries is assumed. For p.v in attention it is wrong to the extent that the
  weights of one row sum to one.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array

from jaxeff.moment_propagation.values import Gaussian, Random, RawMoments, is_random

Bilinear = Callable[[Array, Array], Array]


def bilinear(op: Bilinear, x: Array | Random, w: Array | Random) -> Array | Gaussian:
    """Propagates moments through an operation bilinear in `x` and `w`.

    Args:
        op: A function of two arrays, linear in each, whose outputs are sums of distinct products.
        x: First operand, random or not. `RawMoments` selects the second-raw-moment form where
            both operands are random.
        w: Second operand, random or not.

    Returns:
        The moments of `op(x, w)`, or `op(x, w)` itself where nothing is random.
    """
    if not is_random(x):
        if not is_random(w):
            return op(x, w)
        # The first layer's case, of two contractions (Klein's thesis, eqs. (8.10) and (8.11)).
        return Gaussian(op(x, w.mean), op(x * x, w.var))
    if not is_random(w):
        return Gaussian(op(x.mean, w), op(x.var, w * w))
    mean = op(x.mean, w.mean)
    if isinstance(x, RawMoments):
        # The difference of raw moments can round to a negative variance, whose root is NaN.
        second = op(x.second_moment, w.second_moment)
        return Gaussian(mean, jnp.maximum(second - op(x.mean * x.mean, w.mean * w.mean), 0))
    return Gaussian(mean, op(x.second_moment, w.var) + op(x.var, w.mean * w.mean))
