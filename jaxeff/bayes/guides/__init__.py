"""Guides: the families of distributions that variational inference chooses a posterior from."""

from jaxeff.bayes.guides.flow import Flow
from jaxeff.bayes.guides.guide import Guide, resolve_guide
from jaxeff.bayes.guides.joint import Joint
from jaxeff.bayes.guides.mean_field import MeanField
from jaxeff.bayes.guides.multivariate import FullRank, LowRank

__all__ = ["Flow", "FullRank", "Guide", "Joint", "LowRank", "MeanField", "resolve_guide"]
