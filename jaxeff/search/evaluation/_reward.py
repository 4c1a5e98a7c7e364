"""Rewards: accuracy, and how far the latency is from where it should be.

`Absolute` is Galen's (Klein's thesis, eq. (4.7), after Bender et al., TuNAS, arXiv 2008.06120):
both sides of the target cost alike, so a search lands on it. `OneSided` lets a candidate be faster
for nothing.
`Exponential` is MnasNet's (Tan et al., arXiv 1807.11626), which the source found less stable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Protocol

from jaxeff.core import Number, Setting, register_setting, static


class Reward(Protocol):
    """Protocol of rewards: the value of a candidate."""

    def __call__(self, accuracy: float, latency: float, target: float) -> float:
        """Returns the reward.

        Args:
            accuracy: From 0 to 1.
            latency: Latency of the candidate, in any unit.
            target: The latency that is asked for, in the same.
        """
        ...


@register_setting
@dataclass(frozen=True)
class Absolute(Setting):
    """accuracy + weight * |latency / target - 1|.

    Attributes:
        weight: Below zero; the source's is -3.
    """

    weight: Annotated[float, Number(below=0)] = static(-3.0)

    def __call__(self, accuracy: float, latency: float, target: float) -> float:
        """Implements `Reward`."""
        return accuracy + self.weight * abs(latency / target - 1)


@register_setting
@dataclass(frozen=True)
class OneSided(Setting):
    """accuracy + weight * max(0, latency / target - 1).

    Attributes:
        weight: Below zero.
    """

    weight: Annotated[float, Number(below=0)] = static(-3.0)

    def __call__(self, accuracy: float, latency: float, target: float) -> float:
        """Implements `Reward`."""
        return accuracy + self.weight * max(0.0, latency / target - 1)


@register_setting
@dataclass(frozen=True)
class Exponential(Setting):
    """accuracy * (latency / target) ** exponent.

    Attributes:
        exponent: Below zero; MnasNet's is -0.07.
    """

    exponent: Annotated[float, Number(below=0)] = static(-0.07)

    def __call__(self, accuracy: float, latency: float, target: float) -> float:
        """Implements `Reward`."""
        return float(accuracy * (latency / target) ** self.exponent)
