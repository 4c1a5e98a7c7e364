"""Errors of the StableHLO importer: each names the thing and where it came from."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from jaxlib.mlir import ir

_POSITION = re.compile(r'"([^"]+)":(\d+):(\d+)')
_NAME = re.compile(r'loc\("([^"]+)"')


class StableHLOParseError(ValueError):
    """The source is not a StableHLO module that can be imported.

    Raised for text that does not parse, for truncated or damaged artifacts, for artifacts of an
    unknown version, and for modules without a public function. The message holds the position
    where the parser gave up, when it says one.
    """


@dataclasses.dataclass(frozen=True)
class UnsupportedOp:
    """One operation without a lowering.

    Attributes:
        name: the operation's full name, as in ``stablehlo.fft``.
        signature: its operand and result types as StableHLO writes them.
        location: the JAX source position (``file:line:column (name)``) or ``unknown location``.
        reason: why it could not be taken.
    """

    name: str
    signature: str
    location: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} {self.signature} at {self.location}: {self.reason}"


class UnsupportedOpError(NotImplementedError):
    """Operations of a module that the importer cannot take, all of them together.

    Attributes:
        ops: one :class:`UnsupportedOp` per distinct operation, types and location.
    """

    def __init__(self, ops: Sequence[UnsupportedOp]):
        self.ops = tuple(dict.fromkeys(ops))
        noun = "operation" if len(self.ops) == 1 else "operations"
        lines = "\n".join(f"  - {op}" for op in self.ops)
        super().__init__(
            f"{len(self.ops)} StableHLO {noun} of this module cannot be imported; "
            f"rewrite these in the JAX source or register a composite for them:\n{lines}"
        )


class Unsupported(Exception):
    """Raised by a rule that cannot take this instance of its operation; says why."""


def source_location(op: ir.Operation) -> str:
    """Say where in the JAX source ``op`` came from, as ``file:line:column (name)``."""
    text = str(op.location)
    position = _POSITION.search(text)
    name = _NAME.search(text)
    if position is None:
        return name.group(1) if name else "unknown location"
    where = ":".join(position.groups())
    if name and name.group(1) != position.group(1):
        return f"{where} ({name.group(1)})"
    return where


def describe(op: ir.Operation, reason: str) -> UnsupportedOp:
    """Describe why ``op`` was not taken."""
    operands = ", ".join(str(operand.type) for operand in op.operands)
    results = ", ".join(str(result.type) for result in op.results)
    return UnsupportedOp(op.name, f"({operands}) -> ({results})", source_location(op), reason)
