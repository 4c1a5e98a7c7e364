"""Corruptions of images at five severities, to see how accuracy and uncertainty follow."""

from jaxeff.data.corruptions._corrupt import CORRUPTIONS, corrupt

__all__ = ["CORRUPTIONS", "corrupt"]
