"""Architectures as their users write them: plain Flax NNX, or packages, at tiny sizes."""

from experiments.zoo.models.catalogue import ZOO, Subject, subject

__all__ = ["ZOO", "Subject", "subject"]
