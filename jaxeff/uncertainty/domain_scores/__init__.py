"""Scores that tell inputs unlike the training data from others; higher is further out of domain."""

from jaxeff.uncertainty.domain_scores._logits import energy, generalized_entropy, max_logit, msp

__all__ = ["energy", "generalized_entropy", "max_logit", "msp"]
