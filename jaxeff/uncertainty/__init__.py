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

A decision is made of a score: `conformal` returns sets that hold the truth as often as was asked,
`selective` leaves what is uncertain to others, `tempered` makes confidence mean what it says.

A regression with an aleatoric head has variances instead: `decompose_regression`, and `euc` holds
the epistemic part to the sparsity of the training data.
"""

from jaxeff.uncertainty._conformal import (
    APS,
    CQR,
    LAC,
    RAPS,
    AbsoluteResidual,
    ConformalCalibration,
    ConformalMethod,
    NormalizedResidual,
    PredictionInterval,
    conformal,
    conformalize,
    covered,
    online_conformal,
)
from jaxeff.uncertainty._decomposition import (
    Decomposition,
    RegressionUncertainty,
    aleatoric_mse,
    decompose,
    decompose_logits,
    decompose_regression,
    dirichlet_decomposition,
    dirichlet_probs,
    evidence,
    mutual_information,
    prediction_mse,
    predictive_entropy,
    predictive_log_probs,
    softmax_entropy,
)
from jaxeff.uncertainty._feature_scores import (
    ASH,
    DICE,
    KNN,
    DenseHead,
    Mahalanobis,
    ReAct,
    ViM,
    ash,
    dense_head,
    dice,
    knn,
    mahalanobis,
    react,
    relative_mahalanobis,
    scored,
    vim,
)
from jaxeff.uncertainty._figures import (
    draw_plane,
    draw_regression,
    draw_reliability,
    draw_risk_coverage,
)
from jaxeff.uncertainty._gaussian_logits import (
    from_gaussian,
    predict_probs,
    probit_logits,
    raw_variance,
    sample_logits,
)
from jaxeff.uncertainty._logit_scores import (
    energy,
    generalized_entropy,
    max_logit,
    moment_information,
    msp,
    odin,
)
from jaxeff.uncertainty._out_of_domain import (
    OOD_QUANTILE,
    aupr,
    auroc,
    euc,
    fpr95,
    negative_log_density,
    out_of_domain,
    sparsity_threshold,
)
from jaxeff.uncertainty._scores import (
    Reliability,
    accuracy,
    adaptive_ece,
    brier,
    classwise_ece,
    ece,
    in_batches,
    nll,
    nll_from_log,
    reliability,
)
from jaxeff.uncertainty._selective import (
    RiskCoverage,
    aurc,
    coverage_threshold,
    excess_aurc,
    risk_coverage,
    selective,
)
from jaxeff.uncertainty._temperature import (
    CalibrationWarning,
    Temperature,
    temperature_scale,
    tempered,
)
from jaxeff.uncertainty._tokens import (
    TokenUncertainty,
    accepted_prefix,
    sequence_entropy,
    sequence_score,
    token_uncertainty,
)

__all__ = [
    "APS",
    "ASH",
    "CQR",
    "DICE",
    "KNN",
    "LAC",
    "OOD_QUANTILE",
    "RAPS",
    "AbsoluteResidual",
    "CalibrationWarning",
    "ConformalCalibration",
    "ConformalMethod",
    "Decomposition",
    "DenseHead",
    "Mahalanobis",
    "NormalizedResidual",
    "PredictionInterval",
    "ReAct",
    "RegressionUncertainty",
    "Reliability",
    "RiskCoverage",
    "Temperature",
    "TokenUncertainty",
    "ViM",
    "accepted_prefix",
    "accuracy",
    "adaptive_ece",
    "aleatoric_mse",
    "ash",
    "aupr",
    "aurc",
    "auroc",
    "brier",
    "classwise_ece",
    "conformal",
    "conformalize",
    "coverage_threshold",
    "covered",
    "decompose",
    "decompose_logits",
    "decompose_regression",
    "dense_head",
    "dice",
    "dirichlet_decomposition",
    "dirichlet_probs",
    "draw_plane",
    "draw_regression",
    "draw_reliability",
    "draw_risk_coverage",
    "ece",
    "energy",
    "euc",
    "evidence",
    "excess_aurc",
    "fpr95",
    "from_gaussian",
    "generalized_entropy",
    "in_batches",
    "knn",
    "mahalanobis",
    "max_logit",
    "moment_information",
    "msp",
    "mutual_information",
    "negative_log_density",
    "nll",
    "nll_from_log",
    "odin",
    "online_conformal",
    "out_of_domain",
    "predict_probs",
    "prediction_mse",
    "predictive_entropy",
    "predictive_log_probs",
    "probit_logits",
    "raw_variance",
    "react",
    "relative_mahalanobis",
    "reliability",
    "risk_coverage",
    "sample_logits",
    "scored",
    "selective",
    "sequence_entropy",
    "sequence_score",
    "softmax_entropy",
    "sparsity_threshold",
    "temperature_scale",
    "tempered",
    "token_uncertainty",
    "vim",
]
