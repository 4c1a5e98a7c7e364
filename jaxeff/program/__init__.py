"""A Flax model's function, read once as a program of named layers."""

from jaxeff.program.cost import Cost, LayerCost, cost
from jaxeff.program.evaluation import evaluate, plain, site_key
from jaxeff.program.expression import expression, expression_of
from jaxeff.program.interpret import interpret
from jaxeff.program.layers import KINDS, Layer, Program
from jaxeff.program.spec import SpecError, resolve
from jaxeff.program.summary import Summary, sites, summary
from jaxeff.program.trace import trace
from jaxeff.program.widths import Widths

__all__ = [
    "KINDS",
    "Cost",
    "Layer",
    "LayerCost",
    "Program",
    "SpecError",
    "Summary",
    "Widths",
    "cost",
    "evaluate",
    "expression",
    "expression_of",
    "interpret",
    "plain",
    "resolve",
    "site_key",
    "sites",
    "summary",
    "trace",
]
