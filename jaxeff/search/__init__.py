"""Search for policies, channels and bits of every layer, by accuracy and latency.

After Galen (Krieger et al., arXiv 2212.07818): an agent says how much goes of every layer, channels
and bits; the candidate is measured, rewarded for its accuracy and for meeting a target latency, and
the agent learns. Latency is a function that the caller gives, so nothing here knows a compiler.
"""

from jaxeff.compression import FLOAT
from jaxeff.search._candidates import (
    Candidates,
    CompressionSensitivity,
    Metrics,
    Search,
    Small,
    sensitivity,
)
from jaxeff.search._ddpg import DDPG, Sequential
from jaxeff.search._knapsack import Knapsack
from jaxeff.search._objectives import (
    Absolute,
    Candidate,
    Exponential,
    Latency,
    LatencyError,
    OneSided,
    Reward,
    Worth,
    bit_operations,
)
from jaxeff.search._refinement import Refinement
from jaxeff.search._search import search, search_among
from jaxeff.search._searcher import (
    EpisodeResult,
    Evolution,
    Greedy,
    RandomSearch,
    Searcher,
    SearchProblem,
    UniformSearch,
)
from jaxeff.search._space import FP32, INT8, MIX, Actions, FewBitLayers, Policy, SearchSpace, Site

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
    "CompressionSensitivity",
    "EpisodeResult",
    "Evolution",
    "Exponential",
    "FewBitLayers",
    "Greedy",
    "Knapsack",
    "Latency",
    "LatencyError",
    "Metrics",
    "OneSided",
    "Policy",
    "RandomSearch",
    "Refinement",
    "Reward",
    "Search",
    "SearchProblem",
    "SearchSpace",
    "Searcher",
    "Sequential",
    "Site",
    "Small",
    "UniformSearch",
    "Worth",
    "bit_operations",
    "search",
    "search_among",
    "sensitivity",
]
