"""The points of the study: depth, width and data size, each varied alone, and one deeper tree."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from experiments.scaling.engines import ENGINES
from experiments.scaling.problem import EXAMPLES, Configuration, Settings

DEFAULT = Configuration()
DEEPER = 10
"""The depth that NUTS may reach by the default of every engine."""


@dataclass(frozen=True)
class Task:
    """Engines that are measured beside each other.

    Attributes:
        contestants: Pairs of engine and method.
        configuration: What they infer.
        settings: How.
    """

    contestants: tuple[tuple[str, str], ...]
    configuration: Configuration
    settings: Settings

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.configuration.name}, trees up to {self.settings.doublings}"

    def as_dict(self) -> dict[str, Any]:
        """As JSON knows it."""
        return {**asdict(self), "contestants": [list(pair) for pair in self.contestants]}


def plan(fast: bool, settings: Settings, engines: list[str]) -> list[Task]:
    """Everything that is measured, the ends of each series first; jaxeff at the default only.

    Args:
        fast: Two points of two series, and no deeper tree.
        settings: How.
        engines: Those that are there.
    """
    if fast:
        changes = [{"depth": 1}, {"examples": 2 * EXAMPLES}]
    else:
        ends = [{"depth": 1}, {"examples": 4 * EXAMPLES}, {"width": 200}]
        ends += [{"width": 25}, {"depth": 5}, {"examples": EXAMPLES // 2}]
        between = [{"depth": 2}, {"depth": 4}, {"width": 100}, {"examples": 2 * EXAMPLES}]
        changes = ends + between
    contestants = [(name, method) for name in engines for method in ENGINES[name]]
    others = tuple(pair for pair in contestants if pair[0] != "jaxeff")
    tasks = [Task(tuple(contestants), DEFAULT, settings)]
    if others:
        tasks += [Task(others, replace(DEFAULT, **change), settings) for change in changes]
    if not fast:
        deeper = replace(settings, doublings=DEEPER, rounds=1)
        tasks.append(Task((("numpyro", "mcmc"),), DEFAULT, deeper))
    return tasks
