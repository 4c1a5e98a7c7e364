"""Total, aleatoric and epistemic uncertainty of a regression network with an aleatoric head.

The network predicts a mean and the logarithm of a variance; the total variance of its samples is
the mean of the predicted variances (aleatoric: the noise that no further data removes) plus the
variance of the predicted means (epistemic: what the samples disagree on), by the law of total
variance (Kendall & Gal 2017, arXiv 1703.04977).

Sharp edges: variances are in squared units of the target; ``standard_deviations`` of them add up in
squares only. A sample with a large log-variance dominates a mean of exponentials, so far from the
data the aleatoric part may be infinite.

```python
import jax.numpy as jnp

from jaxeff.uncertainty import aleatoric_mse, decompose_regression, prediction_mse

mean, log_variance = jnp.array([[0.9], [1.1]]), jnp.log(jnp.full((2, 1), 0.04))   # two samples
found = decompose_regression(jnp.stack([mean, log_variance], -1))
assert jnp.allclose(found.aleatoric, 0.04) and jnp.allclose(found.epistemic, 0.01)
inside = jnp.array([True])
std = found.aleatoric[:, 0] ** 0.5
assert jnp.allclose(prediction_mse(found.mean[:, 0], jnp.array([1.2]), inside), 0.04)
assert jnp.allclose(aleatoric_mse(std, jnp.array([0.2]), inside), 0, atol=1e-6)
```
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxeff.core import boolean_mask, real_array, validate, widened


class RegressionUncertainty(NamedTuple):
    """A predictive distribution and its variances, per input and target.

    Attributes:
        mean: Predictive mean.
        aleatoric: Mean of the predicted variances.
        epistemic: Variance of the predicted means.
    """

    mean: Float[Array, "*batch targets"]
    aleatoric: Float[Array, "*batch targets"]
    epistemic: Float[Array, "*batch targets"]

    @property
    def total(self) -> Float[Array, "*batch targets"]:
        """Variance of a new observation."""
        return self.aleatoric + self.epistemic


@validate(outputs=real_array(nan=True))
def decompose_regression(outputs: Float[Array, "samples *batch outputs"]) -> RegressionUncertainty:
    """Splits the uncertainty of a sampled network with an aleatoric head.

    Args:
        outputs: Network outputs of each sample: means in the first half of the last axis,
            log-variances in the second, as the likelihood ``"gaussian"`` of `jaxeff.bayes` reads
            them.

    Returns:
        Mean and variances, with one target for every two outputs.

    Raises:
        ValueError: An odd number of outputs.
    """
    if outputs.shape[-1] % 2:
        raise ValueError(
            f"means and log-variances need an even number of outputs, not {outputs.shape[-1]}"
        )
    means, log_variances = jnp.split(outputs, 2, axis=-1)
    # Law of total variance of the samples as they are: divided by their number, not by one less.
    return RegressionUncertainty(means.mean(0), jnp.exp(log_variances).mean(0), means.var(0))


@validate(mean=real_array(1, nan=True), target=real_array(1, nan=True), inside=boolean_mask)
def prediction_mse(
    mean: Float[Array, " n"], target: Float[Array, " n"], inside: Bool[Array, " n"]
) -> Float[Array, ""]:
    """Computes the mean squared error of the predictive mean where there are data.

    Args:
        mean: Predictive mean.
        target: The target without noise.
        inside: Mask of the points where data lie; the others don't count.
    """
    _check_lengths("prediction_mse", mean=mean, target=target, inside=inside)
    return jnp.square(widened(mean - target)).mean(where=inside)


@validate(std=real_array(1, nan=True), true_std=real_array(1, nan=True), inside=boolean_mask)
def aleatoric_mse(
    std: Float[Array, " n"], true_std: Float[Array, " n"], inside: Bool[Array, " n"]
) -> Float[Array, ""]:
    """Computes the mean squared error of the predicted noise deviation where there are data.

    Args:
        std: Predicted: the square root of `RegressionUncertainty.aleatoric`.
        true_std: The noise that was added; may be anything, NaN too, where there are no data.
        inside: Mask of the points where data lie.
    """
    _check_lengths("aleatoric_mse", std=std, true_std=true_std, inside=inside)
    # Replaced before the difference too: NaN outside would reach the gradient past the mask.
    return jnp.square(widened(std - jnp.where(inside, true_std, 0))).mean(where=inside)


def _check_lengths(where: str, **arrays: Array) -> None:
    """Checks that there is one entry for each point."""
    if len({len(array) for array in arrays.values()}) > 1:
        lengths = ", ".join(f"{name} {len(array)}" for name, array in arrays.items())
        raise ValueError(f"{where}: one entry per point is needed, but there are {lengths}.")
