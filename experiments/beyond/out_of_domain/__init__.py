"""Scores that find inputs out of domain; `python -m experiments.beyond.out_of_domain`."""
