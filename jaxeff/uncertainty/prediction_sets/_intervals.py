"""Scores for intervals of a regression: absolute and normalized residuals, and quantiles (CQR).

Outputs and targets are ``[batch]``, or ``[batch, 1]`` with one target each: the guarantee is for
one number at a time.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxeff.core import register_setting
from jaxeff.moment_propagation import is_gaussian
from jaxeff.uncertainty.prediction_sets._method import ConformalMethod


class PredictionInterval(NamedTuple):
    """An interval for each example.

    Attributes:
        low: Lower ends, `[batch]`.
        high: Upper ends, `[batch]`; infinite where too few examples were held out.
    """

    low: Float[Array, " batch"]
    high: Float[Array, " batch"]


class _Intervals(ConformalMethod):
    def contains(self, region: Any, targets: Any) -> Bool[Array, " batch"]:
        """Tells whether each target lies in its interval, ends included."""
        targets = _one_each("targets", targets)
        return (region.low <= targets) & (targets <= region.high)


@register_setting
@dataclass(frozen=True)
class AbsoluteResidual(_Intervals):
    """Intervals of one width around the prediction.

    Lei et al., "Distribution-Free Predictive Inference for Regression", JASA 113 (2018),
    arXiv 1604.04173, algorithm 2.
    """

    def scores(self, outputs: Any, targets: Any) -> Float[Array, " batch"]:
        """Computes the absolute residual."""
        return jnp.abs(_one_each("targets", targets) - _mean(outputs))

    def region(self, outputs: Any, threshold: Float[Array, "..."]) -> PredictionInterval:
        """Returns the prediction with as much below as above."""
        mean = _mean(outputs)
        return PredictionInterval(mean - threshold, mean + threshold)


@register_setting
@dataclass(frozen=True)
class NormalizedResidual(_Intervals):
    """Intervals as wide as a multiple of the predicted standard deviation.

    Outputs are a `jaxeff.Gaussian`, as `jaxeff.moments` returns; add the variance of the noise to
    its variance if the network predicts one.

    Lei et al. 2018 (arXiv 1604.04173), section 5.2.
    """

    def scores(self, outputs: Any, targets: Any) -> Float[Array, " batch"]:
        """Computes the residual in predicted standard deviations."""
        mean, std = _mean(outputs), _std(outputs)
        return jnp.abs(_one_each("targets", targets) - mean) / std

    def region(self, outputs: Any, threshold: Float[Array, "..."]) -> PredictionInterval:
        """Returns the mean, and as many standard deviations on both sides."""
        mean, width = _mean(outputs), threshold * _std(outputs)
        return PredictionInterval(mean - width, mean + width)


@register_setting
@dataclass(frozen=True)
class CQR(_Intervals):
    """Two predicted quantiles, moved outwards (or inwards) by what they missed.

    Outputs are ``[batch, 2]``: the lower and the upper quantile.

    Romano, Patterson, Candes, "Conformalized Quantile Regression", NeurIPS 2019, arXiv 1905.03222,
    eq. 6.
    """

    def scores(self, outputs: Any, targets: Any) -> Float[Array, " batch"]:
        """Computes how far the target lies outside the quantiles; inside it is negative."""
        low, high = _quantiles(outputs)
        targets = _one_each("targets", targets)
        return jnp.maximum(low - targets, targets - high)

    def region(self, outputs: Any, threshold: Float[Array, "..."]) -> PredictionInterval:
        """Returns the moved quantiles; an interval whose ends cross is empty."""
        low, high = _quantiles(outputs)
        return PredictionInterval(low - threshold, high + threshold)


def _one_each(name: str, values: Any) -> Array:
    values = jnp.asarray(values)
    if values.ndim == 2 and values.shape[1] == 1:
        return values[:, 0]
    if values.ndim != 1:
        raise TypeError(
            f"conformal intervals: {name} must be [batch] or [batch, 1], not {values.shape}"
        )
    return values


def _mean(outputs: Any) -> Array:
    return _one_each("outputs", outputs.mean if is_gaussian(outputs) else outputs)


def _std(outputs: Any) -> Array:
    if not is_gaussian(outputs):
        raise TypeError(
            "NormalizedResidual: outputs must be a Gaussian, as jaxeff.moments(f) returns, not a "
            f"{type(outputs).__name__}; AbsoluteResidual() needs no deviation"
        )
    return _one_each("outputs", outputs.std)


def _quantiles(outputs: Any) -> tuple[Array, Array]:
    if is_gaussian(outputs) or jnp.ndim(outputs) != 2 or jnp.shape(outputs)[1] != 2:
        raise TypeError("CQR: outputs must be lower and upper quantiles, [batch, 2]")
    return outputs[:, 0], outputs[:, 1]
