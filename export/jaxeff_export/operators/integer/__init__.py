"""Integer kernels: dense layers and convolutions of codes of up to 8 bits."""

from .lowering import IntegerKernelError, integer_operators

__all__ = ["IntegerKernelError", "integer_operators"]
