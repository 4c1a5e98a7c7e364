"""The cost of a program: multiplications, bits, memory, and what each layer reads."""

from jaxeff.program.costs._cost import (
    Cost,
    LayerCost,
    Summary,
    Widths,
    bits_scope,
    cost,
    is_scalar,
    node_macs,
    sites,
    summary,
)
from jaxeff.program.costs._last_layer import (
    LastLayer,
    fan_ins,
    flat,
    inputs_of,
    is_plain_bias,
    last_layer,
    with_constant,
    with_flat,
)

__all__ = [
    "Cost",
    "LastLayer",
    "LayerCost",
    "Summary",
    "Widths",
    "bits_scope",
    "cost",
    "fan_ins",
    "flat",
    "inputs_of",
    "is_plain_bias",
    "is_scalar",
    "last_layer",
    "node_macs",
    "sites",
    "summary",
    "with_constant",
    "with_flat",
]
