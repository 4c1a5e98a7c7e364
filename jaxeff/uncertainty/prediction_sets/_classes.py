"""Scores for sets of classes: LAC, APS and RAPS.

All take logits ``[batch, classes]``, or the Gaussian ones of `jaxeff.moments`. For several members
or samples give the logarithm of the mean prediction, ``predictive_log_probs(logits)``: its softmax
is the prediction itself.

Sharp edges:
    A set may be empty, where no class fits well enough. ``allow_empty=False`` adds the most
    probable class; coverage is then higher than asked, never lower.
    Sets depend on the order of scores alone, and in float32 the papers' scores tie where a network
    is sure: probabilities round to 1, and so do sums of them. So thresholds are on scales of the
    same order that tell such classes apart: see the methods.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxeff.core import Count, NonNegative, check_labels, register_setting, static
from jaxeff.uncertainty._complement import log_complement
from jaxeff.uncertainty.prediction_sets._method import ConformalMethod, class_log_probs


@register_setting
@dataclass(frozen=True)
class LAC(ConformalMethod):
    """Sets of the classes with enough probability: the smallest ones on average.

    The score is `log((1 - p) / p)`, which rises with the `1 - p` of the paper.

    Sadinle, Lei, Wasserman, "Least Ambiguous Set-Valued Classifiers with Bounded Error Levels",
    JASA 114 (2019), arXiv 1609.00451.

    Attributes:
        allow_empty: Whether a set may hold no class.
    """

    # By its name alone: else it would come before the numbers of the methods below.
    allow_empty: bool = static(True, kw_only=True)

    def class_scores(
        self, log_probs: Float[Array, "batch classes"]
    ) -> Float[Array, "batch classes"]:
        """Computes the log-odds against each class."""
        return log_complement(log_probs) - log_probs

    def scores(self, outputs: Any, targets: Any) -> Float[Array, " batch"]:
        """Computes the score of each example's true class."""
        log_probs = class_log_probs(f"{type(self).__name__}: outputs", outputs)
        batch, classes = log_probs.shape
        check_labels(f"{type(self).__name__}: targets", targets, classes, (batch,))
        every = self.class_scores(log_probs)
        return jnp.take_along_axis(every, jnp.asarray(targets)[:, None], axis=-1)[:, 0]

    def region(self, outputs: Any, threshold: Float[Array, "..."]) -> Bool[Array, "batch classes"]:
        """Returns a mask of the classes in each set."""
        log_probs = class_log_probs(f"{type(self).__name__}: outputs", outputs)
        limit = jnp.broadcast_to(threshold, log_probs.shape[:1])[:, None]
        inside = self.class_scores(log_probs) <= limit
        if self.allow_empty:
            return inside
        return inside | (log_probs == log_probs.max(-1, keepdims=True))

    def contains(self, region: Any, targets: Any) -> Bool[Array, " batch"]:
        """Tells whether each set holds the true class."""
        check_labels("covered: targets", targets, region.shape[-1], region.shape[:-1])
        return jnp.take_along_axis(region, jnp.asarray(targets)[:, None], axis=-1)[:, 0]


@register_setting
@dataclass(frozen=True)
class APS(LAC):
    """Sets that grow with how hard an input is: classes until enough probability is collected.

    The score rises with the probability of all classes that are at least as probable, without the
    random share of the last one that the paper takes off: sets are larger, and need no key. With
    `left` for what less probable classes have, it is `-1 / (1 - log(left))`, from -1 to 0.

    Romano, Sesia, Candes, "Classification with Valid and Adaptive Coverage", NeurIPS 2020,
    arXiv 2006.02544.
    """

    def class_scores(
        self, log_probs: Float[Array, "batch classes"]
    ) -> Float[Array, "batch classes"]:
        """Computes what rises with the probability collected when the class is reached."""
        return _rising(_left(log_probs)[0], 0.0)


@register_setting
@dataclass(frozen=True)
class RAPS(LAC):
    """APS with a penalty for every class after the first few, which keeps sets small.

    With `left` for what less probable classes have, the score is `penalty - left`, and where that
    is negative `-1 / (1 - log(left - penalty))`.

    Angelopoulos et al., "Uncertainty Sets for Image Classifiers using Conformal Prediction",
    ICLR 2021, arXiv 2009.14193, eq. 4.

    Attributes:
        penalty: What each further class adds to the score.
        free: Number of classes that come without a penalty.
    """

    penalty: NonNegative = 0.01
    free: Annotated[int, Count(0)] = static(5)

    def class_scores(
        self, log_probs: Float[Array, "batch classes"]
    ) -> Float[Array, "batch classes"]:
        """Computes what rises with the probability collected, plus the penalty of the place."""
        log_left, place = _left(log_probs)
        return _rising(log_left, self.penalty * jnp.maximum(place - self.free, 0))


def _left(log_probs: Array) -> tuple[Array, Array]:
    """Computes the logarithm of what classes behind each have, and its place from 1.

    One minus what was collected, but summed from the small end: it never rounds to zero.
    """
    order = jnp.argsort(-log_probs, axis=-1)
    place = jnp.argsort(order, axis=-1)  # the inverse permutation
    ordered = jnp.take_along_axis(log_probs, order, axis=-1)
    sums = jax.lax.cumlogsumexp(ordered, axis=1, reverse=True)
    behind = jnp.pad(sums[:, 1:], ((0, 0), (0, 1)), constant_values=-jnp.inf)
    # NaN is put last, behind which nothing is left.
    behind = jnp.where(jnp.isnan(ordered), jnp.nan, behind)
    return jnp.take_along_axis(behind, place, axis=-1), (place + 1).astype(log_probs.dtype)


def _rising(log_left: Array, penalty: Array | float) -> Array:
    """Computes a number that rises with `penalty - left`, and tells the smallest of `left` apart.

    For a score s below zero it is -1 / (1 - log(-s)); from zero on, s itself.
    """
    exceeding = penalty - jnp.exp(log_left)
    # Without a penalty the logarithm is known, where its exponential may underflow.
    log_below = jnp.where(penalty == 0, log_left, jnp.log(jnp.maximum(-exceeding, 0)))
    is_below = (penalty == 0) | (exceeding < 0)
    return jnp.where(is_below, -1 / (1 - log_below), exceeding)
