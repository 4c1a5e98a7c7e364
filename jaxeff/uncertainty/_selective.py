"""Selective prediction: an uncertain input is left to somebody else.

Risk is the mean loss on what is accepted, coverage the share that is. Losses may be errors (0 and
1) or any numbers; inputs that are equally uncertain are accepted in random order, so what is
computed is the expectation over it.

```python
import jax.numpy as jnp
from jaxeff.uncertainty import (
    aurc, coverage_threshold, excess_aurc, risk_coverage, selective
)

uncertain, wrong = jnp.array([0.1, 0.2, 0.7, 0.9]), jnp.array([0, 0, 1, 0])
curve = risk_coverage(uncertain, wrong)              # risk 0, 0, 1/3, 1/4
aurc(uncertain, wrong)                               # its mean
excess_aurc(uncertain, wrong)                        # above the best order's
threshold = coverage_threshold(uncertain, 0.5)       # accepts the half that is surest
selective(lambda x: 2 * x, lambda y: y / 2, threshold)(uncertain)  # outputs, and a mask
```

Geifman and El-Yaniv, "Selective Classification for Deep Neural Networks", NeurIPS 2017,
arXiv 1705.08500; Geifman, Uziel, El-Yaniv, "Bias-Reduced Uncertainty Estimation for Deep Neural
Classifiers", ICLR 2019, arXiv 1805.08206, for both areas.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxeff.core import finite, function_of_form, number, real_array, validate


class RiskCoverage(NamedTuple):
    """Risk by coverage.

    Attributes:
        coverage: Shares that are accepted, `[n]`: 1/n, 2/n, ... 1.
        risk: Mean loss on those, `[n]`.
    """

    coverage: Float[Array, " n"]
    risk: Float[Array, " n"]


@validate(uncertainty=real_array(1, nan=True), losses=real_array(1, nan=True))
def risk_coverage(uncertainty: Float[Array, " n"], losses: Float[Array, " n"]) -> RiskCoverage:
    """Computes the risk when the k least uncertain inputs are accepted, for every k.

    Args:
        uncertainty: A score of each input; only its order matters.
        losses: Loss of each prediction, such as 1 where it is wrong.

    Returns:
        The curve; NaN where a score or a loss is.

    Raises:
        ValueError: There is not one loss for each score.
    """
    losses = _losses("risk_coverage", uncertainty, losses)
    uncertainty = jnp.asarray(uncertainty)
    order = jnp.argsort(uncertainty)
    scores = uncertainty[order]
    sums = jnp.concatenate([jnp.zeros(1, losses.dtype), jnp.cumsum(losses[order])])
    # Of equal scores every one counts with their mean: what random order gives on average.
    first = jnp.searchsorted(scores, scores, side="left")
    last = jnp.searchsorted(scores, scores, side="right")
    expected = (sums[last] - sums[first]) / (last - first).astype(losses.dtype)
    accepted = jnp.arange(1, len(losses) + 1, dtype=losses.dtype)
    unknown = jnp.isnan(uncertainty).any()
    risk = jnp.where(unknown, jnp.nan, jnp.cumsum(expected) / accepted)
    return RiskCoverage(accepted / len(losses), risk)


@validate(uncertainty=real_array(1, nan=True), losses=real_array(1, nan=True))
def aurc(uncertainty: Float[Array, " n"], losses: Float[Array, " n"]) -> Float[Array, ""]:
    """Computes the area under the risk-coverage curve: the mean risk over all coverages.

    Args:
        uncertainty: A score of each input.
        losses: Loss of each prediction.

    Returns:
        0 is best; a score that says nothing has the mean loss.
    """
    return risk_coverage(uncertainty, losses).risk.mean()


@validate(uncertainty=real_array(1, nan=True), losses=real_array(1, nan=True))
def excess_aurc(uncertainty: Float[Array, " n"], losses: Float[Array, " n"]) -> Float[Array, ""]:
    """Computes how far `aurc` lies above that of the best order there is (E-AURC).

    Args:
        uncertainty: A score of each input.
        losses: Loss of each prediction.

    Returns:
        0 where the losses rise with the score, whatever the model's accuracy.
    """
    best = _losses("excess_aurc", uncertainty, losses)
    return aurc(uncertainty, losses) - aurc(best, losses)


@validate(uncertainty=real_array(1), coverage=number(0, 1, above=0))
def coverage_threshold(
    uncertainty: Float[Array, " n"], coverage: float | Float[Array, ""]
) -> Float[Array, ""]:
    """Computes the score up to which at least a share of inputs is accepted.

    Args:
        uncertainty: Scores of held-out inputs.
        coverage: The share.
    """
    # A millionth is spared, so that 0.7 of 10 is 7 in float32.
    k = jnp.ceil(len(uncertainty) * jnp.asarray(coverage, float) * (1 - 1e-6)).astype(int)
    return jnp.sort(jnp.asarray(uncertainty))[jnp.maximum(k, 1) - 1]


@validate(
    f=function_of_form("f(*args)"), score=function_of_form("score(outputs)"), threshold=finite
)
def selective(
    f: Callable[..., Any],
    score: Callable[[Any], Float[Array, " batch"]],
    threshold: float | Float[Array, ""],
) -> Callable[..., tuple[Any, Bool[Array, " batch"]]]:
    """Makes a function say which of its predictions to take.

    Args:
        f: A pure function such as ``f(params, x)`` or ``jaxeff.moments(f)``.
        score: Uncertainty of each output.
        threshold: The largest that is accepted, such as `coverage_threshold` finds.

    Returns:
        A function of the same arguments: the outputs, and a mask of those that are accepted. It
        jits, vmaps and deploys.
    """

    def g(*args: Any, **kwargs: Any) -> tuple[Any, Array]:
        outputs = f(*args, **kwargs)
        return outputs, score(outputs) <= threshold

    return g


def _losses(where: str, uncertainty: Any, losses: Any) -> Array:
    if jnp.shape(uncertainty) != jnp.shape(losses):
        raise ValueError(
            f"{where}: one loss for each score is needed, not {jnp.shape(losses)} for "
            f"{jnp.shape(uncertainty)}"
        )
    losses = jnp.asarray(losses)
    return losses if jnp.issubdtype(losses.dtype, jnp.floating) else losses.astype(float)
