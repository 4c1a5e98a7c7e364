"""How right the variances of `moments` are: `python -m experiments.moment_variances`."""
