"""Products with weights of few bits that stay packed in memory."""

from jaxeff_export.operators.integer.packed._lowering import PACKED, packed_products

__all__ = ["PACKED", "packed_products"]
