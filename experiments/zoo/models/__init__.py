"""Architectures as their users write them: plain Flax NNX, or packages, at tiny sizes."""

from experiments.zoo.models.catalogue import MODELS, Subject, subject

__all__ = ["MODELS", "Subject", "subject"]
