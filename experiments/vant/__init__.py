"""Variance-aware noisy training: networks for noise whose level isn't known beforehand."""
