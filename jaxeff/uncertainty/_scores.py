"""Scores of a point prediction: accuracy, likelihood, Brier score and calibration errors.

All take the probabilities ``[batch, classes]`` of the prediction itself. From samples that is their
mean: ``probs.mean(0)``, or ``predictive_log_probs(logits)`` in log space. They refuse by a
TypeError what is no floating-point probabilities or integer labels, and by a ValueError rows that
don't sum to one, as of logits, or a label out of range.

```python
import jax.numpy as jnp

from jaxeff.uncertainty import (
    accuracy, adaptive_ece, brier, classwise_ece, ece, nll, nll_from_log, reliability
)

probs, labels = jnp.array([[0.8, 0.2], [0.4, 0.6]]), jnp.array([0, 0])
assert accuracy(probs, labels) == 0.5
assert jnp.allclose(nll(probs, labels), -(jnp.log(0.8) + jnp.log(0.4)) / 2)
assert jnp.allclose(nll_from_log(jnp.log(probs), labels), nll(probs, labels))
assert jnp.allclose(brier(probs, labels), (0.08 + 0.72) / 2)

probs, labels = jnp.array([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7]]), jnp.array([0, 1, 1])
ece(probs, labels, bins=5), adaptive_ece(probs, labels, bins=3), classwise_ece(probs, labels)
reliability(probs, labels, bins=5).accuracy          # NaN in empty bins
```
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ops import segment_sum
from jaxtyping import Array, Float, Int

from jaxeff import core


@core.validate(probs=core.real_array(2, nan=True))
def accuracy(
    probs: Float[Array, "batch classes"], labels: Int[Array, " batch"]
) -> Float[Array, ""]:
    """Computes the share of inputs whose most probable class is the label.

    The first of equally probable classes counts.

    Args:
        probs: Class probabilities, or logits: only their order matters.
        labels: True classes.

    Returns:
        0 to 1; NaN where a row holds NaN.

    Raises:
        TypeError: The labels are no integers of shape ``[batch]``.
        ValueError: A label is out of range.
    """
    core.check_labels("accuracy: labels", labels, probs.shape[-1], probs.shape[:-1])
    confidence, right = _top(probs, jnp.asarray(labels))
    return jnp.where(jnp.isnan(confidence), confidence, right).mean()


def check_prediction(where: str, probs: Any, labels: Any) -> None:
    """Checks class probabilities and the labels of their rows.

    Sharp edge: under `jit` values are not known, so what is checked there is shapes and dtypes:
    logits in the place of probabilities are refused only where they are concrete.
    """
    core.check_probs(f"{where}: probs", probs)
    core.check_labels(f"{where}: labels", labels, probs.shape[-1], probs.shape[:-1])


def nll(probs: Float[Array, "batch classes"], labels: Int[Array, " batch"]) -> Float[Array, ""]:
    """Computes the mean negative log-likelihood in nats.

    A label with probability 0 counts as the smallest normal number of the dtype (87 nats in
    float32), so that one rounded-off probability can't make the mean infinite. `nll_from_log`
    doesn't need that.

    Args:
        probs: Class probabilities.
        labels: True classes.

    Returns:
        The mean over the batch.
    """
    check_prediction("nll", probs, labels)
    # The smallest normal number: below it, many processors flush to zero and the logarithm to -inf.
    return -jnp.log(jnp.maximum(_of_labels(probs, labels), jnp.finfo(probs.dtype).tiny)).mean()


def nll_from_log(
    log_probs: Float[Array, "batch classes"], labels: Int[Array, " batch"]
) -> Float[Array, ""]:
    """Computes the mean negative log-likelihood in nats, from log-probabilities.

    `predictive_log_probs` makes them of samples.

    Args:
        log_probs: Logarithms of the class probabilities.
        labels: True classes.

    Returns:
        The mean over the batch.
    """
    core.check_probs("nll_from_log: log_probs", log_probs, logs=True)
    core.check_labels("nll_from_log: labels", labels, log_probs.shape[-1], log_probs.shape[:-1])
    return -_of_labels(log_probs, labels).mean()


def _of_labels(probs: Array, labels: Array) -> Array:
    return jnp.take_along_axis(probs, jnp.asarray(labels)[:, None], axis=-1)


def brier(probs: Float[Array, "batch classes"], labels: Int[Array, " batch"]) -> Float[Array, ""]:
    """Computes the Brier score: mean squared distance of probabilities to the one-hot label.

    Summed over classes (Brier 1950), so 0 to 2; some libraries report half of it for two classes.

    Args:
        probs: Class probabilities.
        labels: True classes.

    Returns:
        The mean over the batch.
    """
    check_prediction("brier", probs, labels)
    onehot = jax.nn.one_hot(labels, probs.shape[-1], dtype=probs.dtype)
    return ((probs - onehot) ** 2).sum(-1).mean()


class Reliability(NamedTuple):
    """Confidence and accuracy in bins of equal width.

    Attributes:
        confidence: Mean probability of the most probable class, `[bins]`; NaN in an empty bin.
        accuracy: Share of right predictions, `[bins]`; NaN in an empty bin.
        size: Number of predictions in each bin, `[bins]`.
    """

    confidence: Float[Array, " bins"]
    accuracy: Float[Array, " bins"]
    size: Int[Array, " bins"]


@core.validate(bins=core.static_integer())
def ece(
    probs: Float[Array, "batch classes"], labels: Int[Array, " batch"], bins: int = 15
) -> Float[Array, ""]:
    """Computes the expected calibration error of the most probable class, over bins of equal width.

    The expected calibration error says how far stated confidence and accuracy lie apart (Guo et al.
    2017, arXiv 1706.04599). Sharp edge: the estimate depends on the number of bins and is biased
    upwards on small test sets (a perfectly calibrated model scores above zero).

    ```python
    import jax.numpy as jnp

    from jaxeff.uncertainty import ece

    probs, labels = jnp.tile(jnp.array([0.75, 0.25]), (4, 1)), jnp.array([0, 0, 0, 1])
    assert ece(probs, labels) < 1e-6                        # 75 % sure, and right as often
    ```

    Args:
        probs: Class probabilities of the prediction (of samples: their mean).
        labels: True classes.
        bins: Number of confidence bins; each holds its upper edge.

    Returns:
        ``sum_b n_b / n |accuracy_b - confidence_b|``, 0 to 1.

    Raises:
        TypeError: Something else than floating-point probabilities or integer labels was given.
        ValueError: Rows that don't sum to one, as of logits, or a label out of range; where
            arrays are concrete.
    """
    check_prediction("ece", probs, labels)
    return _ece(probs, jnp.asarray(labels), bins)


@core.validate(bins=core.static_integer())
def adaptive_ece(
    probs: Float[Array, "batch classes"], labels: Int[Array, " batch"], bins: int = 15
) -> Float[Array, ""]:
    """Computes the expected calibration error over bins of equally many predictions.

    Nguyen and O'Connor 2015 (arXiv 1508.05154). Where most predictions are sure, bins of equal
    width put nearly all into the last.

    Args:
        probs: Class probabilities of the prediction.
        labels: True classes.
        bins: Number of bins; equal confidences share one.

    Returns:
        ``sum_b n_b / n |accuracy_b - confidence_b|``, 0 to 1.
    """
    check_prediction("adaptive_ece", probs, labels)
    confidence, correct = _top(probs, jnp.asarray(labels))
    rank = jnp.searchsorted(jnp.sort(confidence), confidence, side="left")
    return _error(confidence, correct, rank * bins // len(labels), bins)


@core.validate(bins=core.static_integer())
def classwise_ece(
    probs: Float[Array, "batch classes"], labels: Int[Array, " batch"], bins: int = 15
) -> Float[Array, ""]:
    """Computes the calibration error of every class's probability, averaged over classes.

    Kull et al. 2019 (arXiv 1910.12656), eq. 3: the other classes' probabilities count, too, not the
    most probable one's alone.

    Args:
        probs: Class probabilities of the prediction.
        labels: True classes.
        bins: Number of bins of equal width for each class.

    Returns:
        0 to 1.
    """
    check_prediction("classwise_ece", probs, labels)
    is_label = jax.nn.one_hot(labels, probs.shape[-1], dtype=probs.dtype)

    def of_class(confidence: Array, correct: Array) -> Array:
        return _error(confidence, correct, _equal_width(confidence, bins), bins)

    return jax.vmap(of_class, in_axes=1)(probs, is_label).mean()


@core.validate(bins=core.static_integer())
def reliability(
    probs: Float[Array, "batch classes"], labels: Int[Array, " batch"], bins: int = 15
) -> Reliability:
    """Computes what a reliability diagram shows: accuracy by confidence.

    Args:
        probs: Class probabilities of the prediction.
        labels: True classes.
        bins: Number of bins of equal width.

    Returns:
        The bins, for `draw_reliability`.
    """
    check_prediction("reliability", probs, labels)
    confidence, correct = _top(probs, jnp.asarray(labels))
    bin_of = _equal_width(confidence, bins)
    size = segment_sum(jnp.ones_like(bin_of), bin_of, bins)
    # 0 / 0 is NaN: an empty bin has neither, and isn't drawn.
    parts = (segment_sum(each, bin_of, bins) for each in (confidence, correct))
    stated, accuracies = (part / size.astype(part.dtype) for part in parts)
    return Reliability(stated, accuracies, size)


@jax.jit
def _top(probs: Array, labels: Array) -> tuple[Array, Array]:
    """Computes the confidence of each prediction, and whether it is right."""
    confidence, stated = probs.max(-1), _of_labels(probs, labels)
    # The first of equals is the prediction. Not by argmax, which XLA doesn't vectorize on CPUs:
    # of a hundred classes it takes ten times as long.
    earlier = (probs == stated) & (jnp.arange(probs.shape[-1])[None] < labels[:, None])
    return confidence, ((stated[:, 0] == confidence) & ~earlier.any(-1)).astype(probs.dtype)


@partial(jax.jit, static_argnames="bins")
def _ece(probs: Array, labels: Array, bins: int) -> Array:
    confidence, correct = _top(probs, labels)
    return _error(confidence, correct, _equal_width(confidence, bins), bins)


def _equal_width(confidence: Array, bins: int) -> Array:
    inner_edges = jnp.linspace(0, 1, bins + 1, dtype=confidence.dtype)[1:-1]
    # "left": a confidence on an edge belongs to the bin below; the bins of Guo et al., section 2,
    # are open on the left.
    return jnp.searchsorted(inner_edges, confidence, side="left")


def _error(confidence: Array, correct: Array, bin_of: Array, bins: int) -> Array:
    # n_b |mean(correct) - mean(confidence)| is the absolute sum of the differences in the bin.
    return jnp.abs(segment_sum(correct - confidence, bin_of, bins)).sum() / len(confidence)


@core.validate(
    f=core.function_of_form("f(inputs)"), axis=core.instance_of(int), inputs=core.parameter_tree
)
def in_batches(
    f: Callable[[Any], Any], inputs: Any, batch_size: int = 500, *, axis: int = 0
) -> Any:
    """Applies a function to inputs a batch at a time.

    Outputs for more inputs than fit in memory at once come in batches:

    ```python
    import jax.numpy as jnp

    from jaxeff.uncertainty import in_batches

    images = jnp.ones((1200, 8))
    assert in_batches(lambda x: x.sum(1), images, batch_size=500).shape == (1200,)   # three calls
    ```

    Args:
        f: A function of a batch of inputs; a last batch that isn't full is passed as it is.
        inputs: An array, batch axis first, or a pytree of them, as of a model of several inputs.
        batch_size: Inputs at a time.
        axis: The batch axis of the outputs: ``-2`` for logits ``[samples, batch, classes]``.

    Returns:
        What ``f`` returns for all inputs at once: each leaf's batches joined along ``axis``.

    Raises:
        ValueError: There are no inputs, or not as many in each array.
    """
    sizes = [len(leaf) for leaf in jax.tree.leaves(inputs)]
    if not any(sizes):
        raise ValueError("there are no inputs to pass in batches")
    if len(set(sizes)) > 1:
        raise ValueError(f"in_batches: inputs must be as many in each array, not {sizes[:6]}.")
    # A shorter last batch is passed as it is: padding it would change a function that looks at its
    # whole batch. Compiled functions compile once more for it.
    parts = [
        f(jax.tree.map(lambda leaf, i=i: leaf[i : i + batch_size], inputs))
        for i in range(0, sizes[0], batch_size)
    ]
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis), *parts)
