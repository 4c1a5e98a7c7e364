"""Rewrites of a module between import and scheduling, one pass a file."""

from jaxeff_export.compiler.passes._blocking import block_weights
from jaxeff_export.compiler.passes._chaining import CHAINS, IN_PLACE, chained
from jaxeff_export.compiler.passes._decoding import decode_where_read
from jaxeff_export.compiler.passes._lifting import (
    BOUND,
    OUTSIDE,
    PACKS,
    LiftedModule,
    lift_parameters,
    sources_of,
)
from jaxeff_export.compiler.passes._resident import (
    WINDOW,
    updates_alone,
    with_state,
    write_over_state,
)
from jaxeff_export.compiler.passes._storage import narrow_floats_to_bits
from jaxeff_export.compiler.passes._widening import widen_contractions

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
