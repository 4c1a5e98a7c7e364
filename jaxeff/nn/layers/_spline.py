"""A learned activation function: a cubic B-spline on top of SiLU.

The edge function of Kolmogorov-Arnold networks (Liu et al. 2024, arXiv 2404.19756), used as an
activation of a dense layer: ``base * silu(x) + sum_i coefficients_i B_i(x)``. Base and coefficients
are plain parameters, so they are trained, inferred by SVI or MCMC, or held, as any weights are.

Sharp edge: the splines cover ``limits`` only. Three knot spacings beyond them the last one has
ended, and the function is ``base * silu(x)``.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float


def cubic_basis(
    x: Float[Array, "*n"], intervals: int, limits: tuple[float, float]
) -> Float[Array, "*n basis"]:
    """Evaluates the cubic B-splines on evenly spaced knots, at ``x``.

    Args:
        x: Points at which to evaluate the splines.
        intervals: Number of knot intervals between the limits.
        limits: First and last knot.

    Returns:
        ``intervals + 3`` values per input, centred at the knots and one spacing beyond both ends.
        Between the limits they are at least 0 and add up to 1.
    """
    low, high = limits
    spacing = (high - low) / intervals
    centres = jnp.arange(-1, intervals + 2, dtype=x.dtype)
    centres = centres.reshape((1,) * x.ndim + (-1,))
    distance = jnp.abs((x[..., None] - low) / spacing - centres)
    # The cardinal cubic B-spline by truncated powers of the distance from its centre. Only four of
    # them are not zero at a point, but all are evaluated: no gather, and gradients throughout.
    return (jax.nn.relu(2 - distance) ** 3 - 4 * jax.nn.relu(1 - distance) ** 3) / 6


class SplineActivation(nnx.Module):
    """A learned function of one variable, the same for all units or one for each."""

    def __init__(
        self,
        features: int | None = None,
        intervals: int = 8,
        limits: tuple[float, float] = (-4.0, 4.0),
        scale: float = 0.1,
        *,
        rngs: nnx.Rngs,
    ):
        """Initializes the function near SiLU.

        Args:
          features: Number of units of the layer for a function each; None for one that all share.
          intervals: Knot intervals between the limits.
          limits: Range of inputs that the spline covers.
          scale: Standard deviation of the initial coefficients.
          rngs: Keys for the initial coefficients.

        Raises:
          ValueError: Limits out of order, or no interval.
        """
        if not limits[0] < limits[1] or intervals < 1:
            raise ValueError(
                "SplineActivation needs rising limits and an interval or more, not "
                f"{limits} and {intervals}."
            )
        self.intervals, self.limits = intervals, limits
        units = () if features is None else (features,)
        # Splines of order 3 on n intervals: n + 3 of them are not zero somewhere in between.
        draw = jax.random.normal(rngs.params(), (intervals + 3, *units))
        self.base = nnx.Param(jnp.ones(units))
        self.coefficients = nnx.Param(scale * draw)

    def __call__(self, x: Float[Array, "*batch features"]) -> Float[Array, "*batch features"]:
        """Applies the function to every element."""
        basis = cubic_basis(x, self.intervals, self.limits)
        coefficients = jnp.moveaxis(self.coefficients[...], 0, -1)
        # The last axis counts splines, the one before it units, if each has a function of its own.
        coefficients = jax.lax.broadcast_to_rank(coefficients, basis.ndim)
        base = jax.lax.broadcast_to_rank(self.base[...], x.ndim)
        return base * jax.nn.silu(x) + (basis * coefficients).sum(-1)
