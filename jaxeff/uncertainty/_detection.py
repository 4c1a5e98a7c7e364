"""Out-of-domain detection by a score: AUROC, AUPR and FPR95.

A score per input (mutual information, variance, ...) should be higher out of domain: the positive
class is always *out of domain*. All three need scores of in- and of out-of-domain inputs, count
equal scores as scikit-learn does, depend on the order of scores only, jit and vmap. A NaN among
the scores makes the result NaN. Both sets must hold at least one score.

Sharp edges: AUPR depends on the shares of the two sets (chance level is n_out / (n_in + n_out)).
Some of the literature calls *in*-domain positive: for FPR95 in that sense (the share of
out-of-domain inputs accepted when 95 % of in-domain inputs are) call ``fpr95(-out, -inside)``.

```python
import jax.numpy as jnp

from jaxeff.uncertainty import aupr, auroc, fpr95

inside, outside = jnp.array([0.1, 0.2, 0.3, 0.4]), jnp.array([0.35, 0.5, 0.6, 0.7])
assert auroc(inside, outside) == 15 / 16                # of 16 pairs one is the wrong way round
assert aupr(inside, outside) > 0.9
assert fpr95(inside, outside) == 0.25
```
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxeff.core import check_scores, real_array, validate


@validate(inside=real_array(nan=True, empty=True), outside=real_array(nan=True, empty=True))
def auroc(inside: Float[Array, " n_in"], outside: Float[Array, " n_out"]) -> Float[Array, ""]:
    """Computes the probability that an out-of-domain input scores higher than an in-domain one.

    Ties count one half (the Mann-Whitney statistic).

    Args:
        inside: Scores of in-domain inputs.
        outside: Scores of out-of-domain inputs.

    Returns:
        Area under the receiver operating characteristic: 1 is perfect, 0.5 chance.

    Raises:
        TypeError: One of them is no vector of scores, or empty.
    """
    check_scores("auroc", (("inside", inside), ("outside", outside)))
    # Sorting costs n log n, all pairs n**2. Of the two counts, `below` leaves equal scores out and
    # `not_above` includes them: their mean counts ties one half.
    ordered = jnp.sort(inside)
    below = jnp.searchsorted(ordered, outside, side="left")
    not_above = jnp.searchsorted(ordered, outside, side="right")
    dtype = jnp.result_type(inside, outside)
    wins = (below + not_above).astype(dtype) / (2 * len(inside))
    return _nan_if_nan(wins.mean(), inside, outside)


@validate(inside=real_array(nan=True, empty=True), outside=real_array(nan=True, empty=True))
def aupr(inside: Float[Array, " n_in"], outside: Float[Array, " n_out"]) -> Float[Array, ""]:
    """Computes the area under the precision-recall curve (average precision).

    Out-of-domain inputs are the positive class.

    Args:
        inside: Scores of in-domain inputs.
        outside: Scores of out-of-domain inputs.

    Returns:
        The mean, over out-of-domain inputs, of the precision at the threshold of their score.

    Raises:
        TypeError: One of them is no vector of scores, or empty.
    """
    check_scores("aupr", (("inside", inside), ("outside", outside)))
    dtype = jnp.result_type(inside, outside)
    # Recall rises by 1 / n_out at each out-of-domain score, so the area is the mean precision at
    # these thresholds; equal scores share a threshold, as in scikit-learn.
    caught = _at_least(outside, outside).astype(dtype)
    false_alarms = _at_least(inside, outside).astype(dtype)
    return _nan_if_nan((caught / (caught + false_alarms)).mean(), inside, outside)


@validate(inside=real_array(nan=True, empty=True), outside=real_array(nan=True, empty=True))
def fpr95(inside: Float[Array, " n_in"], outside: Float[Array, " n_out"]) -> Float[Array, ""]:
    """Computes the share of in-domain inputs flagged when 95 % of out-of-domain inputs are.

    Args:
        inside: Scores of in-domain inputs.
        outside: Scores of out-of-domain inputs.

    Returns:
        False-positive rate at the highest threshold with a true-positive rate of 95 %: 0 is best.

    Raises:
        TypeError: One of them is no vector of scores, or empty.
    """
    check_scores("fpr95", (("inside", inside), ("outside", outside)))
    needed = -(-95 * len(outside) // 100)  # integers: no rounding decides which score it is
    threshold = jnp.sort(outside)[len(outside) - needed]
    dtype = jnp.result_type(inside, outside)
    return _nan_if_nan((inside >= threshold).astype(dtype).mean(), inside, outside)


def _at_least(scores: Array, thresholds: Array) -> Array:
    """Counts the scores that reach each threshold."""
    return len(scores) - jnp.searchsorted(jnp.sort(scores), thresholds, side="left")


def _nan_if_nan(value: Array, *scores: Array) -> Array:
    # Sorting puts NaN last, where it would count as the highest score.
    bad = jnp.stack([jnp.isnan(s).any() for s in scores]).any()
    return jnp.where(bad, jnp.nan, value)
