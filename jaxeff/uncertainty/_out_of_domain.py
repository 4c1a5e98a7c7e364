"""Out-of-domain inputs: how well a score finds them, and where training data are sparse.

A score per input (mutual information, variance, ...) should be higher out of domain: the positive
class is always *out of domain*. AUROC, AUPR and FPR95 need scores of in- and of out-of-domain
inputs, count equal scores as scikit-learn does, depend on the order of scores only, jit and vmap. A
NaN among the scores makes the result NaN. Both sets must hold at least one score.

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
import numpy as np
from jax.scipy.stats import gaussian_kde
from jaxtyping import Array, Bool, Float

from jaxeff.core import check_scores, number, real_array, validate


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

    Sharp edge: it depends on the shares of the two sets (chance level is n_out / (n_in + n_out)).

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

    Sharp edge: some of the literature calls *in*-domain positive: for FPR95 in that sense (the
    share of out-of-domain inputs accepted when 95 % of in-domain inputs are) call ``fpr95(-out,
    -inside)``.

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


OOD_QUANTILE = 0.05
"""Share of the training points themselves that lie in the region called out of domain. The thesis
thresholds at "a chosen quantile" and doesn't say which."""


@validate(x=real_array(nan=True), train=real_array(nan=True))
def negative_log_density(
    x: Float[Array, "n features"], train: Float[Array, "examples features"]
) -> Float[Array, " n"]:
    """Computes the sparsity of training data around inputs, in nats.

    The density of training data is a Gaussian kernel estimate with Scott's bandwidth, n^(-1/(d+4))
    times the covariance of the data (Scott 1992; Klein's thesis, eqs. (7.15) and (7.17)).

    ```python
    import jax
    from jaxeff.uncertainty import negative_log_density

    train = jax.random.normal(jax.random.key(0), (200, 2))
    sparsity = negative_log_density(jax.numpy.array([[0.0, 0.0], [1.0, 1.0], [5.0, 5.0]]), train)
    assert sparsity[0] < sparsity[1] < sparsity[2]
    ```

    Sharp edge: the training points are checked, so they can't be traced.

    Args:
        x: Inputs at which the density of the training data is estimated.
        train: Inputs of the training set.

    Raises:
        ValueError: Too few training points for a density estimate in so many dimensions, points
            that lie on one point, line or plane, or values that are not finite.
    """
    return -_kde(train).logpdf(jnp.asarray(x).T)


@validate(x=real_array(), train=real_array(nan=True), quantile=number(0, 1))
def out_of_domain(
    x: Float[Array, "n features"],
    train: Float[Array, "examples features"],
    quantile: float = OOD_QUANTILE,
) -> Bool[Array, " n"]:
    """Labels inputs where the training data are sparser than around nearly all of themselves.

    A quantile of `negative_log_density` tells in-domain from out-of-domain inputs where nothing
    else does.

    ```python
    import jax
    from jaxeff.uncertainty import out_of_domain

    train = jax.random.normal(jax.random.key(0), (200, 2))
    x = jax.numpy.array([[0.0, 0.0], [1.0, 1.0], [5.0, 5.0]])
    assert out_of_domain(x, train).tolist() == [False, False, True]
    ```

    Args:
        x: Inputs to label.
        train: Inputs of the training set.
        quantile: The threshold is this quantile of the densities at the training points.

    Returns:
        True where the density is below the threshold.

    Raises:
        ValueError: As `negative_log_density`, or a quantile outside 0 to 1.
    """
    return negative_log_density(x, train) > sparsity_threshold(train, quantile)


@validate(train=real_array(nan=True), quantile=number(0, 1))
def sparsity_threshold(
    train: Float[Array, "examples features"], quantile: float = OOD_QUANTILE
) -> Float[Array, ""]:
    """Computes the negative log density above which `out_of_domain` is true.

    ```python
    import jax
    from jaxeff.uncertainty import negative_log_density, sparsity_threshold

    train = jax.random.normal(jax.random.key(0), (200, 2))
    assert sparsity_threshold(train) > negative_log_density(jax.numpy.zeros((1, 2)), train)[0]
    ```
    """
    # The negative logarithm reverses the order: the lowest densities are the highest values.
    return jnp.quantile(negative_log_density(train, train), 1 - quantile)


@validate(epistemic=real_array(1), sparsity=real_array(1))
def euc(epistemic: Float[Array, " n"], sparsity: Float[Array, " n"]) -> Float[Array, ""]:
    """Correlates epistemic uncertainty with the sparsity of the training data (Pearson).

    The epistemic uncertainty correlation (EUC) holds epistemic uncertainty to the negative
    logarithm of the density.

    ```python
    import jax
    import jax.numpy as jnp
    from jaxeff.uncertainty import euc, negative_log_density

    train = jax.random.normal(jax.random.key(0), (200, 2))
    sparsity = negative_log_density(jnp.array([[0.0, 0.0], [1.0, 1.0], [5.0, 5.0]]), train)
    assert euc(jnp.array([0.1, 0.2, 0.9]), sparsity) > 0.9
    ```

    Sharp edge: it measures shape only. A network that is far too sure of itself everywhere can
    score close to 1; look at `jaxeff.uncertainty.auroc` beside it.

    Args:
        epistemic: Epistemic uncertainty of each input (a standard deviation for a regression).
        sparsity: `negative_log_density` of the same inputs.

    Returns:
        -1 to 1; NaN if either is the same everywhere.
    """
    return jnp.corrcoef(epistemic, sparsity)[0, 1]


def _kde(train: Array) -> gaussian_kde:
    points = np.asarray(train)
    if points.ndim != 2:
        raise ValueError(
            f"a density estimate takes points [examples, features], not {list(points.shape)}"
        )
    examples, features = points.shape
    if not np.isfinite(points).all():
        raise ValueError("the training points hold values that are NaN or infinite")
    if examples <= features:
        raise ValueError(
            f"a density estimate in {features} dimensions needs more than {features} points, "
            f"found {examples}: give more, or estimate it in fewer dimensions"
        )
    # In float64: far from the origin, float32 would round the spread of the data away.
    centred = points.astype(np.float64) - points.mean(0, dtype=np.float64)
    # With fewer independent directions than features the covariance has no inverse, and the
    # estimate would be infinite or NaN without a word.
    if np.linalg.matrix_rank(centred, rtol=1e-5) < features:
        raise ValueError(
            "the training points lie on one point, line or plane, so they have no density: leave "
            "out features that are constant or a combination of others"
        )
    return gaussian_kde(jnp.asarray(points.T), bw_method="scott")
