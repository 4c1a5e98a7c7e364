"""Scores that find inputs out of domain, by posterior: `python -m experiments.out_of_domain`."""
