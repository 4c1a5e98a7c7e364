"""Markov chain Monte Carlo: `mcmc` and its kernels, diagnostics, and the files of a run."""

from jaxeff.bayes.sampling._diagnostics import (
    ConvergenceWarning,
    MCMCResult,
    Mixing,
    mixing,
    parameter_mixing,
    prediction_mixing,
)
from jaxeff.bayes.sampling._kernels import (
    HMC,
    MCLMC,
    NUTS,
    SGHMC,
    SGLD,
    Cyclical,
    MarkovKernel,
    WindowAdaptation,
)
from jaxeff.bayes.sampling._mcmc import mcmc
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
    "MarkovKernel",
    "Mixing",
    "WindowAdaptation",
    "mcmc",
    "mixing",
    "parameter_mixing",
    "prediction_mixing",
]
