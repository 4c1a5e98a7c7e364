"""Bayesian neural networks: posteriors over the parameters of any ``f(params, *args)``.

result = svi(key, f, params, (images, labels), epochs=50)
logits = predict(key, f, result.posterior, x, samples=30)  # [samples, batch, classes]
jaxeff.moments(f)(result.posterior, x)                      # one pass instead of 30
"""

from jaxeff.bayes.posterior import (
    Draws,
    Posterior,
    check_posterior,
    draw,
    sample,
    to_gaussians,
)
from jaxeff.bayes.predictive import predict
from jaxeff.bayes.prior import prior_scales
from jaxeff.bayes.svi import SVIResult, svi

__all__ = [
    "Draws",
    "Posterior",
    "SVIResult",
    "check_posterior",
    "draw",
    "predict",
    "prior_scales",
    "sample",
    "svi",
    "to_gaussians",
]
