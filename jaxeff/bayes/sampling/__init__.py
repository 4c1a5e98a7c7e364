"""Markov chain Monte Carlo: `mcmc` and its kernels, diagnostics, and the files of a run."""

from jaxeff.bayes.sampling._cycles import Cyclical
from jaxeff.bayes.sampling._diagnostics import (
    ConvergenceWarning,
    Mixing,
    mixing,
    parameter_mixing,
    prediction_mixing,
)
from jaxeff.bayes.sampling._kernels import HMC, MCLMC, NUTS, SGHMC, SGLD
from jaxeff.bayes.sampling._mcmc import mcmc
from jaxeff.bayes.sampling._result import MCMCResult
from jaxeff.bayes.sampling._run import ChainsDivergedError
from jaxeff.bayes.sampling._samplers import hmc, mclmc, nuts, sghmc, sgld

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
