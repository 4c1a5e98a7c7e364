"""Reads and builds tensor programs: loop nests, products, local buffers, entry points."""

from jaxeff_export.compiler.tir._tir import FUSES_WHAT_FOLLOWS as FUSES_WHAT_FOLLOWS
from jaxeff_export.compiler.tir._tir import TILE as TILE
from jaxeff_export.compiler.tir._tir import Nest as Nest
from jaxeff_export.compiler.tir._tir import becomes_locals as becomes_locals
from jaxeff_export.compiler.tir._tir import bytes_of as bytes_of
from jaxeff_export.compiler.tir._tir import called_kernel as called_kernel
from jaxeff_export.compiler.tir._tir import clamped as clamped
from jaxeff_export.compiler.tir._tir import columns_of as columns_of
from jaxeff_export.compiler.tir._tir import contains as contains
from jaxeff_export.compiler.tir._tir import count as count
from jaxeff_export.compiler.tir._tir import index_uses as index_uses
from jaxeff_export.compiler.tir._tir import is_contraction as is_contraction
from jaxeff_export.compiler.tir._tir import lets_to_locals as lets_to_locals
from jaxeff_export.compiler.tir._tir import locals_to_lets as locals_to_lets
from jaxeff_export.compiler.tir._tir import map_kernels as map_kernels
from jaxeff_export.compiler.tir._tir import overlap_tiles as overlap_tiles
from jaxeff_export.compiler.tir._tir import renamed as renamed
from jaxeff_export.compiler.tir._tir import root_of as root_of
from jaxeff_export.compiler.tir._tir import statements_of as statements_of
from jaxeff_export.compiler.tir._tir import stores_of as stores_of
from jaxeff_export.compiler.tir._tir import unpair_products as unpair_products
from jaxeff_export.compiler.tir._tir import without_lets as without_lets
