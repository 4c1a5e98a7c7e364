"""Selective prediction by moments, published passes of variances and draws."""
