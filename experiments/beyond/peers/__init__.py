"""Beside what a user would pick instead; run it with `python -m experiments.beyond.peers`."""
