"""How uncertain predictions are, how good that uncertainty is, and whether it detects OOD inputs.

All are pure functions of arrays that jit and vmap. Samples come first: ``[samples, batch,
classes]``. Entropies and likelihoods are in nats.

    parts = decompose_logits(predict(key, f, posterior, x))  # total, aleatoric, epistemic
    probs = jnp.exp(predictive_log_probs(logits))
    nll(probs, y), ece(probs, y), brier(probs, y), accuracy(probs, y)
    auroc(parts_in.epistemic, parts_out.epistemic)
"""

from jaxeff.uncertainty.calibration import ece
from jaxeff.uncertainty.decomposition import (
    Decomposition,
    decompose,
    decompose_logits,
    mutual_information,
    predictive_entropy,
    predictive_log_probs,
    softmax_entropy,
)
from jaxeff.uncertainty.detection import aupr, auroc, fpr95
from jaxeff.uncertainty.gaussian_logits import (
    from_gaussian,
    predict_probs,
    raw_variance,
    sample_logits,
)
from jaxeff.uncertainty.scores import accuracy, brier, nll, nll_from_log

__all__ = [
    "Decomposition",
    "accuracy",
    "aupr",
    "auroc",
    "brier",
    "decompose",
    "decompose_logits",
    "ece",
    "fpr95",
    "from_gaussian",
    "mutual_information",
    "nll",
    "nll_from_log",
    "predict_probs",
    "predictive_entropy",
    "predictive_log_probs",
    "raw_variance",
    "sample_logits",
    "softmax_entropy",
]
