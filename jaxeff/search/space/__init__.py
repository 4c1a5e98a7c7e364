"""The space that is searched: layers, actions, policies."""

from jaxeff.search.space._actions import Actions
from jaxeff.search.space._policy import FP32, INT8, MIX, Policy
from jaxeff.search.space._space import FewBitLayers, SearchSpace, Site

__all__ = ["FP32", "INT8", "MIX", "Actions", "FewBitLayers", "Policy", "SearchSpace", "Site"]
