"""Elementwise operations on scalars: the same rules serve tensors and the bodies of reductions."""
