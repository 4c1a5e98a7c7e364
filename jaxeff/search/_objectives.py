"""What a search is after: rewards of accuracy and latency.

`Absolute` is Galen's (Klein's thesis, eq. (4.7), after Bender et al., TuNAS, arXiv 2008.06120):
both sides of the target cost alike, so a search lands on it. `OneSided` lets a candidate be faster
for nothing.
`Exponential` is MnasNet's (Tan et al., arXiv 1807.11626), which the thesis found less stable.

What stands in the place of accuracy may be worth of another kind: `Worth` weighs metrics that
candidates are measured by, such as how well doubt finds inputs of another kind.

```python
from jaxeff.search import OneSided, Worth

worth = Worth(accuracy=1.0, auroc=0.5)
found = worth({"accuracy": 0.9, "auroc": 0.8, "nll": 0.4})        # 1.3
OneSided()(found, latency=0.2, target=0.3)                        # 1.3: fast enough
```
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Protocol

from jaxeff import core
from jaxeff.search._candidates import Small
from jaxeff.search._space import Policy, SearchSpace


class Reward(Protocol):
    """Protocol of rewards: the value of a candidate."""

    def __call__(self, accuracy: float, latency: float, target: float) -> float:
        """Returns the reward.

        Args:
            accuracy: From 0 to 1; or what a candidate is worth by other metrics.
            latency: Latency of the candidate, in any unit.
            target: The latency that is asked for, in the same.
        """
        ...


@core.register_setting
class Absolute(core.Setting):
    """accuracy + weight * |latency / target - 1|.

    Attributes:
        weight: Below zero; the thesis' is -3.
    """

    weight: Annotated[float, core.Number(below=0)] = core.static(-3.0)

    def __call__(self, accuracy: float, latency: float, target: float) -> float:
        return accuracy + self.weight * abs(latency / target - 1)


@core.register_setting
class OneSided(core.Setting):
    """accuracy + weight * max(0, latency / target - 1).

    Attributes:
        weight: Below zero.
    """

    weight: Annotated[float, core.Number(below=0)] = core.static(-3.0)

    def __call__(self, accuracy: float, latency: float, target: float) -> float:
        return accuracy + self.weight * max(0.0, latency / target - 1)


@core.register_setting
class Exponential(core.Setting):
    """accuracy * (latency / target) ** exponent.

    Attributes:
        exponent: Below zero; MnasNet's is -0.07.
    """

    exponent: Annotated[float, core.Number(below=0)] = core.static(-0.07)

    def __call__(self, accuracy: float, latency: float, target: float) -> float:
        return float(accuracy * (latency / target) ** self.exponent)


@dataclass(frozen=True, init=False)
class Worth:
    """A weighted sum of named metrics, in the place of accuracy in a reward.

    Attributes:
        weights: Pairs of a metric's name and its weight, sorted by name.

    Raises:
        TypeError: A weight is no number.
        ValueError: No metric is named, or a weight isn't finite.
    """

    weights: tuple[tuple[str, float], ...]

    def __init__(self, **weights: float) -> None:
        """Takes a weight for each metric: above zero where more is better, else below."""
        if not weights:
            raise ValueError("Worth needs the weight of a metric, such as Worth(accuracy=1.0).")
        for name, weight in weights.items():
            core.check_number(f"Worth: {name}", weight)
        # Sorted, for a search's folder knows it by its text.
        object.__setattr__(self, "weights", tuple(sorted(weights.items())))

    def __call__(self, metrics: Mapping[str, float]) -> float:
        """Weighs the metrics of a candidate.

        Args:
            metrics: Numbers by name, "accuracy" among them.

        Raises:
            ValueError: A metric that has a weight wasn't measured.
        """
        if missing := sorted({name for name, _ in self.weights} - set(metrics)):
            raise ValueError(
                f"Worth weighs {', '.join(missing)}, which candidates aren't measured by: they "
                f"have {', '.join(sorted(metrics))}. Return it from Candidates' metrics."
            )
        return float(sum(weight * metrics[name] for name, weight in self.weights))


@dataclass(frozen=True, eq=False)
class Candidate:
    """A candidate whose latency is asked for.

    Attributes:
        policy: The channels kept and the bits, as numbers.
        space: The model's layers.
        small: The function and parameters to deploy; made when it is asked for.
    """

    policy: Policy
    space: SearchSpace
    make: Callable[[Policy], Small] = field(repr=False)

    @property
    def small(self) -> Small:
        """The model with new shapes."""
        return self.make(self.policy)


Latency = Callable[[Candidate], float]
"""Function from a candidate to the duration of a call, in any unit; above zero."""


class LatencyError(RuntimeError):
    """A candidate couldn't be measured; the search goes on without it.

    A latency raises it for a board that is lost or a candidate that doesn't compile.
    """


@core.validate(candidate=core.instance_of(Candidate))
def bit_operations(candidate: Candidate) -> float:
    """Computes bit operations of a candidate: a stand-in for a measured time.

    A latency is a function of a candidate that the caller gives:

    ```python
    import jax

    from jaxeff import cost
    from jaxeff.nn import small_classifier
    from jaxeff.search import Actions, RandomSearch, bit_operations, search

    f, params, data = small_classifier(64)


    def latency(candidate):                              # any number above zero, such as seconds
        macs = cost(candidate.small.f, candidate.small.params, data[0][:1]).macs
        return macs + 1e-3 * bit_operations(candidate)


    search(
        jax.random.key(0), f, params, data, agent=RandomSearch(), latency=latency, target=0.5,
        actions=Actions(round_to=4), episodes=1, steps=0, batch_size=8, sensitivities=False,
    )
    ```
    """
    return float(candidate.space.bops(candidate.policy).sum())
