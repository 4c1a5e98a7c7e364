"""Rewrites of a module between import and scheduling: layouts, parameters, what is in place."""

from jaxeff_export.compiler.passes._in_place import (
    CHAINS,
    IN_PLACE,
    WINDOW,
    chained,
    updates_alone,
    with_state,
    write_over_state,
)
from jaxeff_export.compiler.passes._layouts import (
    block_weights,
    narrow_floats_to_bits,
    widen_contractions,
)
from jaxeff_export.compiler.passes._lifting import (
    BOUND,
    OUTSIDE,
    PACKS,
    LiftedModule,
    decode_where_read,
    lift_parameters,
    sources_of,
)

__all__ = [
    "BOUND",
    "CHAINS",
    "IN_PLACE",
    "OUTSIDE",
    "PACKS",
    "WINDOW",
    "LiftedModule",
    "block_weights",
    "chained",
    "decode_where_read",
    "lift_parameters",
    "narrow_floats_to_bits",
    "sources_of",
    "updates_alone",
    "widen_contractions",
    "with_state",
    "write_over_state",
]
