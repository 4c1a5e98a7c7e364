"""Risk control: thresholds that keep any loss small, each class covered, early exits safe.

All are methods for `conformalize` and `conformal`. Those that control a loss are made of another
method, whose regions the loss judges, and of the thresholds to choose from; one minus `coverage` is
the risk that is allowed:

```python
import jax.numpy as jnp
from jaxeff.nn import small_classifier
from jaxeff.uncertainty import CRC, LAC, conformal, conformalize, false_negative_rate

f, params, (x, y) = small_classifier()

def ordinal(region, targets):                        # how far the nearest class inside is off
    off = jnp.abs(jnp.arange(10)[None] - targets[:, None])
    return jnp.where(region, off, 10).min(-1).astype(float) / 10

method = CRC(LAC(), ordinal, jnp.linspace(-10, 10, 200))
safe = conformalize(f(params, x[:128]), y[:128], method, coverage=0.95)    # mean loss up to .05
sets = conformal(f, safe)(params, x[128:])
missed = false_negative_rate(sets, jnp.eye(10)[y[128:]]).mean()            # true classes outside
```
"""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import betainc, xlogy
from jaxtyping import Array, Bool, Float, Int

from jaxeff import core
from jaxeff.uncertainty import _conformal as sets

Loss = Callable[[Any, Any], Float[Array, " batch"]]


@core.register_setting
class Mondrian(sets.ConformalMethod):
    """Sets whose coverage holds in each class: a threshold each.

    A class without enough held-out examples is in every set.

    ```python
    from jaxeff.nn import small_classifier
    from jaxeff.uncertainty import LAC, Mondrian, conformalize

    f, params, (x, y) = small_classifier()
    each = conformalize(f(params, x[:128]), y[:128], Mondrian(LAC()), 0.8)     # of every class
    ```

    Attributes:
        method: `LAC`, `APS` or `RAPS`.

    References:
        Vovk, Gammerman, Shafer, "Algorithmic Learning in a Random World", 2005, section 4.5.
    """

    method: sets.LAC

    threshold_axes = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        core.instance_of(sets.LAC)("Mondrian: method", self.method)

    def scores(self, outputs: Any, targets: Any) -> Float[Array, " batch"]:
        """Computes the method's scores."""
        return self.method.scores(outputs, targets)

    def threshold(self, outputs: Any, targets: Any, members: Array, coverage: Any) -> Array:
        """Finds the threshold of each class, `[classes]`."""
        scores, targets = self.scores(outputs, targets), jnp.asarray(targets)
        classes = jnp.arange(sets.class_logits("Mondrian: outputs", outputs).shape[1])
        of_class = members[None] & (targets[None] == classes[:, None].astype(targets.dtype))
        return jax.vmap(lambda mask: sets.rank_threshold(scores, mask, coverage))(of_class)

    def region(self, outputs: Any, threshold: Float[Array, "..."]) -> Bool[Array, "batch classes"]:
        """Returns a mask of the classes whose score is at most their threshold."""
        logits = sets.class_logits("Mondrian: outputs", outputs)
        places = jnp.broadcast_to(jnp.arange(logits.shape[1])[None], logits.shape)
        score = jax.vmap(lambda place: sets.true_scores(self.method, logits, place[:, None]))
        scores = score(places.T).T
        inside = scores <= jnp.broadcast_to(threshold, logits.shape)
        best = logits == logits.max(-1, keepdims=True)
        return inside if self.method.allow_empty else inside | best

    def contains(self, region: Any, targets: Any) -> Bool[Array, " batch"]:
        """Tells whether each set holds the true class."""
        return self.method.contains(region, targets)


@core.register_setting
class _Controlled(sets.ConformalMethod):
    """A method whose threshold is chosen by what a loss says of its regions."""

    method: sets.ConformalMethod
    loss: Loss = core.static()
    thresholds: Float[Array, " candidates"] = dataclasses.field()

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        core.instance_of(sets.ConformalMethod)(f"{name}: method", self.method)
        core.function_of_form("loss(region, targets)")(f"{name}: loss", self.loss)
        core.real_array(1)(f"{name}: thresholds", self.thresholds)

    def scores(self, outputs: Any, targets: Any) -> Float[Array, " batch"]:
        """Computes the method's scores."""
        return self.method.scores(outputs, targets)

    def region(self, outputs: Any, threshold: Float[Array, "..."]) -> Any:
        """Returns the method's region."""
        return self.method.region(outputs, threshold)

    def contains(self, region: Any, targets: Any) -> Any:
        """Tells whether each target lies in its region."""
        return self.method.contains(region, targets)

    def threshold(self, outputs: Any, targets: Any, members: Array, coverage: Any) -> Array:
        """Finds the smallest threshold at which, and above which, the risk is small enough."""
        ordered = jnp.sort(jnp.asarray(self.thresholds, float))
        losses = self._losses(outputs, targets, ordered)
        risk = 1 - jnp.asarray(coverage, float)
        is_safe = self._safe(losses, members, risk)
        smallest = jnp.where(is_safe.any(), ordered[is_safe.argmax()], jnp.inf)
        return jnp.where(jnp.isnan(losses).any(), jnp.nan, smallest)

    def _safe(self, losses: Array, members: Array, risk: Array) -> Array:
        raise NotImplementedError

    def _losses(self, outputs: Any, targets: Any, thresholds: Array) -> Array:
        """Computes the loss of each threshold and example, `[candidates, batch]`."""
        name, targets = type(self).__name__, jnp.asarray(targets)

        def at(threshold: Array) -> Array:
            return jnp.asarray(self.loss(self.region(outputs, threshold), targets), float)

        losses = jax.lax.map(at, thresholds)
        if losses.shape[1:] != targets.shape[:1]:
            raise ValueError(
                f"{name}: loss(region, targets) must be [batch], {targets.shape[:1]}, not "
                f"{losses.shape[1:]}"
            )
        if core.is_concrete(losses) and bool(((losses < 0) | (losses > 1)).any()):
            raise ValueError(
                f"{name}: losses must lie between 0 and 1, but are from {losses.min()} to "
                f"{losses.max()}: divide them by the largest that there can be"
            )
        return losses


def _and_above(is_safe: Array) -> Array:
    """Tells of each threshold whether it and all larger ones are safe."""
    return jnp.flip(jnp.cumprod(jnp.flip(is_safe).astype(jnp.int32))).astype(bool)


@core.register_setting
class CRC(_Controlled):
    """Conformal risk control: the mean loss of a new example is at most what was asked.

    With the mean loss R over n held-out examples, a threshold is safe where ``(n R + 1) / (n + 1)``
    is at most the risk. Of the loss ``~contains`` that is `conformalize` of the method itself.

    `RCPS` and `LTT` have the same sharp edges.

    Sharp edges:
        Where no threshold is safe enough, that of the result is infinite: the region holds
        everything, and an early exit isn't taken. A loss must be 0 there.
        Thresholds, loss and method are chosen before the held-out examples are looked at.

    Attributes:
        method: The method whose regions are judged.
        loss: ``loss(region, targets)``, from 0 to 1 each, `[batch]`; it falls with the threshold.
        thresholds: To choose from, `[candidates]`.

    References:
        Angelopoulos, Bates, Fisch, Lei, Schuster, "Conformal Risk Control", ICLR 2024, arXiv
        2208.02814, eq. 4.
    """

    def _safe(self, losses: Array, members: Array, risk: Array) -> Array:
        n = members.sum().astype(losses.dtype)
        total = jnp.where(members[None], losses, 0).sum(-1)
        # A millionth is spared for sums that are rounded.
        return _and_above((total + 1) * (1 - sets.SPARE) <= risk * (n + 1))


@core.register_setting
class RCPS(_Controlled):
    """Risk-controlling prediction sets: the risk is small, but for a share of calibrations.

    The probability that the mean loss of new examples is more than was asked is at most `delta`,
    over draws of the held-out ones. A threshold is safe where the p-value of a larger risk is at
    most `delta`, there and at all larger ones.

    The p-value of "hoeffding_bentkus" is the smaller of ``exp(-n h(min(R, a), a))``, h the relative
    entropy of coins of such biases, and e times the probability of ``ceil(n R)`` or fewer of n
    coins of bias a. That of "wsr" is one over the largest capital of bets ``1 - v_j (L_j - a)`` on
    the losses in their order, ``v_j = min(1, sqrt(2 log(1 / delta) / (n s_{j-1})))`` with the
    variance s before it (Waudby-Smith and Ramdas, "Estimating Means of Bounded Random Variables by
    Betting", JRSS B 86 (2024), arXiv 2010.09686): the smallest sets where losses vary little.

    Attributes:
        method: The method whose regions are judged.
        loss: ``loss(region, targets)``, from 0 to 1 each, `[batch]`; it falls with the threshold.
        thresholds: To choose from, `[candidates]`.
        delta: Probability of held-out examples for which the risk is larger.
        bound: "wsr" or "hoeffding_bentkus".

    References:
        Bates, Angelopoulos, Lei, Malik, Jordan, "Distribution-Free, Risk-Controlling Prediction
        Sets", JACM 68 (2021), arXiv 2101.02703.
    """

    delta: Annotated[float, core.Number(above=0, below=1)] = core.static(0.1)
    bound: Annotated[str, core.Choice("wsr", "hoeffding_bentkus")] = core.static("wsr")

    def _safe(self, losses: Array, members: Array, risk: Array) -> Array:
        return _and_above(self._p_values(losses, members, risk) <= self.delta)

    def _p_values(self, losses: Array, members: Array, risk: Array, level: Any = None) -> Array:
        if self.bound == "wsr":
            return _betting(losses, members, risk, self.delta if level is None else level)
        return _hoeffding_bentkus(losses, members, risk)


@core.register_setting
class LTT(RCPS):
    """Learn then test: as `RCPS`, of losses that may rise and fall with the threshold.

    Each threshold is a hypothesis that its risk is too large. "fixed_sequence" tests from the
    largest on and stops at the first that can't be rejected; "bonferroni" tests each at `delta`
    over their number, and takes the smallest rejected one.

    Attributes:
        method: The method whose regions are judged.
        loss: ``loss(region, targets)``, from 0 to 1 each, `[batch]`.
        thresholds: To choose from, `[candidates]`.
        delta: Probability of held-out examples for which the risk is larger.
        bound: "wsr" or "hoeffding_bentkus".
        correction: "fixed_sequence" or "bonferroni".

    References:
        Angelopoulos, Bates, Candes, Jordan, Lei, "Learn then Test", arXiv 2110.01052.
    """

    correction: Annotated[str, core.Choice("fixed_sequence", "bonferroni")] = core.static(
        "fixed_sequence"
    )

    def _safe(self, losses: Array, members: Array, risk: Array) -> Array:
        if self.correction == "fixed_sequence":
            return super()._safe(losses, members, risk)
        level = self.delta / len(losses)
        return self._p_values(losses, members, risk, level) <= level


def _hoeffding_bentkus(losses: Array, members: Array, risk: Array) -> Array:
    """Computes p-values of a mean above the risk, `[candidates]` (Bates et al., theorem 4)."""
    n = members.sum().astype(losses.dtype)
    total = jnp.where(members[None], losses, 0).sum(-1)
    mean = jnp.minimum(total / jnp.maximum(n, 1), risk)
    entropy = xlogy(mean, mean / risk) + xlogy(1 - mean, (1 - mean) / (1 - risk))
    count = jnp.ceil(total * (1 - sets.SPARE))
    tail = betainc(jnp.maximum(n - count, 1), count + 1, jnp.broadcast_to(1 - risk, count.shape))
    bentkus = jnp.e * jnp.where(count >= n, 1, tail)
    return jnp.minimum(jnp.minimum(jnp.exp(-n * entropy), bentkus), 1)


def _betting(losses: Array, members: Array, risk: Array, level: Any) -> Array:
    """Computes p-values of a mean above the risk, `[candidates]` (Bates et al., proposition 5)."""
    mask = members.astype(losses.dtype)[None]
    seen = jnp.cumsum(mask, -1)
    mean = (0.5 + jnp.cumsum(mask * losses, -1)) / (1 + seen)
    variance = (0.25 + jnp.cumsum(mask * (losses - mean) ** 2, -1)) / (1 + seen)
    before = jnp.concatenate([jnp.full_like(variance[:, :1], 0.25), variance[:, :-1]], -1)
    stake = jnp.sqrt(2 * jnp.log(1 / level) / (jnp.maximum(mask.sum(), 1) * before))
    gains = jnp.log1p(-jnp.minimum(stake, 1) * (losses - risk))
    capital = jnp.cumsum(mask * gains, -1)
    return jnp.exp(-jnp.maximum(capital.max(-1), 0))


@core.register_setting
class MultiLabel(sets.ConformalMethod):
    """Sets of labels of which several may be true, by thresholds on logits.

    Outputs and targets (0 or 1) are ``[batch, labels]``, or have more axes, such as pixels. A set
    of a plain `conformalize` holds all true labels as often as was asked; with `CRC` and
    `false_negative_rate` it holds most of them.
    """

    def scores(self, outputs: Any, targets: Any) -> Float[Array, " batch"]:
        """Computes minus the smallest logit of a true label."""
        logits, truth = _labels("MultiLabel: outputs", outputs, targets)
        return jnp.where(truth, -logits, -jnp.inf).max(tuple(range(1, logits.ndim)))

    def region(self, outputs: Any, threshold: Float[Array, "..."]) -> Bool[Array, "batch ..."]:
        """Returns a mask of the labels whose logit is at least minus the threshold."""
        logits = jnp.asarray(outputs)
        shape = jnp.shape(threshold)
        return -logits <= jnp.reshape(threshold, shape + (1,) * (logits.ndim - len(shape)))

    def contains(self, region: Any, targets: Any) -> Bool[Array, " batch"]:
        """Tells of each example whether all of its labels are inside."""
        region, truth = _labels("MultiLabel: region", region, targets)
        return (region | ~truth).all(tuple(range(1, region.ndim)))


def _labels(where: str, values: Any, targets: Any) -> tuple[Array, Array]:
    values, targets = jnp.asarray(values), jnp.asarray(targets)
    if values.ndim < 2 or values.shape != targets.shape:
        raise TypeError(
            f"{where} and targets must both be [batch, labels], not {values.shape} and "
            f"{targets.shape}"
        )
    return values, targets.astype(bool)


@core.validate(region=core.real_array(), targets=core.real_array())
def false_negative_rate(region: Any, targets: Any) -> Float[Array, " batch"]:
    """Computes the share of true labels that a set lacks; 0 where there are none.

    Args:
        region: Sets of `MultiLabel`, ``[batch, labels]``.
        targets: 0 or 1, of the same shape.

    Raises:
        TypeError: The shapes differ.
    """
    region, truth = _labels("false_negative_rate: region", region, targets)
    axes = tuple(range(1, region.ndim))
    missed = (truth & ~region).sum(axes).astype(float)
    return missed / jnp.maximum(truth.sum(axes), 1).astype(float)


class ExitDecision(NamedTuple):
    """Where each input left.

    Attributes:
        logits: Logits of the exit that was taken, `[batch, classes]`.
        place: Number of that exit, from 0, `[batch]`.
        last: Logits of the last exit, `[batch, classes]`.
    """

    logits: Float[Array, "batch classes"]
    place: Int[Array, " batch"]
    last: Float[Array, "batch classes"]


@core.register_setting
class EarlyExit(sets.ConformalMethod):
    """Leaves at the first exit that is sure enough: the softmax of a class reaches the threshold.

    Outputs are logits of all exits, ``[exits, batch, classes]`` or a tuple of those; the last is
    taken where no other is sure. It is to be controlled, as by ``LTT(EarlyExit(), extra_error,
    thresholds)``: the error that leaving early adds need not fall as the threshold rises. A network
    that stops takes the same threshold in its `jax.lax.cond`.

    References:
        Jazbec, Timans, Hadzi Veljkovic, Sakmann, Zhang, Naesseth, Nalisnick, "Fast yet Safe:
        Early-Exiting with Risk Control", NeurIPS 2024, arXiv 2405.20915.
    """

    def scores(self, outputs: Any, targets: Any) -> Float[Array, " batch"]:
        """Raises an error: an exit has no score of a target."""
        raise TypeError(
            "EarlyExit has no score of its own: control a loss, such as "
            "LTT(EarlyExit(), extra_error, thresholds)"
        )

    def region(self, outputs: Any, threshold: Float[Array, "..."]) -> ExitDecision:
        """Returns the logits of the exit that is taken, and which it is."""
        logits = jnp.stack(list(outputs))
        if logits.ndim != 3:
            raise TypeError(
                f"EarlyExit: outputs must be logits [exits, batch, classes], not {logits.shape}"
            )
        needed = jnp.broadcast_to(threshold, logits.shape[1:2])[None]
        sure = jax.nn.softmax(logits).max(-1) >= needed
        place = sure.at[-1].set(True).argmax(0)
        taken = jnp.take_along_axis(logits, place[None, :, None], 0)[0]
        return ExitDecision(taken, place, logits[-1])

    def contains(self, region: Any, targets: Any) -> Bool[Array, " batch"]:
        """Tells whether the exit's most probable class is the true one."""
        return region.logits.argmax(-1) == jnp.asarray(targets)


@core.validate(region=core.instance_of(ExitDecision), targets=core.integer_array(1))
def extra_error(region: ExitDecision, targets: Int[Array, " batch"]) -> Float[Array, " batch"]:
    """Computes 1 where the exit that was taken is wrong and the last one is right, else 0.

    Its mean is at least what leaving early adds to the network's error.

    ```python
    import jax.numpy as jnp
    from jaxeff.nn import small_classifier
    from jaxeff.uncertainty import LTT, EarlyExit, conformal, conformalize, extra_error

    f, params, (x, y) = small_classifier()

    def exits(params, x):                                # logits of an early and of the last exit
        logits = f(params, x)
        return jnp.stack([logits / 2, logits])

    rule = LTT(EarlyExit(), extra_error, jnp.linspace(0, 1, 51), delta=0.1)
    leaving = conformalize(exits(params, x[:128]), y[:128], rule, coverage=0.9)
    decision = conformal(exits, leaving)(params, x[128:])                      # logits, place, last
    added = extra_error(decision, y[128:]).mean()                              # by leaving early
    ```

    Args:
        region: What `EarlyExit` decided.
        targets: True classes.

    Raises:
        ValueError: A target is no class.
    """
    shape, truth = region.last.shape, jnp.asarray(targets)
    core.check_labels("extra_error: targets", targets, shape[-1], shape[:1])
    is_right = [logits.argmax(-1) == truth for logits in (region.logits, region.last)]
    return (~is_right[0] & is_right[1]).astype(float)
