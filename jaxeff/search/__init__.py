"""How much of each layer should stay: policies found by agents that see latencies.

After Galen (Krieger et al., arXiv 2212.07818): an agent says how much goes of every layer, channels
and bits; the candidate is measured, rewarded for its accuracy and for landing on a latency, and the
agent learns. Latency is a function that the caller gives, so nothing here knows a compiler.
"""

from jaxeff.search.actions import Actions
from jaxeff.search.candidates import Candidates, Small
from jaxeff.search.ddpg import DDPG
from jaxeff.search.evolution import Evolution
from jaxeff.search.greedy import Greedy
from jaxeff.search.knapsack import Knapsack
from jaxeff.search.landing import Landing
from jaxeff.search.latency import Candidate, Latency, LatencyError, bit_operations
from jaxeff.search.policy import FLOAT, FP32, INT8, MIX, Policy
from jaxeff.search.result import Search
from jaxeff.search.reward import Absolute, Exponential, OneSided, Reward
from jaxeff.search.run import search, search_among
from jaxeff.search.searcher import Outcome, Problem, Random, Searcher, Uniform
from jaxeff.search.sensitivity import Sensitivity, sensitivity
from jaxeff.search.sequential import Sequential
from jaxeff.search.space import Legal, Site, Space

__all__ = [
    "DDPG",
    "FLOAT",
    "FP32",
    "INT8",
    "MIX",
    "Absolute",
    "Actions",
    "Candidate",
    "Candidates",
    "Evolution",
    "Exponential",
    "Greedy",
    "Knapsack",
    "Landing",
    "Latency",
    "LatencyError",
    "Legal",
    "OneSided",
    "Outcome",
    "Policy",
    "Problem",
    "Random",
    "Reward",
    "Search",
    "Searcher",
    "Sensitivity",
    "Sequential",
    "Site",
    "Small",
    "Space",
    "Uniform",
    "bit_operations",
    "search",
    "search_among",
    "sensitivity",
]
