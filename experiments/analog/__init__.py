"""Analog hardware, see `python -m experiments.analog --help`."""
