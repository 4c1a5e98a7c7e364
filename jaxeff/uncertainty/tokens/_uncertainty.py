"""`token_uncertainty`: how sure a language model is of every token, and why not.

```python
import jax
from jaxeff.uncertainty import token_uncertainty

logits = jax.random.normal(jax.random.key(0), (4, 2, 7, 50))  # members, batch, tokens, words
found = token_uncertainty(logits)
assert found.epistemic.shape == (2, 7)
```

The members' axis is the first, as `jaxeff.ensemble` and `jaxeff.bayes.predict` return it. Gaussian
logits, of `jaxeff.moments`, are taken in closed form: no draws, no key, so it deploys.

Sharp edge: the closed form is of first order in the variances; `from_gaussian` draws.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxeff.core import validate
from jaxeff.moment_propagation import Gaussian, JointGaussian
from jaxeff.uncertainty._complement import is_first, log_complement
from jaxeff.uncertainty._decomposition import decompose_logits, entropy, predictive_log_probs
from jaxeff.uncertainty._gaussian_logits import probit_logits, real_outputs
from jaxeff.uncertainty.domain_scores import moment_information


class TokenUncertainty(NamedTuple):
    """Uncertainty of every token; entropies in nats.

    Attributes:
        total: Entropy of the prediction, `[batch, tokens]`.
        aleatoric: Mean entropy of the members' predictions: what more training wouldn't remove.
        epistemic: Mutual information of token and weights, `total - aleatoric`.
        variance: Variance of the most probable token's probability.
    """

    total: Float[Array, "*batch tokens"]
    aleatoric: Float[Array, "*batch tokens"]
    epistemic: Float[Array, "*batch tokens"]
    variance: Float[Array, "*batch tokens"]


@validate(logits=real_outputs)
def token_uncertainty(
    logits: Float[Array, "samples *batch tokens vocabulary"] | Gaussian | JointGaussian,
) -> TokenUncertainty:
    """Computes entropies, mutual information and variance of every token.

    Malinin and Gales, "Uncertainty Estimation in Autoregressive Structured Prediction", ICLR 2021,
    arXiv 2002.07650, section 3.

    Args:
        logits: Logits of members or draws, those first; or Gaussian ones, `[batch, tokens,
            vocabulary]`.

    Raises:
        TypeError: They are no real numbers.
        ValueError: They have no axis of members.
    """
    if isinstance(logits, Gaussian | JointGaussian):
        return _of_moments(logits)
    if jnp.ndim(logits) < 3:
        raise ValueError(
            "token_uncertainty: logits must have axes of members, tokens and vocabulary, not "
            f"{jnp.shape(logits)}; logits[None] is one member"
        )
    logits = jnp.asarray(logits)
    parts = decompose_logits(logits)
    top = predictive_log_probs(logits).argmax(-1)
    each = jnp.take_along_axis(jax.nn.softmax(logits), top[None, ..., None], axis=-1)[..., 0]
    return TokenUncertainty(*parts, each.var(0))


def _of_moments(logits: Gaussian | JointGaussian) -> TokenUncertainty:
    total = entropy(jax.nn.log_softmax(probit_logits(logits)))
    # To first order it may exceed what there is.
    epistemic = jnp.minimum(moment_information(logits), total)
    return TokenUncertainty(total, total - epistemic, epistemic, _top_variance(logits))


def _top_variance(logits: Gaussian | JointGaussian) -> Array:
    """Computes p^2 (e - p)^T cov (e - p) for the most probable token, e its unit vector."""
    log_probs = jax.nn.log_softmax(logits.mean)
    probs = jnp.exp(log_probs)
    # e - p, whose entry of a sure class is no difference of ones.
    slope = jnp.where(is_first(log_probs), jnp.exp(log_complement(log_probs)), -probs)
    if isinstance(logits, JointGaussian):
        spread = jnp.einsum("...c,...cd,...d->...", slope, logits.cov, slope)
    else:
        spread = (slope**2 * logits.var).sum(-1)
    return probs.max(-1) ** 2 * spread
