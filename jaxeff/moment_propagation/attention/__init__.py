"""Attention as one function of its queries, keys and values: how it is recognised, its moments."""

from jaxeff.moment_propagation.attention._fusion import fuse_attention
from jaxeff.moment_propagation.attention._layer import AttentionLayer, attention_moments
from jaxeff.moment_propagation.attention._rule import Axes, attention

__all__ = ["AttentionLayer", "Axes", "attention", "attention_moments", "fuse_attention"]
