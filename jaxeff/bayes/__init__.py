"""Bayesian neural networks: posteriors over the parameters of any ``f(params, *args)``.

result = svi(key, f, params, (images, labels), epochs=50)
logits = predict(key, f, result.posterior, x, samples=30)  # [samples, batch, classes]
jaxeff.moments(f)(result.posterior, x)                      # one pass instead of 30
"""

from jaxeff.bayes.predictive import check_posterior, draw, predict, sample
from jaxeff.bayes.prior import prior_scales
from jaxeff.bayes.svi import SVIResult, svi

__all__ = ["SVIResult", "check_posterior", "draw", "predict", "prior_scales", "sample", "svi"]
