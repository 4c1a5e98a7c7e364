"""A Flax model's function, read once as a program of named layers."""

from jaxeff.program.evaluation import evaluate, plain, site_key
from jaxeff.program.expression import expression, expression_of
from jaxeff.program.layers import KINDS, Layer, Program
from jaxeff.program.trace import trace

__all__ = [
    "KINDS",
    "Layer",
    "Program",
    "evaluate",
    "expression",
    "expression_of",
    "plain",
    "site_key",
    "trace",
]
