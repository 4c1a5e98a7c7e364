"""What a conformal method is: a score of a prediction and a target, and what stays below a limit.

The score says how badly a target fits a prediction. Any function will do: the guarantee holds for
all of them, and a better one gives smaller sets.
"""

from typing import Any

import jax
from jaxtyping import Array, Float

from jaxeff.core import Setting, widened
from jaxeff.uncertainty._gaussian_logits import probit_logits


class ConformalMethod(Setting):
    """A nonconformity score and the region where it is small enough."""

    def scores(self, outputs: Any, targets: Any) -> Float[Array, " batch"]:
        """Computes how badly each target fits its prediction; higher is worse."""
        raise NotImplementedError

    def region(self, outputs: Any, threshold: Float[Array, "..."]) -> Any:
        """Returns the targets whose score is at most the threshold, one or one per example."""
        raise NotImplementedError

    def contains(self, region: Any, targets: Any) -> Any:
        """Tells of each target whether it lies in its region."""
        raise NotImplementedError


def class_log_probs(where: str, outputs: Any) -> Float[Array, "batch classes"]:
    """Computes log-probabilities of logits, or of Gaussian ones by the probit approximation."""
    logits = probit_logits(outputs)
    if not hasattr(logits, "shape") or len(logits.shape) != 2:
        found = getattr(logits, "shape", type(logits).__name__)
        raise TypeError(f"{where} must be logits [batch, classes], or Gaussian ones, not {found}")
    # Of 16 bits a sum of a hundred classes would round most of them off.
    return jax.nn.log_softmax(widened(logits))
