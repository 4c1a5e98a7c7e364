"""Reads a jaxpr into named layers: grouping, regions, names of sites."""

from jaxeff.program.reading import _expression as symbolic  # noqa: F401
from jaxeff.program.reading._expression import UNKNOWN as UNKNOWN
from jaxeff.program.reading._expression import Constant as Constant
from jaxeff.program.reading._expression import UnreadableError as UnreadableError
from jaxeff.program.reading._expression import constant as constant
from jaxeff.program.reading._expression import expression as expression
from jaxeff.program.reading._expression import expression_of as expression_of
from jaxeff.program.reading._expression import known_number as known_number
from jaxeff.program.reading._grouping import UNNAMED as UNNAMED
from jaxeff.program.reading._grouping import mark as mark
from jaxeff.program.reading._regions import reduces as reduces
from jaxeff.program.reading._trace import CompilerWarning as CompilerWarning
from jaxeff.program.reading._trace import argument_leaves as argument_leaves
from jaxeff.program.reading._trace import leaf_names as leaf_names
from jaxeff.program.reading._trace import trace as trace
from jaxeff.program.reading._trace import trace_live as trace_live
from jaxeff.program.reading._trace import without_dead_code as without_dead_code
