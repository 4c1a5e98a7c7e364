"""Posteriors that an optimizer leaves behind: of its own (IVON), of the way it took (SWAG)."""

from jaxeff.bayes.optimizers._ivon import IVONState, ivon, ivon_posterior
from jaxeff.bayes.optimizers._swag import SWAGState, swag, swag_posterior

__all__ = ["IVONState", "SWAGState", "ivon", "ivon_posterior", "swag", "swag_posterior"]
