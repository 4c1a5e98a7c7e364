"""Integer kernels: dense layers and convolutions of codes of up to 8 bits."""

from .lowering import integer_operators

__all__ = ["integer_operators"]
