"""Reads an operation's attributes as Python values."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxeff_export.importer.reading._errors import StableHLOParseError, source_location


def attribute(op: ir.Operation, name: str) -> Any:
    """Returns the value of an integer, boolean, string or symbol attribute."""
    found: Any = op.attributes[name]
    try:
        return found.value
    except RuntimeError as error:  # how the bindings say that a string is not UTF-8
        raise StableHLOParseError(
            f"{source_location(op)}: the attribute {name} of {op.name} is damaged: {error}; make "
            "the module again"
        ) from error


def integers(op: ir.Operation, name: str, default: list[int] | None = None) -> list[int]:
    """Returns a list of integers; ``default`` where the attribute is absent."""
    if default is not None and name not in op.attributes:
        return default
    items: Any = op.attributes[name]
    return [int(item) for item in items]


def padding(op: ir.Operation, rank: int) -> list[tuple[int, int]]:
    """Returns the padding below and above each of ``rank`` dimensions, none where absent."""
    if "padding" not in op.attributes:
        return [(0, 0)] * rank
    pairs = np.array(op.attributes["padding"]).reshape(rank, 2)
    return [(int(low), int(high)) for low, high in pairs]


def direction(op: ir.Operation) -> str:
    """Returns a comparison's direction: EQ, NE, LT, LE, GT or GE."""
    found: Any = stablehlo.ComparisonDirectionAttr(op.attributes["comparison_direction"])
    return found.value


def compares_total_order(op: ir.Operation) -> bool:
    """Tells whether a comparison orders floats totally (NaN and signed zeros included)."""
    if "compare_type" not in op.attributes:
        return False
    found: Any = stablehlo.ComparisonTypeAttr(op.attributes["compare_type"])
    return found.value == "TOTALORDER"


def backend_integer(op: ir.Operation, name: str) -> int:
    """Returns an integer (or the code of a letter) of a custom call's backend configuration."""
    config: Any = op.attributes["mhlo.backend_config"]
    return int(config[name].value)


def enumerator(op: ir.Operation, name: str) -> str:
    """Returns the name that an attribute of an enumeration holds, such as TRANSPOSE."""
    return str(op.attributes[name]).rpartition(" ")[2].rstrip(">")
