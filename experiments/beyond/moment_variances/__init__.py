"""How right the variances of `moments` are: `python -m experiments.beyond.moment_variances`."""
