"""Members at less memory (factors of rank one) or less computation (narrower, in one network)."""

from jaxeff.ensembles.efficient._batch_ensemble import batch_ensemble
from jaxeff.ensembles.efficient._mimo import MIMO, mimo, mimo_loss
from jaxeff.ensembles.efficient._packed import packed

__all__ = ["MIMO", "batch_ensemble", "mimo", "mimo_loss", "packed"]
