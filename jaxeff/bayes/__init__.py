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

from jaxeff.bayes._distillation import around_best_draw, distill
from jaxeff.bayes._interchange import from_numpyro, from_pyro, load_posterior, save_posterior
from jaxeff.bayes._laplace import Laplace, laplace
from jaxeff.bayes._optimizers import ivon, ivon_posterior, swag, swag_posterior
from jaxeff.bayes._precision import LaplaceWarning
from jaxeff.bayes.posteriors import (
    Draws,
    MixturePosterior,
    Posterior,
    check_posterior,
    draw,
    predict,
    prior_scales,
    sample,
    to_gaussians,
)
from jaxeff.bayes.sampling import (
    HMC,
    MCLMC,
    NUTS,
    SGHMC,
    SGLD,
    ChainsDivergedError,
    ConvergenceWarning,
    Cyclical,
    MarkovKernel,
    MCMCResult,
    Mixing,
    WindowAdaptation,
    mcmc,
    mixing,
    parameter_mixing,
    prediction_mixing,
)
from jaxeff.bayes.variational import (
    CollapseWarning,
    Flow,
    FullRank,
    LowRank,
    MeanField,
    SVIResult,
    svi,
)

__all__ = [
    "HMC",
    "MCLMC",
    "NUTS",
    "SGHMC",
    "SGLD",
    "ChainsDivergedError",
    "CollapseWarning",
    "ConvergenceWarning",
    "Cyclical",
    "Draws",
    "Flow",
    "FullRank",
    "Laplace",
    "LaplaceWarning",
    "LowRank",
    "MCMCResult",
    "MarkovKernel",
    "MeanField",
    "Mixing",
    "MixturePosterior",
    "Posterior",
    "SVIResult",
    "WindowAdaptation",
    "around_best_draw",
    "check_posterior",
    "distill",
    "draw",
    "from_numpyro",
    "from_pyro",
    "ivon",
    "ivon_posterior",
    "laplace",
    "load_posterior",
    "mcmc",
    "mixing",
    "parameter_mixing",
    "predict",
    "prediction_mixing",
    "prior_scales",
    "sample",
    "save_posterior",
    "svi",
    "swag",
    "swag_posterior",
    "to_gaussians",
]
