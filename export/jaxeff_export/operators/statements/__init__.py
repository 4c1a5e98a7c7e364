"""Kernels written statement by statement, which no schedule makes."""

from jaxeff_export.operators.statements._statements import (
    Index,
    StatementBuilder,
    Vector,
    cast,
    const,
    declare,
    dtype_of,
    function,
    index,
    load,
    sequence,
    splat,
)

__all__ = [
    "Index",
    "StatementBuilder",
    "Vector",
    "cast",
    "const",
    "declare",
    "dtype_of",
    "function",
    "index",
    "load",
    "sequence",
    "splat",
]
