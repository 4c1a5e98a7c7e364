"""The program's data structures: graph, layers, axes, primitives."""

from jaxeff.program.ir import _axes as axes
from jaxeff.program.ir import _primitives as primitives
from jaxeff.program.ir._axes import Axes, extent
from jaxeff.program.ir._contraction import Contraction
from jaxeff.program.ir._graph import SPREAD_TAG, Graph, Node, Role, Value, flatten
from jaxeff.program.ir._layers import KINDS, Layer, Program, run_nodes
from jaxeff.program.ir._loops import Scan, While, fixed_point, repetitions
from jaxeff.program.ir._walk import entering, inside, walk, walk_nodes

__all__ = [
    "KINDS",
    "SPREAD_TAG",
    "Axes",
    "Contraction",
    "Graph",
    "Layer",
    "Node",
    "Program",
    "Role",
    "Scan",
    "Value",
    "While",
    "axes",
    "entering",
    "extent",
    "fixed_point",
    "flatten",
    "inside",
    "primitives",
    "repetitions",
    "run_nodes",
    "walk",
    "walk_nodes",
]
