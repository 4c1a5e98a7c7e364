"""Makes smaller models of a plan: masks, sliced programs, saved networks."""

from jaxeff.pruning.shrinking._plan import Plan
from jaxeff.pruning.shrinking._pruned import masked, pruned
from jaxeff.pruning.shrinking._saved import load_pruned, save_pruned

__all__ = ["Plan", "load_pruned", "masked", "pruned", "save_pruned"]
