"""Stochastic variational inference: guides, the evidence lower bound, `svi`."""

from jaxeff.bayes.variational._guides import (
    CorrelatedPosterior,
    Flow,
    FullRank,
    Guide,
    LowRank,
    MeanField,
    low_rank_posterior,
    resolve_guide,
)
from jaxeff.bayes.variational._svi import (
    CollapseWarning,
    Loss,
    SVIResult,
    make_loss,
    mean_nll,
    start_from,
    svi,
    train,
)

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
