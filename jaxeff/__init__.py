"""Resource-efficient, robust and uncertainty-aware neural networks as JAX function transforms."""
