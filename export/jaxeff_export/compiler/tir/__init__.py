"""Reads and builds tensor programs: loop nests, products, local buffers, entry points."""

from jaxeff_export.compiler.tir._indices import clamped
from jaxeff_export.compiler.tir._locals import becomes_locals, lets_to_locals, locals_to_lets
from jaxeff_export.compiler.tir._nests import Nest, columns_of, index_uses
from jaxeff_export.compiler.tir._products import unpair_products
from jaxeff_export.compiler.tir._tir import (
    FUSES_WHAT_FOLLOWS,
    bytes_of,
    contains,
    count,
    is_contraction,
    map_kernels,
    renamed,
    root_of,
    statements_of,
    stores_of,
)

__all__ = [
    "FUSES_WHAT_FOLLOWS",
    "Nest",
    "becomes_locals",
    "bytes_of",
    "clamped",
    "columns_of",
    "contains",
    "count",
    "index_uses",
    "is_contraction",
    "lets_to_locals",
    "locals_to_lets",
    "map_kernels",
    "renamed",
    "root_of",
    "statements_of",
    "stores_of",
    "unpair_products",
]
