"""Errors of the StableHLO importer: each names the thing and where it came from."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jaxlib.mlir import ir

_MAX_LOCATIONS = 1000  # parts of one location that are looked at; damaged ones can be endless


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
        signature: the operand and result types as StableHLO writes them.
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
        # Inlined functions repeat their operations; each place is named once.
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
    """Formats where in the JAX source ``op`` came from, as ``file:line:column (name)``."""
    return position_of(op.location)


def position_of(location: ir.Location) -> str:
    """Formats a location as ``file:line:column (name)``, as far as it is known.

    The file is the innermost of a call stack, the name the outermost. A position in the module's
    own text, which has no file, is ``line 1, column 2``.
    """
    name = ""
    pending = [location]
    for _ in range(_MAX_LOCATIONS):
        if not pending:
            break
        part = pending.pop()
        if isinstance(part, ir.NameLoc):
            name = name or _name(part)
            pending.append(part.child_loc)
        elif isinstance(part, ir.CallSiteLoc):
            # The callee is popped first: the innermost frame names the line to change.
            pending += [part.caller, part.callee]
        elif isinstance(part, ir.FusedLoc):
            pending += reversed(part.locations)
        elif isinstance(part, ir.FileLineColLoc):
            if part.filename == "-":
                where = f"line {part.start_line}, column {part.start_col}"
            else:
                where = f"{part.filename}:{part.start_line}:{part.start_col}"
            return f"{where} ({name})" if name else where
    return name or "unknown location"


def _name(location: ir.NameLoc) -> str:
    try:
        return location.name_str
    except RuntimeError:  # how the bindings say that a string is not UTF-8
        return "a name that is not UTF-8"


def describe(op: ir.Operation, reason: str) -> UnsupportedOp:
    """Describes why ``op`` is unsupported."""
    operands = ", ".join(str(operand.type) for operand in op.operands)
    results = ", ".join(str(result.type) for result in op.results)
    return UnsupportedOp(op.name, f"({operands}) -> ({results})", source_location(op), reason)


def failure(op: ir.Operation, error: Exception) -> UnsupportedOpError:
    """Describes an unforeseen failure to lower ``op``."""
    # TVM's messages end in the fault; a stack comes before it.
    reason = " ".join(f"{type(error).__name__}: {error}".split())[-300:]
    return UnsupportedOpError([describe(op, f"its lowering failed ({reason})")])
