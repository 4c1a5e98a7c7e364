"""What Bayesian inference costs as networks and data grow."""
