"""Reads a jaxpr into named layers: grouping, regions, names of sites."""

from jaxeff.program.reading import _symbolic as symbolic
from jaxeff.program.reading._compiler_faults import CompilerWarning
from jaxeff.program.reading._dead_code import without_dead_code
from jaxeff.program.reading._expression import expression, expression_of
from jaxeff.program.reading._grouping import UNNAMED, mark
from jaxeff.program.reading._regions import reduces
from jaxeff.program.reading._symbolic import (
    UNKNOWN,
    Constant,
    UnreadableError,
    constant,
    known_number,
)
from jaxeff.program.reading._trace import argument_leaves, leaf_names, trace, trace_live

__all__ = [
    "UNKNOWN",
    "UNNAMED",
    "CompilerWarning",
    "Constant",
    "UnreadableError",
    "argument_leaves",
    "constant",
    "expression",
    "expression_of",
    "known_number",
    "leaf_names",
    "mark",
    "reduces",
    "symbolic",
    "trace",
    "trace_live",
    "without_dead_code",
]
