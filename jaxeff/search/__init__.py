"""Search for policies, channels and bits of every layer, by accuracy and latency.

After Galen (Krieger et al., arXiv 2212.07818): an agent says how much goes of every layer, channels
and bits; the candidate is measured, rewarded for its accuracy and for meeting a target latency, and
the agent learns. Latency is a function that the caller gives, so nothing here knows a compiler.
"""

from jaxeff.compression import FLOAT as FLOAT
from jaxeff.search._candidates import Candidates as Candidates
from jaxeff.search._candidates import CompressionSensitivity as CompressionSensitivity
from jaxeff.search._candidates import Metrics as Metrics
from jaxeff.search._candidates import Search as Search
from jaxeff.search._candidates import Small as Small
from jaxeff.search._candidates import sensitivity as sensitivity
from jaxeff.search._ddpg import DDPG as DDPG
from jaxeff.search._ddpg import Sequential as Sequential
from jaxeff.search._knapsack import Knapsack as Knapsack
from jaxeff.search._objectives import Absolute as Absolute
from jaxeff.search._objectives import Candidate as Candidate
from jaxeff.search._objectives import Exponential as Exponential
from jaxeff.search._objectives import Latency as Latency
from jaxeff.search._objectives import LatencyError as LatencyError
from jaxeff.search._objectives import OneSided as OneSided
from jaxeff.search._objectives import Reward as Reward
from jaxeff.search._objectives import Worth as Worth
from jaxeff.search._objectives import bit_operations as bit_operations
from jaxeff.search._refinement import Refinement as Refinement
from jaxeff.search._search import search as search
from jaxeff.search._search import search_among as search_among
from jaxeff.search._searcher import EpisodeResult as EpisodeResult
from jaxeff.search._searcher import Evolution as Evolution
from jaxeff.search._searcher import Greedy as Greedy
from jaxeff.search._searcher import RandomSearch as RandomSearch
from jaxeff.search._searcher import Searcher as Searcher
from jaxeff.search._searcher import SearchProblem as SearchProblem
from jaxeff.search._searcher import UniformSearch as UniformSearch
from jaxeff.search._space import FP32 as FP32
from jaxeff.search._space import INT8 as INT8
from jaxeff.search._space import MIX as MIX
from jaxeff.search._space import Actions as Actions
from jaxeff.search._space import FewBitLayers as FewBitLayers
from jaxeff.search._space import Policy as Policy
from jaxeff.search._space import SearchSpace as SearchSpace
from jaxeff.search._space import Site as Site
