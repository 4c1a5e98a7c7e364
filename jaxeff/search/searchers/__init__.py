"""Proposes candidates: knapsack, greedy, evolution, reinforcement learning."""

from jaxeff.search.searchers._ddpg import DDPG
from jaxeff.search.searchers._evolution import Evolution
from jaxeff.search.searchers._greedy import Greedy
from jaxeff.search.searchers._knapsack import Knapsack
from jaxeff.search.searchers._searcher import (
    EpisodeResult,
    RandomSearch,
    Searcher,
    SearchProblem,
    UniformSearch,
)
from jaxeff.search.searchers._sequential import Sequential

__all__ = [
    "DDPG",
    "EpisodeResult",
    "Evolution",
    "Greedy",
    "Knapsack",
    "RandomSearch",
    "SearchProblem",
    "Searcher",
    "Sequential",
    "UniformSearch",
]
