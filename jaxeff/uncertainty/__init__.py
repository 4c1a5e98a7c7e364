"""Uncertainty of predictions, its quality, and detection of OOD inputs.

All are pure functions of arrays that jit and vmap. Samples come first: ``[samples, batch,
classes]``. Entropies and likelihoods are in nats.

```python
import jax
import jax.numpy as jnp

from jaxeff import Gaussian
from jaxeff.bayes import predict
from jaxeff.nn import small_classifier
from jaxeff.uncertainty import (
    accuracy, auroc, brier, decompose_logits, ece, nll, predictive_log_probs
)

f, params, (x, y) = small_classifier()
posterior = jax.tree.map(lambda w: Gaussian(w, 0.01 * w**2), params)
logits = predict(jax.random.key(0), f, posterior, x)
inside = decompose_logits(logits)                  # total, aleatoric, epistemic
probs = jnp.exp(predictive_log_probs(logits))
nll(probs, y), ece(probs, y), brier(probs, y), accuracy(probs, y)
outside = decompose_logits(predict(jax.random.key(0), f, posterior, x[:, ::-1]))
auroc(inside.epistemic, outside.epistemic)
```

A regression with an aleatoric head has variances instead: `decompose_regression`, and `euc` holds
the epistemic part to the sparsity of the training data.
"""

from jaxeff.uncertainty._batches import in_batches
from jaxeff.uncertainty._calibration import ece
from jaxeff.uncertainty._decomposition import (
    Decomposition,
    decompose,
    decompose_logits,
    mutual_information,
    predictive_entropy,
    predictive_log_probs,
    softmax_entropy,
)
from jaxeff.uncertainty._density import (
    OOD_QUANTILE,
    euc,
    negative_log_density,
    out_of_domain,
    sparsity_threshold,
)
from jaxeff.uncertainty._detection import aupr, auroc, fpr95
from jaxeff.uncertainty._figures import draw_plane, draw_regression
from jaxeff.uncertainty._gaussian_logits import (
    from_gaussian,
    predict_probs,
    raw_variance,
    sample_logits,
)
from jaxeff.uncertainty._regression import (
    RegressionUncertainty,
    aleatoric_mse,
    decompose_regression,
    prediction_mse,
)
from jaxeff.uncertainty._scores import accuracy, brier, nll, nll_from_log

__all__ = [
    "OOD_QUANTILE",
    "Decomposition",
    "RegressionUncertainty",
    "accuracy",
    "aleatoric_mse",
    "aupr",
    "auroc",
    "brier",
    "decompose",
    "decompose_logits",
    "decompose_regression",
    "draw_plane",
    "draw_regression",
    "ece",
    "euc",
    "fpr95",
    "from_gaussian",
    "in_batches",
    "mutual_information",
    "negative_log_density",
    "nll",
    "nll_from_log",
    "out_of_domain",
    "predict_probs",
    "prediction_mse",
    "predictive_entropy",
    "predictive_log_probs",
    "raw_variance",
    "sample_logits",
    "softmax_entropy",
    "sparsity_threshold",
]
