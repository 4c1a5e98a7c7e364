"""Bayesian neural networks: posteriors over the parameters of any ``f(params, *args)``.

```python
import jax
import optax

import jaxeff
from jaxeff.bayes import predict, svi
from jaxeff.nn import small_classifier

key = jax.random.key(0)
f, params, (x, y) = small_classifier()
result = svi(
    key, f, params, (x, y), epochs=20, batch_size=32, init_scale=0.02, optimizer=optax.adam(1e-2)
)
logits = predict(key, f, result.posterior, x, samples=30)   # [samples, batch, classes]
jaxeff.moments(f)(result.posterior, x)                      # one pass instead of 30
```

`mcmc` samples instead, by `NUTS`, `HMC`, `MCLMC`, `SGLD`, `SGHMC` or any of BlackJAX's; `laplace`
fits a Gaussian around trained weights; `from_numpyro` and `from_pyro` read guides trained
elsewhere; `ivon` and `swag` are optimizers that leave one behind. A
`MixturePosterior` has several modes.
"""

from jaxeff.bayes._distillation import around_best_draw as around_best_draw
from jaxeff.bayes._distillation import distill as distill
from jaxeff.bayes._interchange import from_numpyro as from_numpyro
from jaxeff.bayes._interchange import from_pyro as from_pyro
from jaxeff.bayes._interchange import load_posterior as load_posterior
from jaxeff.bayes._interchange import save_posterior as save_posterior
from jaxeff.bayes._laplace import Laplace as Laplace
from jaxeff.bayes._laplace import laplace as laplace
from jaxeff.bayes._optimizers import ivon as ivon
from jaxeff.bayes._optimizers import ivon_posterior as ivon_posterior
from jaxeff.bayes._optimizers import swag as swag
from jaxeff.bayes._optimizers import swag_posterior as swag_posterior
from jaxeff.bayes._precision import LaplaceWarning as LaplaceWarning
from jaxeff.bayes.posteriors import Draws as Draws
from jaxeff.bayes.posteriors import MixturePosterior as MixturePosterior
from jaxeff.bayes.posteriors import Posterior as Posterior
from jaxeff.bayes.posteriors import check_posterior as check_posterior
from jaxeff.bayes.posteriors import draw as draw
from jaxeff.bayes.posteriors import predict as predict
from jaxeff.bayes.posteriors import prior_scales as prior_scales
from jaxeff.bayes.posteriors import sample as sample
from jaxeff.bayes.posteriors import to_gaussians as to_gaussians
from jaxeff.bayes.sampling import HMC as HMC
from jaxeff.bayes.sampling import MCLMC as MCLMC
from jaxeff.bayes.sampling import NUTS as NUTS
from jaxeff.bayes.sampling import SGHMC as SGHMC
from jaxeff.bayes.sampling import SGLD as SGLD
from jaxeff.bayes.sampling import ChainsDivergedError as ChainsDivergedError
from jaxeff.bayes.sampling import ConvergenceWarning as ConvergenceWarning
from jaxeff.bayes.sampling import Cyclical as Cyclical
from jaxeff.bayes.sampling import MarkovKernel as MarkovKernel
from jaxeff.bayes.sampling import MCMCResult as MCMCResult
from jaxeff.bayes.sampling import Mixing as Mixing
from jaxeff.bayes.sampling import WindowAdaptation as WindowAdaptation
from jaxeff.bayes.sampling import mcmc as mcmc
from jaxeff.bayes.sampling import mixing as mixing
from jaxeff.bayes.sampling import parameter_mixing as parameter_mixing
from jaxeff.bayes.sampling import prediction_mixing as prediction_mixing
from jaxeff.bayes.variational import CollapseWarning as CollapseWarning
from jaxeff.bayes.variational import Flow as Flow
from jaxeff.bayes.variational import FullRank as FullRank
from jaxeff.bayes.variational import LowRank as LowRank
from jaxeff.bayes.variational import MeanField as MeanField
from jaxeff.bayes.variational import SVIResult as SVIResult
from jaxeff.bayes.variational import svi as svi
