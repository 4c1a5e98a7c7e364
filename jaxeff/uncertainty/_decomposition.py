"""Total, aleatoric and epistemic uncertainty: of samples, of Dirichlet networks, of regressions.

```python
import jax
import jax.numpy as jnp
from jaxeff.uncertainty import decompose, decompose_logits, mutual_information
from jaxeff.uncertainty import predictive_entropy, predictive_log_probs, softmax_entropy

agree = jnp.array([[0.5, 0.5], [0.5, 0.5]])           # two samples of one prediction: ambiguous
disagree = jnp.array([[0.99, 0.01], [0.01, 0.99]])    # each is sure, of another class
assert predictive_entropy(agree) == predictive_entropy(disagree)             # total: log 2
assert softmax_entropy(agree) > softmax_entropy(disagree)                    # aleatoric
assert mutual_information(agree) < 1e-6 < mutual_information(disagree)        # epistemic
parts = decompose(disagree)
assert jnp.allclose(parts.total, parts.aleatoric + parts.epistemic, atol=1e-6)

logits = jax.random.normal(jax.random.key(0), (30, 5, 10))          # samples, batch, classes
assert decompose_logits(logits).epistemic.shape == (5,)
assert jnp.allclose(jnp.exp(predictive_log_probs(logits)).sum(-1), 1, atol=1e-5)
```
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import digamma, entr, logsumexp
from jaxtyping import Array, Bool, Float, Int

from jaxeff import core


def is_first(log_probs: Float[Array, "*batch classes"]) -> Array:
    """Tells which class is the most probable; of equals the first."""
    places = jnp.arange(log_probs.shape[-1]).reshape(*[1] * (log_probs.ndim - 1), -1)
    return places == log_probs.argmax(-1, keepdims=True)


def log_complement(log_probs: Float[Array, "*batch classes"]) -> Float[Array, "*batch classes"]:
    """Computes `log(1 - p)` of each class."""
    first = is_first(log_probs)
    beside_first = logsumexp(jnp.where(first, -jnp.inf, log_probs), axis=-1, keepdims=True)
    # Any other class has half of the probability at most.
    beside_others = jnp.log1p(-jnp.exp(jnp.where(first, -jnp.inf, log_probs)))
    return jnp.where(first, beside_first, beside_others)


def log_odds_against(
    logits: Float[Array, "*batch classes"], classes: Int[Array, "*batch 1"]
) -> Float[Array, "*batch 1"]:
    """Computes `log((1 - p) / p)` of one class each, which never rounds to minus infinity."""
    places = jax.lax.broadcasted_iota(int, logits.shape, logits.ndim - 1)
    others = logsumexp(logits, axis=-1, keepdims=True, where=places != classes)
    return others - jnp.take_along_axis(logits, classes, axis=-1)


class Decomposition(NamedTuple):
    """Uncertainty per input, in nats.

    Of a classifier that predicts with several samples the total uncertainty is the entropy of the
    mean prediction; the part that every sample agrees on is aleatoric (the mean entropy of the
    samples: softmax entropy, SME); the rest, their disagreement, is epistemic (mutual information,
    MI, between label and weights; Houlsby et al. 2011, arXiv 1112.5745; Depeweg et al. 2018, arXiv
    1710.07283). All in nats, so 0 to log(classes).

    Probabilities that are no floating-point array are refused by a TypeError, and rows that don't
    sum to one, as of logits, by a ValueError where they are concrete.

    Sharp edges:
        A sample may put probability 0 on a class (0 log 0 counts as 0), but the gradient of an
        entropy is infinite there: differentiate with respect to logits.
        The difference of two entropies can round to less than zero, so the epistemic part is cut at
        zero; near there its error is a few units of float rounding.

    Attributes:
        total: Predictive entropy, ``[batch]``.
        aleatoric: Softmax entropy (SME), ``[batch]``.
        epistemic: Mutual information (MI), ``[batch]``; ``total - aleatoric``, not below zero.
    """

    total: Float[Array, "*batch"]
    aleatoric: Float[Array, "*batch"]
    epistemic: Float[Array, "*batch"]


def predictive_entropy(probs: Float[Array, "samples *batch classes"]) -> Float[Array, "*batch"]:
    """Computes the entropy of the mean prediction, in nats.

    Args:
        probs: Class probabilities of each sample.

    Returns:
        The total uncertainty of each input.
    """
    core.check_probs("predictive_entropy: probs", probs)
    return entr(probs.mean(0)).sum(-1)


def softmax_entropy(probs: Float[Array, "samples *batch classes"]) -> Float[Array, "*batch"]:
    """Computes the mean entropy of the samples' predictions (SME), in nats.

    Args:
        probs: Class probabilities of each sample.

    Returns:
        The aleatoric uncertainty of each input.
    """
    core.check_probs("softmax_entropy: probs", probs)
    return entr(probs).sum(-1).mean(0)


def mutual_information(probs: Float[Array, "samples *batch classes"]) -> Float[Array, "*batch"]:
    """Computes the mutual information between label and sample (MI), in nats, zero or more.

    Args:
        probs: Class probabilities of each sample.

    Returns:
        The epistemic uncertainty of each input.
    """
    return decompose(probs).epistemic


def decompose(probs: Float[Array, "samples *batch classes"]) -> Decomposition:
    """Computes total, aleatoric and epistemic uncertainty from class probabilities.

    Args:
        probs: Class probabilities of each sample; those of one sample have no epistemic part.

    Returns:
        The three uncertainties of each input.
    """
    core.check_probs("probs", probs)
    # Entropy is concave, so the entropy of the mean is at least the mean entropy (Jensen): only
    # rounding makes the difference negative. `entr` counts 0 log 0 as 0.
    total, aleatoric = entr(probs.mean(0)).sum(-1), entr(probs).sum(-1).mean(0)
    return Decomposition(total, aleatoric, jnp.maximum(total - aleatoric, 0))


@core.validate(logits=core.logits_array())
def decompose_logits(logits: Float[Array, "samples *batch classes"]) -> Decomposition:
    """Computes total, aleatoric and epistemic uncertainty from logits.

    The same as `decompose` of the softmax, in log space throughout, so that gradients stay finite
    where a probability underflows.

    Args:
        logits: Logits of each sample.

    Returns:
        The three uncertainties of each input.
    """
    log_probs = jax.nn.log_softmax(logits)
    total = entropy(predictive_log_probs(logits))
    aleatoric = entropy(log_probs).mean(0)
    return Decomposition(total, aleatoric, jnp.maximum(total - aleatoric, 0))


@core.validate(logits=core.logits_array())
def predictive_log_probs(
    logits: Float[Array, "samples *batch classes"],
) -> Float[Array, "*batch classes"]:
    """Computes the logarithm of the mean of the samples' class probabilities, in log space.

    Args:
        logits: Logits of each sample.

    Returns:
        Log-probabilities of the prediction, as `jaxeff.uncertainty.nll` and the other scores of
        point predictions take them (``exp`` of it where they want probabilities).
    """
    log_probs = jax.nn.log_softmax(logits)
    # log(1/n sum exp) = logsumexp - log n: no probability is formed, so none underflows.
    return logsumexp(log_probs, axis=0) - jnp.log(jnp.asarray(len(logits), log_probs.dtype))


def entropy(log_probs: Array) -> Array:
    """Computes the entropy over the last axis; -inf adds nothing, and no NaN to the gradient."""
    # Of a class with more than half of the probability the logarithm rounds to zero, at the latest
    # where the others have less than 6e-8 together; of what they have it is exact.
    first = is_first(log_probs)
    others = jnp.exp(jnp.where(first, -jnp.inf, log_probs)).sum(-1, keepdims=True)
    is_sure = first & (others < 0.5)
    log_probs = jnp.where(is_sure, jnp.log1p(-jnp.where(others < 0.5, others, 0)), log_probs)
    finite = jnp.isfinite(log_probs)
    # Replaced before it is used: a `where` around the product alone would leave 0 * inf in the
    # derivative of the branch that it doesn't take.
    safe = jnp.where(finite, log_probs, 0)
    # An infinite logit makes NaN, which must stay visible.
    return -jnp.where(finite | jnp.isnan(log_probs), jnp.exp(log_probs) * safe, 0).sum(-1)


@core.validate(
    outputs=core.real_array(nan=True), activation=core.function_of_form("f(outputs) -> evidence")
)
def evidence(
    outputs: Float[Array, "*batch classes"],
    activation: Callable[[jax.Array], jax.Array] = jax.nn.softplus,
) -> Float[Array, "*batch classes"]:
    """Computes evidence from a network's outputs; plus one it is a concentration.

    Sharp edge: by `softplus` evidence grows as slowly as outputs do: a short training by
    `jaxeff.training.evidential` ends with little of it everywhere, far too unsure in domain and no
    surer there than out of it. Train until its sum has settled, or take an activation that reaches
    large evidence sooner, such as ``lambda z: jnp.exp(jnp.minimum(z, 10))``, here and there.

    ```python
    import jax.numpy as jnp
    from jaxeff.uncertainty import evidence

    concentration = evidence(jnp.array([[20.0, -9.0, -9.0]])) + 1     # of `dirichlet_probs`
    ```

    Args:
        outputs: Outputs of the network.
        activation: What makes evidence of outputs, never below zero: that of the training.
    """
    return activation(outputs)


@core.validate(concentration=core.positive)
def dirichlet_probs(
    concentration: Float[Array, "*batch classes"],
) -> Float[Array, "*batch classes"]:
    """Computes the mean class probabilities.

    ```python
    import jax.numpy as jnp
    from jaxeff.uncertainty import dirichlet_probs, evidence

    outputs = jnp.array([[20.0, -9.0, -9.0], [-9.0, -9.0, -9.0]])     # much evidence, and none
    assert jnp.allclose(dirichlet_probs(evidence(outputs) + 1)[1], 1 / 3, atol=1e-3)
    ```

    Args:
        concentration: The parameters of the distribution, above zero.
    """
    return concentration / concentration.sum(-1, keepdims=True)


@core.validate(concentration=core.positive)
def dirichlet_decomposition(concentration: Float[Array, "*batch classes"]) -> Decomposition:
    """Computes total, aleatoric and epistemic uncertainty, in nats.

    Predictions of evidential networks are Dirichlet distributions over class probabilities. Their
    parts have closed forms (Malinin and Gales 2018, arXiv:1802.10501), so one run of the network
    gives what an ensemble's draws would. `jaxeff.training.evidential` trains such a network.

    ```python
    import jax.numpy as jnp
    from jaxeff.uncertainty import dirichlet_decomposition, evidence

    outputs = jnp.array([[20.0, -9.0, -9.0], [-9.0, -9.0, -9.0]])     # much evidence, and none
    known, unknown = dirichlet_decomposition(evidence(outputs) + 1).epistemic
    assert known < unknown
    ```

    Sharp edge: what is called epistemic is learnt by that loss and no posterior's: it depends on
    the weight of the divergence (Bengs et al. 2022, arXiv:2203.06102).

    Args:
        concentration: The parameters of the distribution, above zero.

    Returns:
        The entropy of the mean, the mean of the entropy, and the mutual information of label and
        probabilities, for each input.
    """
    probs = dirichlet_probs(concentration)
    total = concentration.sum(-1, keepdims=True)
    entropies = probs * (digamma(total + 1) - digamma(concentration + 1))
    total_entropy, aleatoric = entr(probs).sum(-1), entropies.sum(-1)
    return Decomposition(total_entropy, aleatoric, jnp.maximum(total_entropy - aleatoric, 0))


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


@core.validate(outputs=core.real_array(nan=True))
def decompose_regression(outputs: Float[Array, "samples *batch outputs"]) -> RegressionUncertainty:
    """Splits the uncertainty of a sampled network with an aleatoric head.

    A regression network with an aleatoric head predicts a mean and the logarithm of a variance; the
    total variance of its samples is the mean of the predicted variances (aleatoric: the noise that
    no further data removes) plus the variance of the predicted means (epistemic: what the samples
    disagree on), by the law of total variance (Kendall & Gal 2017, arXiv 1703.04977).

    ```python
    import jax.numpy as jnp
    from jaxeff.uncertainty import decompose_regression

    mean, log_variance = jnp.array([[0.9], [1.1]]), jnp.log(jnp.full((2, 1), 0.04))   # two samples
    parts = decompose_regression(jnp.stack([mean, log_variance], -1))
    assert jnp.allclose(parts.aleatoric, 0.04) and jnp.allclose(parts.epistemic, 0.01)
    ```

    Sharp edges:
        Variances are in squared units of the target; standard deviations, their roots, add up in
        squares only.
        A sample with a large log-variance dominates a mean of exponentials, so far from the data
        the aleatoric part may be infinite.

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


@core.validate(
    mean=core.real_array(1, nan=True), target=core.real_array(1, nan=True), inside=core.boolean_mask
)
def prediction_mse(
    mean: Float[Array, " n"], target: Float[Array, " n"], inside: Bool[Array, " n"]
) -> Float[Array, ""]:
    """Computes the mean squared error of the predictive mean where there are data.

    ```python
    import jax.numpy as jnp
    from jaxeff.uncertainty import prediction_mse

    inside = jnp.array([True])
    assert jnp.allclose(prediction_mse(jnp.array([1.0]), jnp.array([1.2]), inside), 0.04)
    ```

    Args:
        mean: Predictive mean.
        target: The target without noise.
        inside: Mask of the points where data lie; the others don't count.
    """
    _check_lengths("prediction_mse", mean=mean, target=target, inside=inside)
    return jnp.square(core.widened(mean - target)).mean(where=inside)


@core.validate(
    std=core.real_array(1, nan=True),
    true_std=core.real_array(1, nan=True),
    inside=core.boolean_mask,
)
def aleatoric_mse(
    std: Float[Array, " n"], true_std: Float[Array, " n"], inside: Bool[Array, " n"]
) -> Float[Array, ""]:
    """Computes the mean squared error of the predicted noise deviation where there are data.

    ```python
    import jax.numpy as jnp
    from jaxeff.uncertainty import aleatoric_mse

    inside = jnp.array([True])
    assert jnp.allclose(aleatoric_mse(jnp.array([0.2]), jnp.array([0.2]), inside), 0, atol=1e-6)
    ```

    Args:
        std: Predicted: the square root of `RegressionUncertainty.aleatoric`.
        true_std: The noise that was added; may be anything, NaN too, where there are no data.
        inside: Mask of the points where data lie.
    """
    _check_lengths("aleatoric_mse", std=std, true_std=true_std, inside=inside)
    # Replaced before the difference too: NaN outside would reach the gradient past the mask.
    return jnp.square(core.widened(std - jnp.where(inside, true_std, 0))).mean(where=inside)


def _check_lengths(where: str, **arrays: Array) -> None:
    """Checks that there is one entry for each point."""
    if len({len(array) for array in arrays.values()}) > 1:
        lengths = ", ".join(f"{name} {len(array)}" for name, array in arrays.items())
        raise ValueError(f"{where}: one entry per point is needed, but there are {lengths}.")
