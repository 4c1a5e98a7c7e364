"""Latencies: what a search asks of a candidate, as functions that the caller gives.

```python
import jax

from jaxeff import cost
from jaxeff.nn import small_classifier
from jaxeff.search import Actions, RandomSearch, bit_operations, search

f, params, data = small_classifier(64)


def latency(candidate):                                  # any number above zero, such as seconds
    macs = cost(candidate.small.f, candidate.small.params, data[0][:1]).macs
    return macs + 1e-3 * bit_operations(candidate)


search(
    jax.random.key(0), f, params, data, agent=RandomSearch(), latency=latency, target=0.5,
    actions=Actions(round_to=4), episodes=1, steps=0, batch_size=8, sensitivities=False,
)
```
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from jaxeff.core import instance_of, validate
from jaxeff.search.evaluation._candidates import Small
from jaxeff.search.space import Policy, SearchSpace


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


@validate(candidate=instance_of(Candidate))
def bit_operations(candidate: Candidate) -> float:
    """Computes bit operations of a candidate: a stand-in for a measured time."""
    return float(candidate.space.bops(candidate.policy).sum())
