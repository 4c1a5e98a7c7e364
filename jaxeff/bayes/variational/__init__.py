"""Stochastic variational inference: guides, the evidence lower bound, `svi`."""

from jaxeff.bayes.variational._collapse import CollapseWarning
from jaxeff.bayes.variational._correlated import CorrelatedPosterior
from jaxeff.bayes.variational._elbo import Loss, SVIResult, make_loss, start_from, train
from jaxeff.bayes.variational._flow import Flow
from jaxeff.bayes.variational._guide import Guide, resolve_guide
from jaxeff.bayes.variational._mean_field import MeanField
from jaxeff.bayes.variational._multivariate import FullRank, LowRank, low_rank_posterior
from jaxeff.bayes.variational._svi import mean_nll, svi

__all__ = [
    "CollapseWarning",
    "CorrelatedPosterior",
    "Flow",
    "FullRank",
    "Guide",
    "Loss",
    "LowRank",
    "MeanField",
    "SVIResult",
    "low_rank_posterior",
    "make_loss",
    "mean_nll",
    "resolve_guide",
    "start_from",
    "svi",
    "train",
]
