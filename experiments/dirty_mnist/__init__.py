"""Uncertainty on Dirty-MNIST; run it with `python -m experiments.dirty_mnist`."""
