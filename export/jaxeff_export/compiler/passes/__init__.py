"""Rewrites of a module between import and scheduling: layouts, parameters, what is in place."""

from jaxeff_export.compiler.passes._in_place import CHAINS as CHAINS
from jaxeff_export.compiler.passes._in_place import IN_PLACE as IN_PLACE
from jaxeff_export.compiler.passes._in_place import WINDOW as WINDOW
from jaxeff_export.compiler.passes._in_place import chained as chained
from jaxeff_export.compiler.passes._in_place import updates_alone as updates_alone
from jaxeff_export.compiler.passes._in_place import with_state as with_state
from jaxeff_export.compiler.passes._in_place import write_over_state as write_over_state
from jaxeff_export.compiler.passes._layouts import block_weights as block_weights
from jaxeff_export.compiler.passes._layouts import narrow_floats_to_bits as narrow_floats_to_bits
from jaxeff_export.compiler.passes._layouts import widen_contractions as widen_contractions
from jaxeff_export.compiler.passes._lifting import BOUND as BOUND
from jaxeff_export.compiler.passes._lifting import OUTSIDE as OUTSIDE
from jaxeff_export.compiler.passes._lifting import PACKS as PACKS
from jaxeff_export.compiler.passes._lifting import LiftedModule as LiftedModule
from jaxeff_export.compiler.passes._lifting import decode_where_read as decode_where_read
from jaxeff_export.compiler.passes._lifting import lift_parameters as lift_parameters
from jaxeff_export.compiler.passes._lifting import sources_of as sources_of
