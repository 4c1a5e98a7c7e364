"""`conformal`: split conformal prediction as a transform of any `f`, and its calibration.

```python
import jax
import jaxeff
from jaxeff.nn import small_classifier
from jaxeff.uncertainty import LAC, conformal, conformalize, covered

f, params, (x, y) = small_classifier()
calibration = conformalize(f(params, x[:128]), y[:128], LAC(), coverage=0.9)
sets = jax.jit(conformal(f, calibration))(params, x[128:])     # [batch, classes], True inside
covered(calibration, sets, y[128:]).mean()                     # about 0.9
```

If held-out examples and those to come are exchangeable, a region holds the truth with a probability
of at least what was asked, whatever the model and the data. The number is an average over inputs,
and over draws of the held-out examples: for one draw of n, the coverage is a random number of the
distribution ``Beta(k, n + 1 - k)`` with ``k = ceil((n + 1) coverage)``, if scores have no ties.

Sharp edges:
    Held-out means: neither trained on nor used to choose anything.
    With fewer than ``coverage / (1 - coverage)`` examples (of a group) every target is inside.
    ``k`` is rounded with a millionth to spare, so that 0.9 of 10 is 9 in float32.

References:
    Vovk, Gammerman, Shafer, "Algorithmic Learning in a Random World", 2005. Angelopoulos and Bates,
    "A Gentle Introduction to Conformal Prediction", arXiv 2107.07511; groups are its section 4.1.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxeff.core import (
    any_of,
    check_labels,
    function_of_form,
    instance_of,
    integer_array,
    number,
    real_array,
    register_setting,
    static_integer,
    validate,
)
from jaxeff.uncertainty._gaussian_logits import real_outputs
from jaxeff.uncertainty.prediction_sets._intervals import PredictionInterval
from jaxeff.uncertainty.prediction_sets._method import ConformalMethod

SPARE = 1e-6
"""Part of a count that float rounding may have added to it."""


@register_setting
@dataclass(frozen=True)
class ConformalCalibration:
    """What `conformalize` found; a pytree.

    Attributes:
        threshold: The largest score that is inside: one number, or one for each group.
        method: The score.
    """

    threshold: Float[Array, "*groups"]
    method: ConformalMethod


@validate(
    outputs=real_outputs,
    targets=real_array(nan=True),
    method=instance_of(ConformalMethod),
    coverage=number(above=0, below=1),
    groups=integer_array(1),
    group_count=static_integer(),
)
def conformalize(
    outputs: Any,
    targets: Any,
    method: ConformalMethod,
    coverage: float | Float[Array, ""] = 0.9,
    *,
    groups: Int[Array, " batch"] | None = None,
    group_count: int | None = None,
) -> ConformalCalibration:
    """Finds the threshold on the score of held-out examples; jits and vmaps.

    Args:
        outputs: What the function returned for them, an array or a `jaxeff.Gaussian`.
        targets: Their classes or values, ``[batch]``.
        method: `LAC`, `APS`, `RAPS`, `AbsoluteResidual`, `NormalizedResidual` or `CQR`.
        coverage: How often the truth is to be inside.
        groups: The group of each example, from 0, if coverage is to hold in each.
        group_count: Number of groups; one more than the largest if None.

    Raises:
        TypeError: Outputs or targets aren't what the method takes.
        ValueError: The coverage is not between 0 and 1, there are no examples, or a group is out of
            range.
    """
    scores = method.scores(outputs, targets)
    if not len(scores):
        raise ValueError("conformalize: there are no held-out examples")
    if groups is None:
        return ConformalCalibration(
            _threshold(scores, jnp.ones(len(scores), bool), coverage), method
        )
    groups = jnp.asarray(groups)
    count = int(groups.max()) + 1 if group_count is None else group_count
    check_labels("conformalize: groups", groups, count, scores.shape)
    own = groups[None] == jnp.arange(count)[:, None]
    thresholds = jnp.stack([_threshold(scores, mask, coverage) for mask in own])
    return ConformalCalibration(thresholds, method)


def _threshold(scores: Array, mask: Array, coverage: Any) -> Array:
    """Computes the k-th smallest score under a mask, infinite where there are fewer than k."""
    ordered = jnp.sort(jnp.where(mask, scores, jnp.inf))
    n = mask.sum()
    k = jnp.ceil((n + 1).astype(float) * jnp.asarray(coverage, float) * (1 - SPARE)).astype(int)
    # Past the end is infinity: with too few examples nothing can be left out.
    padded = jnp.concatenate([ordered, jnp.full(1, jnp.inf, ordered.dtype)])
    found = padded[jnp.where(k > n, len(ordered), jnp.maximum(k, 1) - 1)]
    # Sorting puts NaN last, where it would pass for a score that is never exceeded.
    return jnp.where(jnp.isnan(jnp.where(mask, scores, 0)).any(), jnp.nan, found)


@validate(
    f=function_of_form("f(*args)"),
    calibration=instance_of(ConformalCalibration),
    group=function_of_form("group(*args)"),
)
def conformal(
    f: Callable[..., Any],
    calibration: ConformalCalibration,
    group: Callable[..., Int[Array, " batch"]] | None = None,
) -> Callable[..., Any]:
    """Makes a function return regions that hold the truth as often as was asked.

    Args:
        f: A pure function such as ``f(params, x)`` or ``jaxeff.moments(f)``.
        calibration: What `conformalize` found on held-out examples.
        group: The group of each input, of the same arguments, if there is a threshold for each. In
            a group that has none everything is inside, as in one with too few examples.

    Returns:
        A function of the same arguments: a mask ``[batch, classes]`` of the classes in each set, or
        an `PredictionInterval`. It jits, vmaps, and deploys.

    Raises:
        TypeError: Groups that `group` returns are no integers.
        ValueError: There are thresholds of groups and no `group`, or the reverse.
    """
    grouped = jnp.ndim(calibration.threshold) > 0
    if grouped != (group is not None):
        raise ValueError(
            "conformal: a threshold for each group needs group(*args), one for all takes none; "
            f"the calibration has thresholds of shape {jnp.shape(calibration.threshold)}"
        )

    def g(*args: Any, **kwargs: Any) -> Any:
        threshold = jnp.asarray(calibration.threshold)
        if group is not None:
            threshold = _of_groups(threshold, group(*args, **kwargs))
        return calibration.method.region(f(*args, **kwargs), threshold)

    return g


def _of_groups(thresholds: Array, groups: Any) -> Array:
    """Looks thresholds up; infinite for a group that calibration never saw."""
    integer_array(1)("conformal: group(*args)", groups)
    groups = jnp.asarray(groups)
    is_known = (groups >= 0) & (groups < len(thresholds))
    # XLA would take the nearest group's, or count negative ones from the end.
    return jnp.where(is_known, thresholds[jnp.where(is_known, groups, 0)], jnp.inf)


@validate(
    calibration=instance_of(ConformalCalibration),
    region=any_of(instance_of(PredictionInterval), real_array(2)),
    targets=real_array(),
)
def covered(calibration: ConformalCalibration, region: Any, targets: Any) -> Bool[Array, " batch"]:
    """Tells of each example whether its region holds the truth.

    Args:
        calibration: The one that the regions were made with.
        region: What the function that `conformal` made returned.
        targets: True classes or values, ``[batch]``.

    Returns:
        Its mean is the coverage.
    """
    return calibration.method.contains(region, targets)
