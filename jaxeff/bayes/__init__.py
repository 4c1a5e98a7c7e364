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

`nuts`, `hmc`, `sgld` and `sghmc` sample instead (`jaxeff.bayes.sampling.mcmc`); `laplace` fits a
Gaussian around a trained last layer; a `MixturePosterior` has several modes.
"""

from jaxeff.bayes.bridges import around_best_draw
from jaxeff.bayes.collapse import CollapseWarning
from jaxeff.bayes.distillation import distill
from jaxeff.bayes.guides import Flow, FullRank, LowRank, MeanField
from jaxeff.bayes.laplace import Laplace, laplace
from jaxeff.bayes.mixture import MixturePosterior
from jaxeff.bayes.posterior import (
    Draws,
    Posterior,
    check_posterior,
    draw,
    sample,
    to_gaussians,
)
from jaxeff.bayes.posterior_file import load_posterior, save_posterior
from jaxeff.bayes.predictive import predict
from jaxeff.bayes.prior import prior_scales
from jaxeff.bayes.sampling import (
    HMC,
    NUTS,
    SGHMC,
    SGLD,
    ChainsDivergedError,
    ConvergenceWarning,
    MCMCResult,
    Mixing,
    hmc,
    mcmc,
    mixing,
    nuts,
    parameter_mixing,
    prediction_mixing,
    sghmc,
    sgld,
)
from jaxeff.bayes.svi import svi
from jaxeff.bayes.variational import SVIResult

__all__ = [
    "HMC",
    "NUTS",
    "SGHMC",
    "SGLD",
    "ChainsDivergedError",
    "CollapseWarning",
    "ConvergenceWarning",
    "Draws",
    "Flow",
    "FullRank",
    "Laplace",
    "LowRank",
    "MCMCResult",
    "MeanField",
    "Mixing",
    "MixturePosterior",
    "Posterior",
    "SVIResult",
    "around_best_draw",
    "check_posterior",
    "distill",
    "draw",
    "hmc",
    "laplace",
    "load_posterior",
    "mcmc",
    "mixing",
    "nuts",
    "parameter_mixing",
    "predict",
    "prediction_mixing",
    "prior_scales",
    "sample",
    "save_posterior",
    "sghmc",
    "sgld",
    "svi",
    "to_gaussians",
]
