"""Scores for sets of classes: LAC, APS and RAPS.

All take logits ``[batch, classes]``, or the Gaussian ones of `jaxeff.moments`. For several members
or samples give the logarithm of the mean prediction, ``predictive_log_probs(logits)``: its softmax
is the prediction itself.

Sharp edge: a set may be empty, where no class fits well enough. ``allow_empty=False`` adds the most
probable class; coverage is then higher than asked, never lower.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxeff.core import Count, NonNegative, check_labels, register_setting, static
from jaxeff.uncertainty.prediction_sets._method import ConformalMethod, class_probs


@register_setting
@dataclass(frozen=True)
class LAC(ConformalMethod):
    """Sets of the classes with enough probability: the smallest ones on average.

    Sadinle, Lei, Wasserman, "Least Ambiguous Set-Valued Classifiers with Bounded Error Levels",
    JASA 114 (2019), arXiv 1609.00451.

    Attributes:
        allow_empty: Whether a set may hold no class.
    """

    allow_empty: bool = static(True)

    def class_scores(self, probs: Float[Array, "batch classes"]) -> Float[Array, "batch classes"]:
        """Computes one minus the probability."""
        return 1 - probs

    def scores(self, outputs: Any, targets: Any) -> Float[Array, " batch"]:
        """Computes the score of each example's true class."""
        probs = class_probs(f"{type(self).__name__}: outputs", outputs)
        check_labels(f"{type(self).__name__}: targets", targets, probs.shape[-1], probs.shape[:-1])
        every = self.class_scores(probs)
        return jnp.take_along_axis(every, jnp.asarray(targets)[:, None], axis=-1)[:, 0]

    def region(self, outputs: Any, threshold: Float[Array, "..."]) -> Bool[Array, "batch classes"]:
        """Returns a mask of the classes in each set."""
        probs = class_probs(f"{type(self).__name__}: outputs", outputs)
        limit = jnp.broadcast_to(threshold, probs.shape[:1])[:, None]
        inside = self.class_scores(probs) <= limit
        if self.allow_empty:
            return inside
        return inside | (probs == probs.max(-1, keepdims=True))

    def contains(self, region: Any, targets: Any) -> Bool[Array, " batch"]:
        """Tells whether each set holds the true class."""
        check_labels("covered: targets", targets, region.shape[-1], region.shape[:-1])
        return jnp.take_along_axis(region, jnp.asarray(targets)[:, None], axis=-1)[:, 0]


@register_setting
@dataclass(frozen=True)
class APS(LAC):
    """Sets that grow with how hard an input is: classes until enough probability is collected.

    The score is the probability of all classes that are at least as probable, without the random
    share of the last one that the paper takes off: sets are larger, and need no key.

    Romano, Sesia, Candes, "Classification with Valid and Adaptive Coverage", NeurIPS 2020,
    arXiv 2006.02544.
    """

    def class_scores(self, probs: Float[Array, "batch classes"]) -> Float[Array, "batch classes"]:
        """Computes the probability collected when the class is reached."""
        return _collected(probs)[0]


@register_setting
@dataclass(frozen=True)
class RAPS(LAC):
    """APS with a penalty for every class after the first few, which keeps sets small.

    Angelopoulos et al., "Uncertainty Sets for Image Classifiers using Conformal Prediction",
    ICLR 2021, arXiv 2009.14193, eq. 4.

    Attributes:
        penalty: What each further class adds to the score.
        free: Number of classes that come without a penalty.
    """

    penalty: NonNegative = 0.01
    free: Annotated[int, Count(0)] = static(5)

    def class_scores(self, probs: Float[Array, "batch classes"]) -> Float[Array, "batch classes"]:
        """Computes the probability collected, and the penalty of the class's place."""
        collected, place = _collected(probs)
        return collected + self.penalty * jnp.maximum(place - self.free, 0)


def _collected(probs: Array) -> tuple[Array, Array]:
    """Computes of each class the probability of those before it, its own, and its place from 1."""
    order = jnp.argsort(-probs, axis=-1)
    place = jnp.argsort(order, axis=-1)  # the inverse permutation
    sums = jnp.cumsum(jnp.take_along_axis(probs, order, axis=-1), axis=-1)
    return jnp.take_along_axis(sums, place, axis=-1), (place + 1).astype(probs.dtype)
