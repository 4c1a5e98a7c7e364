"""Accuracy over bits, by every method: `python -m experiments.compression`."""
