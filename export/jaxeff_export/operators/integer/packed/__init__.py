"""Products with weights that stay packed in memory: of few bits, or two of every four inputs."""

from jaxeff_export.operators.integer.packed._lowering import PACKED, packed_products
from jaxeff_export.operators.integer.packed._sparse import SPARSE, sparse_products

__all__ = ["PACKED", "SPARSE", "packed_products", "sparse_products"]
