"""`conformal`: split conformal prediction as a transform of any `f`, its calibration and scores.

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
"""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxeff import core
from jaxeff.moment_propagation import is_gaussian
from jaxeff.uncertainty._decomposition import log_odds_against
from jaxeff.uncertainty._gaussian_logits import probit_logits, real_outputs


class ConformalMethod(core.Setting):
    """A nonconformity score and the region where it is small enough.

    `threshold_axes` is how many axes a threshold has: none, or one for what `Mondrian` has one of.

    What is asked of all inputs may be asked of each class (`Mondrian`), and of any loss (`CRC`,
    `RCPS`, `LTT`): they are methods of other methods.

    A method is a score of how badly a target fits a prediction. Any function will do: the guarantee
    holds for all of them, and a better one gives smaller sets. Those of intervals of a regression
    (absolute and normalized residuals, quantiles) take outputs and targets ``[batch]``, or
    ``[batch, 1]`` with one target each: the guarantee is for one number at a time. Those of sets of
    classes (LAC, APS, RAPS) take logits ``[batch, classes]``, or the Gaussian ones of
    `jaxeff.moments`. For several members or samples give the logarithm of the mean prediction,
    ``predictive_log_probs(logits)``: its softmax is the prediction itself.
    """

    threshold_axes = 0

    def scores(self, outputs: Any, targets: Any) -> Float[Array, " batch"]:
        """Computes how badly each target fits its prediction; higher is worse."""
        raise NotImplementedError

    def threshold(self, outputs: Any, targets: Any, members: Array, coverage: Any) -> Array:
        """Finds the threshold from those held-out examples that are members, `[batch]`."""
        return rank_threshold(self.scores(outputs, targets), members, coverage)

    def region(self, outputs: Any, threshold: Float[Array, "..."]) -> Any:
        """Returns the targets whose score is at most the threshold, one or one per example."""
        raise NotImplementedError

    def contains(self, region: Any, targets: Any) -> Any:
        """Tells of each target whether it lies in its region."""
        raise NotImplementedError


def class_logits(where: str, outputs: Any) -> Float[Array, "batch classes"]:
    """Checks logits; of Gaussian ones those of the probit approximation."""
    logits = probit_logits(outputs)
    if not hasattr(logits, "shape") or len(logits.shape) != 2:
        shape = getattr(logits, "shape", type(logits).__name__)
        raise TypeError(f"{where} must be logits [batch, classes], or Gaussian ones, not {shape}")
    # Of 16 bits a sum of a hundred classes would round most of them off.
    return core.widened(logits)


class PredictionInterval(NamedTuple):
    """An interval for each example.

    Attributes:
        low: Lower ends, `[batch]`.
        high: Upper ends, `[batch]`; infinite where too few examples were held out.
    """

    low: Float[Array, " batch"]
    high: Float[Array, " batch"]


class _Intervals(ConformalMethod):
    def contains(self, region: Any, targets: Any) -> Bool[Array, " batch"]:
        """Tells whether each target lies in its interval, ends included."""
        targets = _one_each("targets", targets)
        return (region.low <= targets) & (targets <= region.high)


@core.register_setting
class AbsoluteResidual(_Intervals):
    """Intervals of one width around the prediction.

    Lei et al., "Distribution-Free Predictive Inference for Regression", JASA 113 (2018),
    arXiv 1604.04173, algorithm 2.
    """

    def scores(self, outputs: Any, targets: Any) -> Float[Array, " batch"]:
        """Computes the absolute residual."""
        return jnp.abs(_one_each("targets", targets) - _mean(outputs))

    def region(self, outputs: Any, threshold: Float[Array, "..."]) -> PredictionInterval:
        """Returns the prediction with as much below as above."""
        mean = _mean(outputs)
        return PredictionInterval(mean - threshold, mean + threshold)


@core.register_setting
class NormalizedResidual(_Intervals):
    """Intervals as wide as a multiple of the predicted standard deviation.

    Outputs are a `jaxeff.Gaussian`, as `jaxeff.moments` returns; add the variance of the noise to
    its variance if the network predicts one.

    Lei et al. 2018 (arXiv 1604.04173), section 5.2.
    """

    def scores(self, outputs: Any, targets: Any) -> Float[Array, " batch"]:
        """Computes the residual in predicted standard deviations."""
        mean, std = _mean(outputs), _std(outputs)
        return jnp.abs(_one_each("targets", targets) - mean) / std

    def region(self, outputs: Any, threshold: Float[Array, "..."]) -> PredictionInterval:
        """Returns the mean, and as many standard deviations on both sides."""
        mean, width = _mean(outputs), threshold * _std(outputs)
        return PredictionInterval(mean - width, mean + width)


@core.register_setting
class CQR(_Intervals):
    """Two predicted quantiles, moved outwards (or inwards) by what they missed.

    Outputs are ``[batch, 2]``: the lower and the upper quantile.

    Romano, Patterson, Candes, "Conformalized Quantile Regression", NeurIPS 2019, arXiv 1905.03222,
    eq. 6.
    """

    def scores(self, outputs: Any, targets: Any) -> Float[Array, " batch"]:
        """Computes how far the target lies outside the quantiles; inside it is negative."""
        low, high = _quantiles(outputs)
        targets = _one_each("targets", targets)
        return jnp.maximum(low - targets, targets - high)

    def region(self, outputs: Any, threshold: Float[Array, "..."]) -> PredictionInterval:
        """Returns the moved quantiles; an interval whose ends cross is empty."""
        low, high = _quantiles(outputs)
        return PredictionInterval(low - threshold, high + threshold)


def _one_each(name: str, values: Any) -> Array:
    values = jnp.asarray(values)
    if values.ndim == 2 and values.shape[1] == 1:
        return values[:, 0]
    if values.ndim != 1:
        raise TypeError(
            f"conformal intervals: {name} must be [batch] or [batch, 1], not {values.shape}"
        )
    return values


def _mean(outputs: Any) -> Array:
    return _one_each("outputs", outputs.mean if is_gaussian(outputs) else outputs)


def _std(outputs: Any) -> Array:
    if not is_gaussian(outputs):
        raise TypeError(
            "NormalizedResidual: outputs must be a Gaussian, as jaxeff.moments(f) returns, not a "
            f"{type(outputs).__name__}; AbsoluteResidual() needs no deviation"
        )
    return _one_each("outputs", outputs.std)


def _quantiles(outputs: Any) -> tuple[Array, Array]:
    if is_gaussian(outputs) or jnp.ndim(outputs) != 2 or jnp.shape(outputs)[1] != 2:
        raise TypeError("CQR: outputs must be lower and upper quantiles, [batch, 2]")
    return outputs[:, 0], outputs[:, 1]


SPARE = 1e-6
"""Part of a count that float rounding may have added to it."""


@core.register_setting
class ConformalCalibration:
    """What `conformalize` found; a pytree.

    Attributes:
        threshold: The largest score that is inside: one number, or one for each group or class.
        method: The score.

    References:
        Vovk, Gammerman, Shafer, "Algorithmic Learning in a Random World", 2005. Angelopoulos and
        Bates, "A Gentle Introduction to Conformal Prediction", arXiv 2107.07511; groups are its
        section 4.1.
        Gibbs and Candes, "Adaptive Conformal Inference Under Distribution Shift", NeurIPS 2021, and
        Angelopoulos, Candes, Tibshirani, "Conformal PID Control for Time Series Prediction",
        NeurIPS 2023, arXiv 2307.16895, section 2.1, for online thresholds.
    """

    threshold: Float[Array, "..."]
    method: ConformalMethod


@core.validate(
    outputs=real_outputs,
    targets=core.real_array(nan=True),
    method=core.instance_of(ConformalMethod),
    coverage=core.number(above=0, below=1),
    groups=core.integer_array(1),
    group_count=core.static_integer(),
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

    If held-out examples and those to come are exchangeable, a region holds the truth with a
    probability of at least what was asked, whatever the model and the data. The number is an
    average over inputs, and over draws of the held-out examples: for one draw of n, the coverage is
    a random number of the distribution ``Beta(k, n + 1 - k)`` with ``k = ceil((n + 1) coverage)``,
    if scores have no ties.

    Args:
        outputs: What the function returned for them, an array or a `jaxeff.Gaussian`.
        targets: Their classes or values, ``[batch]``.
        method: `LAC`, `APS`, `RAPS`, `AbsoluteResidual`, `NormalizedResidual` or `CQR`; `Mondrian`
            of one of the first three, if coverage is to hold in each class; `CRC`, `RCPS` or `LTT`
            of any, if a loss is to be small.
        coverage: How often the truth is to be inside; of a loss, one minus the risk that it may
            have.
        groups: The group of each example, from 0, if coverage is to hold in each.
        group_count: Number of groups; one more than the largest if None.

    Raises:
        TypeError: Outputs or targets aren't what the method takes.
        ValueError: The coverage is not between 0 and 1, there are no examples, or a group is out of
            range.
    """
    shape = jnp.shape(targets)[:1]
    if shape == (0,):
        raise ValueError("conformalize: there are no held-out examples")
    if groups is None:
        everyone = jnp.ones(shape, bool)
        return ConformalCalibration(method.threshold(outputs, targets, everyone, coverage), method)
    groups = jnp.asarray(groups)
    count = int(groups.max()) + 1 if group_count is None else group_count
    core.check_labels("conformalize: groups", groups, count, shape)
    # Scores, which have no axis of groups, are computed once.
    of_members = jax.vmap(lambda members: method.threshold(outputs, targets, members, coverage))
    return ConformalCalibration(of_members(groups[None] == jnp.arange(count)[:, None]), method)


def rank_threshold(scores: Array, mask: Array, coverage: Any) -> Array:
    """Computes the k-th smallest score under a mask, infinite where there are fewer than k."""
    n = mask.sum()
    k = jnp.ceil((n + 1).astype(float) * jnp.asarray(coverage, float) * (1 - SPARE)).astype(int)
    kth = _kth_smallest(jnp.where(mask, scores, jnp.inf), jnp.maximum(k, 1))
    # Past the end is infinity: with too few examples nothing can be left out.
    threshold = jnp.where(k > n, jnp.inf, kth)
    # A NaN would pass for a score that is never exceeded.
    return jnp.where(jnp.isnan(jnp.where(mask, scores, 0)).any(), jnp.nan, threshold)


@jax.jit
def _kth_smallest(values: Float[Array, " n"], k: Int[Array, ""]) -> Float[Array, ""]:
    """Finds the k-th smallest of values without NaN, k from 1, in a tenth of the time of sorting.

    Bit by bit: the largest number with fewer than k values below it.
    """
    size = jnp.finfo(values.dtype).bits
    raw = jax.lax.bitcast_convert_type(values, f"uint{size}")
    sign = jnp.ones((), raw.dtype) << (size - 1)
    # Floats are signed magnitudes: in this form they are ordered as unsigned integers are.
    ordered = jnp.where(raw & sign, ~raw, raw | sign)

    def step(i: Array, kth: Array) -> Array:
        larger = kth | (sign >> i.astype(raw.dtype))
        return jnp.where((ordered < larger).sum() < k, larger, kth)

    kth = jax.lax.fori_loop(0, size, step, jnp.zeros((), raw.dtype))
    # Taken from the values, so that it has their gradient.
    return values[(ordered == kth).argmax()]


@core.validate(
    f=core.function_of_form("f(*args)"),
    calibration=core.instance_of(ConformalCalibration),
    group=core.function_of_form("group(*args)"),
)
def conformal(
    f: Callable[..., Any],
    calibration: ConformalCalibration,
    group: Callable[..., Int[Array, " batch"]] | None = None,
) -> Callable[..., Any]:
    """Makes a function return regions that hold the truth as often as was asked.

    Sharp edges:
        Held-out means: neither trained on nor used to choose anything.
        With fewer than ``coverage / (1 - coverage)`` examples (of a group) every target is inside.
        ``k`` is rounded with a millionth to spare, so that 0.9 of 10 is 9 in float32.
        Online coverage is an average over time, of what came to be known; a network that is often
        wrong has large sets then, or small ones that are wrong in runs. It says nothing about one
        input.
        A set may be empty, where no class fits well enough. ``allow_empty=False`` adds the most
        probable class; coverage is then higher than asked, never lower.
        Sets depend on the order of scores alone, and in float32 the papers' scores tie where a
        network is sure: probabilities round to 1, and so do sums of them. So thresholds are on
        scales of the same order that tell such classes apart: see the methods.

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
    grouped = jnp.ndim(calibration.threshold) > calibration.method.threshold_axes
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


@core.validate(
    f=core.function_of_form("f(params, x)"),
    calibration=core.instance_of(ConformalCalibration),
    coverage=core.number(above=0, below=1),
    rate=core.positive,
)
def online_conformal(
    f: Callable[..., Any],
    calibration: ConformalCalibration,
    coverage: float = 0.9,
    *,
    rate: float = 0.05,
) -> Callable[..., Any]:
    """Makes regions whose coverage holds over time, whatever inputs and truth do.

    The threshold rises by `rate` times the coverage where the truth was outside, and falls by
    `rate` times the rest where it was inside. For scores between `low` and `high` (-1 and 0 of
    `APS`) the share outside differs from what was asked by at most ``(high - low + rate) / (rate
    n)`` after n examples whose truth came to be known, in any order and of any distribution.

    Where inputs drift, and the truth becomes known later now and then, one number follows:

    ```python
    import jax
    from jaxeff.nn import small_classifier
    from jaxeff.uncertainty import APS, conformalize, online_conformal

    f, params, (x, y) = small_classifier()
    calibration = conformalize(f(params, x[:128]), y[:128], APS())
    step = jax.jit(online_conformal(f, calibration, rate=0.05))
    threshold = calibration.threshold
    for one, label in zip(x[128:140, None], y[128:140, None]):
        inside, threshold = step(params, one, label, threshold)    # label -1: not known
    ```

    Args:
        f: ``f(params, x)``, such as ``jaxeff.moments(f)``.
        calibration: From `conformalize`: its method, and a threshold to begin with.
        coverage: How often the truth is to be inside.
        rate: What the threshold moves by at the most, in units of the score.

    Returns:
        ``step(params, x, targets, threshold) -> (region, threshold)``: the region as of
        `conformal`, and the threshold of the next call. Targets ``[batch]`` are of these inputs, -1
        (of numbers: NaN) where the truth isn't known. It jits, scans and deploys, with the state
        ``threshold``.

    Raises:
        ValueError: There are thresholds of groups or classes.
    """
    if jnp.ndim(calibration.threshold):
        raise ValueError(
            "online_conformal: one threshold is followed, not one for each group or class"
        )
    method = calibration.method

    def step(params: Any, x: Any, targets: Any, threshold: Any) -> tuple[Any, Any]:
        region = method.region(f(params, x), threshold)
        known, inside = known_hits(method, region, targets)
        moves = jnp.where(known, coverage - inside.astype(threshold.dtype), 0).sum()
        return region, threshold + rate * moves

    return step


def known_hits(method: ConformalMethod, region: Any, targets: Any) -> tuple[Array, Array]:
    """Tells whose truth is known, and whose region holds it."""
    truth = jnp.asarray(targets)
    is_class = jnp.issubdtype(truth.dtype, jnp.integer)
    known = truth >= 0 if is_class else ~jnp.isnan(truth)
    return known, method.contains(region, jnp.where(known, truth, 0))


def _of_groups(thresholds: Array, groups: Any) -> Array:
    """Looks thresholds up; infinite for a group that calibration never saw."""
    core.integer_array(1)("conformal: group(*args)", groups)
    groups = jnp.asarray(groups)
    is_known = (groups >= 0) & (groups < len(thresholds))
    # XLA would take the nearest group's, or count negative ones from the end.
    of_group = thresholds[jnp.where(is_known, groups, 0)]
    shape = is_known.shape + (1,) * (of_group.ndim - 1)
    return jnp.where(is_known.reshape(shape), of_group, jnp.inf)


@core.validate(
    calibration=core.instance_of(ConformalCalibration),
    region=core.any_of(core.instance_of(PredictionInterval), core.real_array(2)),
    targets=core.real_array(),
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


@core.register_setting
class LAC(ConformalMethod):
    """Sets of the classes with enough probability: the smallest ones on average.

    The score is `log((1 - p) / p)`, which rises with the `1 - p` of the paper.

    Sadinle, Lei, Wasserman, "Least Ambiguous Set-Valued Classifiers with Bounded Error Levels",
    JASA 114 (2019), arXiv 1609.00451.

    Attributes:
        allow_empty: Whether a set may hold no class.
    """

    # By its name alone: else it would come before the numbers of the methods below.
    allow_empty: bool = core.static(True, kw_only=True)

    def scores(self, outputs: Any, targets: Any) -> Float[Array, " batch"]:
        """Computes the score of each example's true class."""
        logits = class_logits(f"{type(self).__name__}: outputs", outputs)
        batch, classes = logits.shape
        core.check_labels(f"{type(self).__name__}: targets", targets, classes, (batch,))
        return true_scores(self, logits, jnp.asarray(targets)[:, None])

    def region(self, outputs: Any, threshold: Float[Array, "..."]) -> Bool[Array, "batch classes"]:
        """Returns a mask of the classes in each set."""
        logits = class_logits(f"{type(self).__name__}: outputs", outputs)
        return _sets(self, logits, jnp.broadcast_to(threshold, logits.shape[:1])[:, None])

    def contains(self, region: Any, targets: Any) -> Bool[Array, " batch"]:
        """Tells whether each set holds the true class."""
        core.check_labels("covered: targets", targets, region.shape[-1], region.shape[:-1])
        return jnp.take_along_axis(region, jnp.asarray(targets)[:, None], axis=-1)[:, 0]

    def _score(self, logits: Array, targets: Array) -> Array:
        """Computes the score of one class of each example, `[batch, 1]` of targets `[batch, 1]`."""
        return log_odds_against(logits, targets)

    def _inside(self, logits: Array, limit: Array) -> Array:
        """Tells of all classes whether their score is at most the limit `[batch, 1]`."""
        first = logits.argmax(-1, keepdims=True)
        most = logits.max(-1, keepdims=True)
        odds = log_odds_against(logits, first)
        # A probability above a half may round to one, where its odds tell more. Any other class has
        # less: its logarithm says it all.
        total = most + jnp.logaddexp(odds, 0)
        others = logits >= total + jax.nn.log_sigmoid(-limit)
        return jnp.where(_places(logits) == first, odds <= limit, others)


# Compiled as a whole: one by one their operations would write an array of all classes each.
@jax.jit
def true_scores(method: LAC, logits: Array, targets: Array) -> Array:
    return method._score(logits, targets)[:, 0]


@jax.jit
def _sets(method: LAC, logits: Array, limit: Array) -> Array:
    inside = method._inside(logits, limit)
    return inside if method.allow_empty else inside | (logits == logits.max(-1, keepdims=True))


def _places(logits: Array) -> Array:
    """Returns the number of each class, from 0, in the shape of the logits."""
    return jax.lax.broadcasted_iota(int, logits.shape, logits.ndim - 1)


@core.register_setting
class APS(LAC):
    """Sets that grow with how hard an input is: classes until enough probability is collected.

    The score rises with the probability of all classes that are at least as probable, without the
    random share of the last one that the paper takes off: sets are larger, and need no key. With
    `left` for what less probable classes have, it is `-1 / (1 - log(left))`, from -1 to 0.

    Romano, Sesia, Candes, "Classification with Valid and Adaptive Coverage", NeurIPS 2020,
    arXiv 2006.02544.
    """

    def _score(self, logits: Array, targets: Array) -> Array:
        # One class needs no order: what is behind it is a sum.
        log_probs = jax.nn.log_softmax(logits)
        probable = jnp.take_along_axis(log_probs, targets, axis=-1)
        ties = (log_probs == probable) & (_places(log_probs) > targets)
        behind = (log_probs < probable) | ties
        left = jax.nn.logsumexp(log_probs, axis=-1, keepdims=True, where=behind)
        place = log_probs.shape[-1] - behind.sum(-1, keepdims=True)
        return jnp.where(jnp.isnan(probable), jnp.nan, self._of_place(left, place))

    def _inside(self, logits: Array, limit: Array) -> Array:
        log_probs = jax.nn.log_softmax(logits)
        # Scores rise from place to place, so a set ends at one: the last whose score is inside.
        ordered = -jnp.sort(-log_probs, axis=-1)
        places = _places(log_probs) + 1
        inside = self._of_place(_left(ordered), places) <= limit
        count = jnp.where(inside, places, 0).max(-1, keepdims=True)
        least = jnp.take_along_axis(ordered, jnp.maximum(count - 1, 0), axis=-1)
        # Of classes that are as probable as the last one the first ones are inside.
        ties = log_probs == least
        free = count - (log_probs > least).sum(-1, keepdims=True)
        return (count > 0) & ((log_probs > least) | (ties & (jnp.cumsum(ties, axis=-1) <= free)))

    def _of_place(self, log_left: Array, place: Array) -> Array:
        """Computes the score of a class from the logarithm of what is left behind its place."""
        return _rising(log_left, 0.0)


@core.register_setting
class RAPS(APS):
    """APS with a penalty for every class after the first few, which keeps sets small.

    With `left` for what less probable classes have, the score is `penalty - left`, and where that
    is negative `-1 / (1 - log(left - penalty))`.

    Angelopoulos et al., "Uncertainty Sets for Image Classifiers using Conformal Prediction",
    ICLR 2021, arXiv 2009.14193, eq. 4.

    Attributes:
        penalty: What each further class adds to the score.
        free: Number of classes that come without a penalty.
    """

    penalty: core.NonNegative = 0.01
    free: Annotated[int, core.Count(0)] = core.static(5)

    def _of_place(self, log_left: Array, place: Array) -> Array:
        exceeding = jnp.maximum(place - self.free, 0).astype(log_left.dtype)
        return _rising(log_left, self.penalty * exceeding)


def _left(ordered: Array) -> Array:
    """Computes the logarithm of what classes behind each have, of log-probabilities that fall.

    One minus what was collected, but summed from the small end: it never rounds to zero.
    """

    def step(state: tuple[Array, Array], log_prob: Array) -> tuple[tuple[Array, Array], Array]:
        # What is behind the next class is a sum in units of this one, so that none underflows.
        before, total = state
        rescaled = jnp.where(before == -jnp.inf, 0, total * jnp.exp(before - log_prob))
        return (log_prob, 1 + rescaled), before + jnp.log(total)

    rising = jnp.flip(ordered, -1).T
    nothing = jnp.full_like(rising[0], -jnp.inf), jnp.ones_like(rising[0])
    return jnp.flip(jax.lax.scan(step, nothing, rising)[1].T, -1)


def _rising(log_left: Array, penalty: Array | float) -> Array:
    """Computes a number that rises with `penalty - left`, and tells the smallest of `left` apart.

    For a score s below zero it is -1 / (1 - log(-s)); from zero on, s itself.
    """
    exceeding = penalty - jnp.exp(log_left)
    # Without a penalty the logarithm is known, where its exponential may underflow.
    log_below = jnp.where(penalty == 0, log_left, jnp.log(jnp.maximum(-exceeding, 0)))
    is_below = (penalty == 0) | (exceeding < 0)
    return jnp.where(is_below, -1 / (1 - log_below), exceeding)
