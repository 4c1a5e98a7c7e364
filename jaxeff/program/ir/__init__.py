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
    noted,
    run_nodes,
)
from jaxeff.program.ir._primitives import FACTS, Facts, facts
from jaxeff.program.ir._signature import (
    Along,
    Operand,
    OperationFamily,
    PlacedPart,
    Relation,
    Signature,
    Window,
    signature,
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
    "FACTS",
    "KINDS",
    "SPREAD_TAG",
    "Along",
    "Axes",
    "Contraction",
    "Facts",
    "Graph",
    "Layer",
    "Node",
    "Operand",
    "OperationFamily",
    "PlacedPart",
    "Program",
    "Relation",
    "Role",
    "Scan",
    "Signature",
    "Value",
    "While",
    "Window",
    "axes",
    "entering",
    "extent",
    "facts",
    "fixed_point",
    "flatten",
    "inside",
    "noted",
    "primitives",
    "repetitions",
    "run_nodes",
    "signature",
    "walk",
    "walk_nodes",
]
