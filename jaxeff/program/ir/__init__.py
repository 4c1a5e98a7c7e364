"""The program's data structures: graph, layers, axes, primitives."""

from jaxeff.program.ir import _axes as axes
from jaxeff.program.ir import _primitives as primitives
from jaxeff.program.ir._axes import Axes, Contraction, extent
from jaxeff.program.ir._graph import (
    DRAWN_TAG,
    KINDS,
    SPREAD_TAG,
    Graph,
    Layer,
    Node,
    Program,
    Role,
    Value,
    flatten,
    run_nodes,
)
from jaxeff.program.ir._walk import (
    Scan,
    While,
    entering,
    fixed_point,
    inside,
    repetitions,
    walk,
    walk_nodes,
)

__all__ = [
    "DRAWN_TAG",
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
