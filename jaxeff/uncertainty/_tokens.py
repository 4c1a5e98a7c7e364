"""Language models: how sure one is of every token and why not, and how far a text is to be taken.

```python
import jax
from jaxeff.uncertainty import token_uncertainty

logits = jax.random.normal(jax.random.key(0), (4, 2, 7, 50))  # members, batch, tokens, words
uncertainty = token_uncertainty(logits)
assert uncertainty.epistemic.shape == (2, 7)
```

From tokens to texts, `[batch, tokens]`:

```python
import jax.numpy as jnp
from jaxeff.uncertainty import accepted_prefix, sequence_entropy, sequence_score

epistemic = jnp.array([[0.1, 0.2, 0.9, 0.1]])                 # of every token
sequence_score(epistemic), sequence_score(epistemic, reduce="max")
accepted_prefix(epistemic, 0.5)                               # the first two
sequence_entropy(jnp.log(jnp.full((3, 1, 4), 0.5)))           # of three texts drawn: log 2
```

Where texts have different lengths, `mask` is True at their tokens.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxeff.core import check_choice, finite, real_array, validate
from jaxeff.moment_propagation import Gaussian, JointGaussian
from jaxeff.uncertainty import _decomposition as decomposition
from jaxeff.uncertainty._gaussian_logits import probit_logits, real_outputs
from jaxeff.uncertainty._logit_scores import moment_information


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

    The members' axis is the first, as `jaxeff.ensemble` and `jaxeff.bayes.predict` return it.
    Gaussian logits, of `jaxeff.moments`, are taken in closed form: no draws, no key, so it deploys.

    Sharp edge: the closed form is of first order in the variances; `from_gaussian` draws.

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
    parts = decomposition.decompose_logits(logits)
    top = decomposition.predictive_log_probs(logits).argmax(-1)
    each = jnp.take_along_axis(jax.nn.softmax(logits), top[None, ..., None], axis=-1)[..., 0]
    return TokenUncertainty(*parts, each.var(0))


def _of_moments(logits: Gaussian | JointGaussian) -> TokenUncertainty:
    total = decomposition.entropy(jax.nn.log_softmax(probit_logits(logits)))
    # To first order it may exceed what there is.
    epistemic = jnp.minimum(moment_information(logits), total)
    return TokenUncertainty(total, total - epistemic, epistemic, _top_variance(logits))


def _top_variance(logits: Gaussian | JointGaussian) -> Array:
    """Computes p^2 (e - p)^T cov (e - p) for the most probable token, e its unit vector."""
    log_probs = jax.nn.log_softmax(logits.mean)
    probs = jnp.exp(log_probs)
    # e - p, whose entry of a sure class is no difference of ones.
    slope = jnp.where(
        decomposition.is_first(log_probs), jnp.exp(decomposition.log_complement(log_probs)), -probs
    )
    if isinstance(logits, JointGaussian):
        spread = jnp.einsum("...c,...cd,...d->...", slope, logits.cov, slope)
    else:
        spread = (slope**2 * logits.var).sum(-1)
    return probs.max(-1) ** 2 * spread


REDUCTIONS = ("mean", "sum", "max")


def token_mask(where: str, value: Any) -> None:
    """Checks for booleans of every token."""
    if getattr(value, "dtype", None) != jnp.bool_ or not jnp.ndim(value):
        raise TypeError(f"{where} must be an array of booleans, True at a text's tokens")
    real_array()(where, value)


@validate(scores=real_array(nan=True), mask=token_mask)
def sequence_score(
    scores: Float[Array, "*batch tokens"],
    mask: Bool[Array, "*batch tokens"] | None = None,
    *,
    reduce: str = "mean",
) -> Float[Array, "*batch"]:
    """Reduces what was computed of tokens to texts.

    Args:
        scores: A score of every token, such as its entropy or minus its log-probability.
        mask: True at tokens that count; all if None.
        reduce: "mean" (normalized by the length), "sum", or "max", the least certain token.

    Returns:
        A score of every text; NaN of a mean, and minus infinity of a maximum, over no tokens.

    Raises:
        ValueError: The mask has another shape, or the reduction is unknown.
    """
    check_choice("sequence_score: reduce", reduce, REDUCTIONS)
    scores = jnp.asarray(scores)
    mask = _mask("sequence_score", scores, mask)
    if reduce == "max":
        return jnp.where(mask, scores, -jnp.inf).max(-1)
    total = jnp.where(mask, scores, 0).sum(-1)
    return total if reduce == "sum" else total / mask.sum(-1).astype(total.dtype)


@validate(log_probs=real_array(nan=True), mask=token_mask)
def sequence_entropy(
    log_probs: Float[Array, "samples *batch tokens"],
    mask: Bool[Array, "samples *batch tokens"] | None = None,
) -> Float[Array, "*batch"]:
    """Computes the length-normalized entropy of texts, from several that were drawn.

    Malinin and Gales, "Uncertainty Estimation in Autoregressive Structured Prediction", ICLR 2021,
    arXiv 2002.07650, eq. 9: minus the mean, over texts drawn from the model, of their
    log-probability per token.

    Args:
        log_probs: Log-probability of each drawn token, texts of one prompt on the first axis.
        mask: True at tokens that count; all if None.
    """
    return -sequence_score(log_probs, mask).mean(0)


@validate(uncertainty=real_array(nan=True), threshold=finite, mask=token_mask)
def accepted_prefix(
    uncertainty: Float[Array, "*batch tokens"],
    threshold: float | Float[Array, ""],
    mask: Bool[Array, "*batch tokens"] | None = None,
) -> Bool[Array, "*batch tokens"]:
    """Marks the tokens of a text before the first that is too uncertain: selective generation.

    What comes after rests on that token, however sure the model is of it.

    Args:
        uncertainty: A score of every token.
        threshold: The largest that is accepted, such as `coverage_threshold` finds.
        mask: True at tokens that count; all if None.
    """
    uncertainty = jnp.asarray(uncertainty)
    mask = _mask("accepted_prefix", uncertainty, mask)
    # NaN is no smaller than anything, so it ends a text.
    good = (uncertainty <= threshold) | ~mask
    before = jnp.cumsum((~good).astype(int), axis=-1) == 0
    return before & mask


def _mask(where: str, scores: Array, mask: Any) -> Array:
    if mask is None:
        return jnp.ones(scores.shape, bool)
    if jnp.shape(mask) != scores.shape:
        raise ValueError(
            f"{where}: the mask must be of the scores' shape {scores.shape}, not {jnp.shape(mask)}"
        )
    return jnp.asarray(mask)
