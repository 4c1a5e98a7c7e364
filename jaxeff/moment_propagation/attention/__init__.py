"""Attention as one function of its queries, keys and values: how it is recognised, its moments."""

from jaxeff.moment_propagation.attention._fusion import fuse_attention
from jaxeff.moment_propagation.attention._layer import AttentionLayer, attention_moments
from jaxeff.moment_propagation.attention._pooled import pooled_attention, warn_of_pooled
from jaxeff.moment_propagation.attention._rule import Axes, attention
from jaxeff.moment_propagation.attention._streams import attention_in_stream, warn_of_stream

__all__ = [
    "AttentionLayer",
    "Axes",
    "attention",
    "attention_in_stream",
    "attention_moments",
    "fuse_attention",
    "pooled_attention",
    "warn_of_pooled",
    "warn_of_stream",
]
