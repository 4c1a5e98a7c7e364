"""A program as one flat dataflow graph, which the emitter reads.

Loops and costly branches are nodes that hold graphs of their own; everything else is flat.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
from jaxlib.mlir import ir

from jaxeff_export.importer.reading._types import TensorType

_BROADCAST = "stablehlo.broadcast_in_dim"


@dataclasses.dataclass(eq=False, slots=True)
class HloValue:
    """One tensor of the graph: result ``index`` of ``node``, or an argument (node is None)."""

    type: TensorType
    node: HloNode | None = None
    index: int = 0
    constant: np.ndarray | None = None  # set for constants; 0-d stands for a splat
    users: list[HloNode] = dataclasses.field(default_factory=list)
    is_output: bool = False


@dataclasses.dataclass(eq=False, slots=True)
class HloNode:
    """One operation: its name, operands and results; ``op`` holds the attributes and regions."""

    name: str
    op: ir.Operation
    operands: tuple[HloValue, ...]
    results: tuple[HloValue, ...] = ()
    bodies: tuple[
        HloGraph, ...
    ] = ()  # of a loop or branch; its last operands are what these capture

    @property
    def result(self) -> HloValue:
        """Returns the only result."""
        (value,) = self.results
        return value


@dataclasses.dataclass(eq=False, slots=True)
class HloGraph:
    """A program: its arguments, its nodes in topological order, its outputs."""

    arguments: tuple[HloValue, ...]
    nodes: list[HloNode]
    outputs: tuple[HloValue, ...]

    def captured(self) -> list[HloValue]:
        """Lists the values from outside that the nodes and outputs use.

        Constants are left out, and broadcasts stand for their source: both are read in place. Some
        products read the operand of a transpose directly, so it is included as well.
        """
        inside = set(self.nodes)
        found: dict[HloValue, None] = {}
        for value in [*(o for node in self.nodes for o in node.operands), *self.outputs]:
            while value.node and value.node not in inside and value.node.name == _BROADCAST:
                value = value.node.operands[0]
            if value.constant is None and value.node not in inside:
                found[value] = None
                if value.node and value.node.name == "stablehlo.transpose":
                    found.update(dict.fromkeys(value.node.operands))
        return [value for value in found if value not in self.arguments]


@dataclasses.dataclass(eq=False, slots=True)
class Complex(HloValue):
    """The two parts of a complex tensor, each of which has its ``type``."""

    parts: tuple[HloValue, ...] = ()

    @classmethod
    def of(cls, real: HloValue, imaginary: HloValue) -> Complex:
        """Pairs two parts."""
        return cls(real.type, parts=(real, imaginary))

    @property
    def real(self) -> HloValue:
        """Returns the real part."""
        return self.parts[0]

    @property
    def imaginary(self) -> HloValue:
        """Returns the imaginary part."""
        return self.parts[1]


def flattened(values: Iterable[HloValue]) -> list[HloValue]:
    """Returns values with pairs taken apart."""
    flat: list[HloValue] = []
    for value in values:
        flat += value.parts if isinstance(value, Complex) else [value]
    return flat


def paired(flat: Iterable[HloValue], like: Iterable[HloValue]) -> list[HloValue]:
    """Puts values together again: the inverse of :func:`flattened`."""
    rest = iter(flat)
    return [
        Complex.of(next(rest), next(rest)) if isinstance(v, Complex) else next(rest) for v in like
    ]


def splat(item: object, kind: TensorType) -> HloValue:
    """Returns a constant whose elements are all ``item``."""
    return HloValue(kind, constant=np.asarray(item, dtype=kind.numpy_dtype))
