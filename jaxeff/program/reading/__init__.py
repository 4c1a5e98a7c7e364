"""Reads a jaxpr into named layers: grouping, regions, names of sites."""

from jaxeff.program.reading import _expression as symbolic
from jaxeff.program.reading._expression import (
    UNKNOWN,
    Constant,
    UnreadableError,
    constant,
    expression,
    expression_of,
    known_number,
)
from jaxeff.program.reading._grouping import UNNAMED, mark
from jaxeff.program.reading._regions import reduces
from jaxeff.program.reading._trace import (
    CompilerWarning,
    argument_leaves,
    leaf_names,
    trace,
    trace_live,
    without_dead_code,
)

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
