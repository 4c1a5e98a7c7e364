"""Quantizers by their values: evenly spaced (`uniform`) or any others (`codebooks`)."""

from jaxeff.compression.quantizers._formats import mxfp, mxint, nf4, nvfp4
from jaxeff.compression.quantizers._rotated import Rotated, turned
from jaxeff.compression.quantizers._scaled import Scaled
from jaxeff.compression.quantizers._switched import Switched

__all__ = [
    "Rotated",
    "Scaled",
    "Switched",
    "mxfp",
    "mxint",
    "nf4",
    "nvfp4",
    "turned",
]
