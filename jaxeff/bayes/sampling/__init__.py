"""Markov chain Monte Carlo: `mcmc` and its kernels, diagnostics, and the files of a run."""

from jaxeff.bayes.sampling._diagnostics import ConvergenceWarning as ConvergenceWarning
from jaxeff.bayes.sampling._diagnostics import MCMCResult as MCMCResult
from jaxeff.bayes.sampling._diagnostics import Mixing as Mixing
from jaxeff.bayes.sampling._diagnostics import mixing as mixing
from jaxeff.bayes.sampling._diagnostics import parameter_mixing as parameter_mixing
from jaxeff.bayes.sampling._diagnostics import prediction_mixing as prediction_mixing
from jaxeff.bayes.sampling._kernels import HMC as HMC
from jaxeff.bayes.sampling._kernels import MCLMC as MCLMC
from jaxeff.bayes.sampling._kernels import NUTS as NUTS
from jaxeff.bayes.sampling._kernels import SGHMC as SGHMC
from jaxeff.bayes.sampling._kernels import SGLD as SGLD
from jaxeff.bayes.sampling._kernels import Cyclical as Cyclical
from jaxeff.bayes.sampling._kernels import MarkovKernel as MarkovKernel
from jaxeff.bayes.sampling._kernels import WindowAdaptation as WindowAdaptation
from jaxeff.bayes.sampling._mcmc import mcmc as mcmc
from jaxeff.bayes.sampling._run import ChainsDivergedError as ChainsDivergedError
