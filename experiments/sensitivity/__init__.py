"""Cheap sensitivity measures against walking noise: `python -m experiments.sensitivity`."""
