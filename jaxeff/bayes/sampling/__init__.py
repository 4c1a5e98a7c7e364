"""Markov chain Monte Carlo: `mcmc` and its kernels, diagnostics, and the files of a run."""

from jaxeff.bayes.sampling._diagnostics import (
    ConvergenceWarning,
    MCMCResult,
    Mixing,
    mixing,
    parameter_mixing,
    prediction_mixing,
)
from jaxeff.bayes.sampling._kernels import HMC, MCLMC, NUTS, SGHMC, SGLD, Cyclical
from jaxeff.bayes.sampling._mcmc import hmc, mclmc, mcmc, nuts, sghmc, sgld
from jaxeff.bayes.sampling._run import ChainsDivergedError

__all__ = [
    "HMC",
    "MCLMC",
    "NUTS",
    "SGHMC",
    "SGLD",
    "ChainsDivergedError",
    "ConvergenceWarning",
    "Cyclical",
    "MCMCResult",
    "Mixing",
    "hmc",
    "mclmc",
    "mcmc",
    "mixing",
    "nuts",
    "parameter_mixing",
    "prediction_mixing",
    "sghmc",
    "sgld",
]
