"""The points of the study: depth, width and data size, each varied alone, and one deeper tree."""

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple

from experiments.engines import available, require
from experiments.harness import SELECTS, Least
from experiments.scaling.engines import ENGINES
from experiments.scaling.problem import EXAMPLES, Configuration, Settings

DEFAULT = Configuration()
DEEPER = 10
"""The depth that NUTS may reach by the default of every engine."""


@dataclass(frozen=True)
class Plan:
    """What is measured."""

    inference: Settings  # how inference is run, the same at every point
    # what is changed of the default configuration, one at a time, in this order
    points: tuple[tuple[str, int], ...]
    deeper: bool = True  # whether NUTS is also run with trees of its default depth
    # those that take part; all there are if none is named
    engines: tuple[Literal["numpyro", "blackjax", "tfp", "pyro", "jaxeff"], ...] = ()
    # start nothing after so long, and report what there is
    minutes: Annotated[float, Least(0), SELECTS] = math.inf

    def settled(self) -> "Plan":
        """With the engines that are there.

        Raises:
            Refused: One that is named isn't.
        """
        require(self.engines)
        there: Any = tuple(available(ENGINES))
        return replace(self, engines=self.engines or there)

    def tasks(self) -> "list[Task]":
        """Everything that is measured; jaxeff at the default only."""
        contestants = [(name, method) for name in self.engines for method in ENGINES[name]]
        others = tuple(pair for pair in contestants if pair[0] != "jaxeff")
        tasks = [Task(tuple(contestants), DEFAULT, self.inference)]
        if others:
            tasks += [
                Task(others, replace(DEFAULT, **{what: value}), self.inference)
                for what, value in self.points
            ]
        if self.deeper:
            deeper = replace(self.inference, doublings=DEEPER, rounds=1)
            tasks.append(Task((("numpyro", "mcmc"),), DEFAULT, deeper))
        return tasks


class Task(NamedTuple):
    """Pairs of engine and method that infer the same beside each other."""

    contestants: tuple[tuple[str, str], ...]
    configuration: Configuration
    settings: Settings

    def __str__(self) -> str:
        return f"{self.configuration}, trees up to {self.settings.doublings}"


# The ends of each series first: a run that is cut short has them.
POINTS = (
    ("depth", 1), ("examples", 4 * EXAMPLES), ("width", 200), ("width", 25), ("depth", 5),
    ("examples", EXAMPLES // 2), ("depth", 2), ("depth", 4), ("width", 100),
    ("examples", 2 * EXAMPLES),
)  # fmt: skip
SIZES = {
    "fast": Plan(
        Settings(warmup=10, samples=5, doublings=5, epochs=5, rounds=2),
        (("depth", 1), ("examples", 2 * EXAMPLES)),
        deeper=False,
    ),
    "default": Plan(Settings(), POINTS),
    "full": Plan(Settings(doublings=DEEPER, rounds=5), POINTS, deeper=False),
}
