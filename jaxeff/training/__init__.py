"""Training: one jit-compiled optax loop for every experiment, and checkpoints of any pytree."""

from jaxeff.training.checkpoint import CheckpointError, load_metadata, load_pytree, save_pytree

__all__ = ["CheckpointError", "load_metadata", "load_pytree", "save_pytree"]
