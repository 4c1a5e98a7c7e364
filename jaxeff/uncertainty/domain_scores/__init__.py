"""Scores that tell inputs unlike the training data from others; higher is further out of domain.

Some take logits alone; those that take features are fitted to training data once and become frozen
pytrees, functions `score(features, outputs)` that `scored` puts beside a function's outputs.
"""

from jaxeff.uncertainty.domain_scores._distances import (
    KNN,
    Mahalanobis,
    knn,
    mahalanobis,
    relative_mahalanobis,
)
from jaxeff.uncertainty.domain_scores._head import DenseHead, dense_head, scored
from jaxeff.uncertainty.domain_scores._logits import energy, generalized_entropy, max_logit, msp
from jaxeff.uncertainty.domain_scores._moments import moment_information
from jaxeff.uncertainty.domain_scores._odin import odin
from jaxeff.uncertainty.domain_scores._residual import ViM, vim
from jaxeff.uncertainty.domain_scores._shaping import ASH, DICE, ReAct, ash, dice, react

__all__ = [
    "ASH",
    "DICE",
    "KNN",
    "DenseHead",
    "Mahalanobis",
    "ReAct",
    "ViM",
    "ash",
    "dense_head",
    "dice",
    "energy",
    "generalized_entropy",
    "knn",
    "mahalanobis",
    "max_logit",
    "moment_information",
    "msp",
    "odin",
    "react",
    "relative_mahalanobis",
    "scored",
    "vim",
]
