"""Stochastic variational inference: guides, the evidence lower bound, `svi`."""

from jaxeff.bayes.variational._guides import CorrelatedPosterior as CorrelatedPosterior
from jaxeff.bayes.variational._guides import Flow as Flow
from jaxeff.bayes.variational._guides import FullRank as FullRank
from jaxeff.bayes.variational._guides import Guide as Guide
from jaxeff.bayes.variational._guides import LowRank as LowRank
from jaxeff.bayes.variational._guides import MeanField as MeanField
from jaxeff.bayes.variational._guides import low_rank_posterior as low_rank_posterior
from jaxeff.bayes.variational._guides import resolve_guide as resolve_guide
from jaxeff.bayes.variational._svi import Approximation as Approximation
from jaxeff.bayes.variational._svi import CollapseWarning as CollapseWarning
from jaxeff.bayes.variational._svi import Loss as Loss
from jaxeff.bayes.variational._svi import Optimization as Optimization
from jaxeff.bayes.variational._svi import SVIResult as SVIResult
from jaxeff.bayes.variational._svi import VariationalOptions as VariationalOptions
from jaxeff.bayes.variational._svi import VariationalProblem as VariationalProblem
from jaxeff.bayes.variational._svi import make_loss as make_loss
from jaxeff.bayes.variational._svi import mean_nll as mean_nll
from jaxeff.bayes.variational._svi import start_from as start_from
from jaxeff.bayes.variational._svi import svi as svi
from jaxeff.bayes.variational._svi import train as train
