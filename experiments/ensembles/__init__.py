"""Ensembles beside their rivals: a noisy sine, Dirty-MNIST, and what they cost."""
