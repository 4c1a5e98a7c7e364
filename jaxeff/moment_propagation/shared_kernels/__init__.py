"""Noise of kernels that all positions share, up to the pooling that doesn't average it away."""

from jaxeff.moment_propagation.shared_kernels._pass import with_shared_noise

__all__ = ["with_shared_noise"]
