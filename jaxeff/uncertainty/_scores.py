"""Accuracy and the proper scores of a point prediction: negative log-likelihood and Brier score.

All take the probabilities ``[batch, classes]`` of the prediction itself. From samples that is their
mean: ``probs.mean(0)``, or ``predictive_log_probs(logits)`` in log space. They refuse by a
TypeError what is no floating-point probabilities or integer labels, and by a ValueError rows that
don't sum to one, as of logits, or a label out of range.

Sharp edge: under `jit` values are not known, so what is checked there is shapes and dtypes: logits
in the place of probabilities are refused only where they are concrete.

```python
import jax.numpy as jnp

from jaxeff.uncertainty import accuracy, brier, nll, nll_from_log

probs, labels = jnp.array([[0.8, 0.2], [0.4, 0.6]]), jnp.array([0, 0])
assert accuracy(probs, labels) == 0.5
assert jnp.allclose(nll(probs, labels), -(jnp.log(0.8) + jnp.log(0.4)) / 2)
assert jnp.allclose(nll_from_log(jnp.log(probs), labels), nll(probs, labels))
assert jnp.allclose(brier(probs, labels), (0.08 + 0.72) / 2)
```
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxeff.core import check_labels, check_probs, real_array, validate


@validate(probs=real_array(2, nan=True))
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
    check_labels("accuracy: labels", labels, probs.shape[-1], probs.shape[:-1])
    right = (probs.argmax(-1) == labels).astype(probs.dtype)
    # `argmax` of a row with NaN is the place of the NaN, which may be the label by chance.
    return jnp.where(jnp.isnan(probs).any(-1), jnp.asarray(jnp.nan, probs.dtype), right).mean()


def check_prediction(where: str, probs: Any, labels: Any) -> None:
    """Checks class probabilities and the labels of their rows."""
    check_probs(f"{where}: probs", probs)
    check_labels(f"{where}: labels", labels, probs.shape[-1], probs.shape[:-1])


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
    return _mean_nll(jnp.log(jnp.maximum(probs, jnp.finfo(probs.dtype).tiny)), labels)


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
    check_probs("nll_from_log: log_probs", log_probs, logs=True)
    check_labels("nll_from_log: labels", labels, log_probs.shape[-1], log_probs.shape[:-1])
    return _mean_nll(log_probs, labels)


def _mean_nll(log_probs: Array, labels: Array) -> Array:
    return -jnp.take_along_axis(log_probs, jnp.asarray(labels)[:, None], axis=-1).mean()


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
