"""Noise of kernels that all positions share, up to the pooling that doesn't average it away."""

from jaxeff.moment_propagation.shared_kernels._layouts import (
    PositionContraction,
    canonical,
    split_at_contraction,
)
from jaxeff.moment_propagation.shared_kernels._pass import steps_apart, with_shared_noise

__all__ = [
    "PositionContraction",
    "canonical",
    "split_at_contraction",
    "steps_apart",
    "with_shared_noise",
]
