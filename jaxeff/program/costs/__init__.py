"""The cost of a program: multiplications, bits, memory, and what each layer reads."""

from jaxeff.program.costs._cost import Cost as Cost
from jaxeff.program.costs._cost import LayerCost as LayerCost
from jaxeff.program.costs._cost import Summary as Summary
from jaxeff.program.costs._cost import Widths as Widths
from jaxeff.program.costs._cost import bits_scope as bits_scope
from jaxeff.program.costs._cost import cost as cost
from jaxeff.program.costs._cost import is_scalar as is_scalar
from jaxeff.program.costs._cost import node_macs as node_macs
from jaxeff.program.costs._cost import sites as sites
from jaxeff.program.costs._cost import summary as summary
from jaxeff.program.costs._last_layer import LastLayer as LastLayer
from jaxeff.program.costs._last_layer import fan_ins as fan_ins
from jaxeff.program.costs._last_layer import flat as flat
from jaxeff.program.costs._last_layer import inputs_of as inputs_of
from jaxeff.program.costs._last_layer import is_plain_bias as is_plain_bias
from jaxeff.program.costs._last_layer import last_layer as last_layer
from jaxeff.program.costs._last_layer import with_constant as with_constant
from jaxeff.program.costs._last_layer import with_flat as with_flat
