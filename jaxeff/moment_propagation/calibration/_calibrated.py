"""A posterior together with factors that correct the variances of its network's layers.

The factors are measured once (`calibrate_moments`) and travel with the posterior: `moments(f)`
takes the pair in place of the posterior, and so do `deploy` and bundles.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxeff.moment_propagation.values import (
    Activated,
    Gaussian,
    JointGaussian,
    is_gaussian,
    is_joint_gaussian,
    is_random,
)
from jaxeff.program import Layer

SHARED = "shared "
"""Begins the names of factors that were measured beside the pass with what positions share."""


def result_name(expected_slopes: bool, number: int | str = "") -> str:
    """Returns the name of the factors of a whole result, by its place among the results."""
    return f"{'result' if expected_slopes else 'linear result'} {number}"


# A pointwise function of one array gets its moments right from its input's.
_SCALED = {"linear", "matmul", "pooling", "reduction", "normalization"}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Calibrated:
    """A posterior with factors for the variances that `moments` gives.

    Attributes:
        posterior: A pytree with `Gaussian` leaves, as `moments(f)` takes it.
        factors: Mapping from site to the factors of its result's variance, `[channels]`: one
            factor per entry of its last axis. For `moments(f, correlations=True)` those of the
            function's own results, `"result 0"`, ..., and for `moments(f, method="linear")`
            `"linear result 0"`, ... Factors that depend on the input are `"inputs 0"`, ...,
            `[2 + n, 3 channels]`: the regression of a result (`_regression`) on n inputs. Those of
            results of the pass with what positions share are `"shared result 0"`, ..., or
            `"shared inputs 0"`, ...
        errors: Mapping from site to the median standard error of its factors, relative to them,
            that the number of samples left; `()` if it isn't known.
        unseen: Median error of the results' variances, relative, on inputs that factors weren't
            measured on (by cross-validation), and that number's own standard error; None if that
            isn't known.
    """

    posterior: Any
    factors: Mapping[str, Array]
    errors: tuple[tuple[str, float], ...] = field(default=(), metadata={"static": True})
    unseen: tuple[float, float] | None = field(default=None, metadata={"static": True})

    def __repr__(self) -> str:
        """Returns the number of sites, their names, and what error is left."""
        parts = [f"{len(self.factors)} sites: {', '.join(self.factors)}"]
        if self.errors:
            errors = [error for _, error in self.errors]
            middle, most = statistics.median(errors), max(errors)
            parts.append(f"standard error {middle:.1%}, at most {most:.1%}")
        if self.unseen is not None:
            parts.append("median error on unseen inputs {:.1%} ± {:.1%}".format(*self.unseen))
        return f"Calibrated({'; '.join(parts)})"


def factor_of(factors: Mapping[str, Array], site: str, result: Any) -> Array:
    """Returns the factors of a site's result, for its channels.

    Where it has another number of them than it was measured with (positions of a sequence of
    another length), they have their geometric mean in common.
    """
    factor = factors[site]
    if jnp.ndim(factor) and jnp.shape(factor) != jnp.shape(result)[-1:]:
        return jnp.exp(jnp.mean(jnp.log(factor)))
    return factor


def is_scaled(layer: Layer, result: Any) -> bool:
    """Returns whether a layer's result may have a factor."""
    return is_random(result) and not isinstance(result, Activated) and may_scale(layer)


def may_scale(layer: Layer) -> bool:
    """Returns whether a layer's result may have a factor if it is random."""
    # A pointwise function of one array is exact; of several arrays (a residual sum) the shared
    # noise is missing.
    joins = sum(v.is_data for v in layer.inputs) > 1
    return bool(layer.site) and (layer.kind in _SCALED or joins)


def of_shared_pass(factors: Mapping[str, Array]) -> Mapping[str, Array]:
    """Returns the factors that belong to results of the pass with what positions share."""
    return {name.removeprefix(SHARED): v for name, v in factors.items() if name.startswith(SHARED)}


def is_result(value: Any) -> bool:
    """Returns whether a value is a random result, with or without its covariances."""
    return is_gaussian(value) or is_joint_gaussian(value)


def with_result_factors(out: Any, factors: Mapping[str, Array], name: str) -> Any:
    """Multiplies the variances of results by their factors.

    Args:
        out: A pytree of results.
        factors: Factors by name.
        name: How the names begin of those that belong to the pass; the place of the result follows.
    """

    def scaled(i: int, result: Any) -> Any:
        factor = factors.get(f"{name}{i}")
        if factor is None or not is_result(result):
            return result
        if is_gaussian(result):
            return Gaussian(result.mean, result.var * factor)
        # Standard deviations scale, correlations stay: the covariance remains positive
        # semidefinite.
        root = jnp.broadcast_to(jnp.sqrt(factor), result.shape)
        return JointGaussian(result.mean, result.cov * root[..., None] * root[..., None, :])

    results, structure = jax.tree.flatten(out, is_leaf=is_result)
    return jax.tree.unflatten(structure, [scaled(i, r) for i, r in enumerate(results)])


def uncalibrated(args: Sequence[Any]) -> tuple[tuple[Any, ...], Mapping[str, Array]]:
    """Puts its posterior in the place of a `Calibrated` argument, and returns the factors."""
    found = [a for a in args if isinstance(a, Calibrated)]
    if len(found) > 1:
        raise TypeError(
            f"moments: {len(found)} arguments are Calibrated, and one may be; calibrate them "
            "together, as one pytree."
        )
    plain = tuple(a.posterior if isinstance(a, Calibrated) else a for a in args)
    return plain, found[0].factors if found else {}
