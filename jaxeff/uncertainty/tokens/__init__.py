"""Language models, token by token: `[batch, tokens, vocabulary]` and what follows of it."""

from jaxeff.uncertainty.tokens._sequences import (
    accepted_prefix,
    sequence_entropy,
    sequence_score,
)
from jaxeff.uncertainty.tokens._uncertainty import TokenUncertainty, token_uncertainty

__all__ = [
    "TokenUncertainty",
    "accepted_prefix",
    "sequence_entropy",
    "sequence_score",
    "token_uncertainty",
]
