"""Architectures as their users write them: plain Flax NNX, or packages, tiny or as published."""

from experiments.beyond.zoo.models.catalogue import LOOPS, MODELS, REAL, Subject, subject
from experiments.beyond.zoo.models.libraries import OF_LIBRARIES

__all__ = ["LOOPS", "MODELS", "OF_LIBRARIES", "REAL", "Subject", "subject"]
