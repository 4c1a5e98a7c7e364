"""Noise of kernels that all positions share, up to the pooling that doesn't average it away."""

from jaxeff.moment_propagation.shared_kernels._accumulation import steps_apart
from jaxeff.moment_propagation.shared_kernels._pass import with_shared_noise

__all__ = ["steps_apart", "with_shared_noise"]
