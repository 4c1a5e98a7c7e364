"""Total, aleatoric and epistemic uncertainty of a classifier that predicts with several samples.

The total uncertainty is the entropy of the mean prediction; the part that every sample agrees on is
aleatoric (the mean entropy of the samples: softmax entropy, SME); the rest, their disagreement, is
epistemic (mutual information, MI, between label and weights; Houlsby et al. 2011, arXiv 1112.5745;
Depeweg et al. 2018, arXiv 1710.07283). All in nats, so 0 to log(classes).

Probabilities that are no floating-point array are refused by a TypeError, and rows that don't sum
to one, as of logits, by a ValueError where they are concrete.

Sharp edges: a sample may put probability 0 on a class (0 log 0 counts as 0), but the gradient of an
entropy is infinite there: differentiate with respect to logits. The difference of two entropies
can round to less than zero, so the epistemic part is cut at zero; near there its error is a few
units of float rounding.

```python
import jax
import jax.numpy as jnp

from jaxeff.uncertainty import (
    decompose, decompose_logits, mutual_information, predictive_entropy, predictive_log_probs,
    softmax_entropy,
)

agree = jnp.array([[0.5, 0.5], [0.5, 0.5]])           # two samples of one prediction: ambiguous
disagree = jnp.array([[0.99, 0.01], [0.01, 0.99]])    # each is sure, of another class
assert predictive_entropy(agree) == predictive_entropy(disagree)             # total: log 2
assert softmax_entropy(agree) > softmax_entropy(disagree)                    # aleatoric
assert mutual_information(agree) < 1e-6 < mutual_information(disagree)        # epistemic
found = decompose(disagree)
assert jnp.allclose(found.total, found.aleatoric + found.epistemic, atol=1e-6)

logits = jax.random.normal(jax.random.key(0), (30, 5, 10))          # samples, batch, classes
assert decompose_logits(logits).epistemic.shape == (5,)
assert jnp.allclose(jnp.exp(predictive_log_probs(logits)).sum(-1), 1, atol=1e-5)
```
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import entr, logsumexp
from jaxtyping import Array, Float

from jaxeff.core import check_probs, real_array, validate
from jaxeff.uncertainty._complement import is_first


class Decomposition(NamedTuple):
    """Uncertainty per input, in nats.

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
    check_probs("predictive_entropy: probs", probs)
    return entr(probs.mean(0)).sum(-1)


def softmax_entropy(probs: Float[Array, "samples *batch classes"]) -> Float[Array, "*batch"]:
    """Computes the mean entropy of the samples' predictions (SME), in nats.

    Args:
        probs: Class probabilities of each sample.

    Returns:
        The aleatoric uncertainty of each input.
    """
    check_probs("softmax_entropy: probs", probs)
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
    check_probs("probs", probs)
    # Entropy is concave, so the entropy of the mean is at least the mean entropy (Jensen): only
    # rounding makes the difference negative. `entr` counts 0 log 0 as 0.
    total, aleatoric = entr(probs.mean(0)).sum(-1), entr(probs).sum(-1).mean(0)
    return Decomposition(total, aleatoric, jnp.maximum(total - aleatoric, 0))


@validate(logits=real_array(nan=True))
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


@validate(logits=real_array(nan=True))
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
