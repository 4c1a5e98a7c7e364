"""Automatic pruning and quantization, every searcher: `python -m experiments.galen`."""
