"""Effective samples per second of NUTS on a small network."""
