"""From any accepted source to a legal StableHLO module: guards, parsing, expansions."""

from jaxeff_export.importer.reading._attributes import (
    attribute,
    backend_integer,
    compares_total_order,
    direction,
    enumerator,
    integers,
    padding,
)
from jaxeff_export.importer.reading._composites import composites_in
from jaxeff_export.importer.reading._errors import (
    StableHLOParseError,
    Unsupported,
    UnsupportedOp,
    UnsupportedOpError,
    describe,
    failure,
    source_location,
)
from jaxeff_export.importer.reading._expansions import registrar
from jaxeff_export.importer.reading._functions import (
    functions_of,
    public_function,
    refuse_endless_calls,
)
from jaxeff_export.importer.reading._graph import (
    Complex,
    HloGraph,
    HloNode,
    HloValue,
    flattened,
    paired,
    splat,
)
from jaxeff_export.importer.reading._source import Source, legalize, load_module, of_size
from jaxeff_export.importer.reading._symbolic import generalize
from jaxeff_export.importer.reading._types import (
    TensorType,
    constant_parts,
    dense_array,
    is_complex,
    is_dynamic,
    is_four_bits,
    part_type,
    tensor_type,
)

__all__ = [
    "Complex",
    "HloGraph",
    "HloNode",
    "HloValue",
    "Source",
    "StableHLOParseError",
    "TensorType",
    "Unsupported",
    "UnsupportedOp",
    "UnsupportedOpError",
    "attribute",
    "backend_integer",
    "compares_total_order",
    "composites_in",
    "constant_parts",
    "dense_array",
    "describe",
    "direction",
    "enumerator",
    "failure",
    "flattened",
    "functions_of",
    "generalize",
    "integers",
    "is_complex",
    "is_dynamic",
    "is_four_bits",
    "legalize",
    "load_module",
    "of_size",
    "padding",
    "paired",
    "part_type",
    "public_function",
    "refuse_endless_calls",
    "registrar",
    "source_location",
    "splat",
    "tensor_type",
]
