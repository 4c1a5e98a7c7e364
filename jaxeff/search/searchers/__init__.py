"""Proposes candidates: knapsack, greedy, evolution, reinforcement learning."""

from jaxeff.search.searchers._ddpg import DDPG
from jaxeff.search.searchers._evolution import Evolution
from jaxeff.search.searchers._greedy import Greedy
from jaxeff.search.searchers._knapsack import Knapsack
from jaxeff.search.searchers._searcher import Outcome, Problem, Random, Searcher, Uniform
from jaxeff.search.searchers._sequential import Sequential

__all__ = [
    "DDPG",
    "Evolution",
    "Greedy",
    "Knapsack",
    "Outcome",
    "Problem",
    "Random",
    "Searcher",
    "Sequential",
    "Uniform",
]
