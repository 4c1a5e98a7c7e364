"""Architectures as their users write them: plain Flax NNX, or packages, tiny or as published."""

from experiments.beyond.zoo.models.catalogue import LOOPS, MODELS, REAL, Subject, subject

__all__ = ["LOOPS", "MODELS", "REAL", "Subject", "subject"]
