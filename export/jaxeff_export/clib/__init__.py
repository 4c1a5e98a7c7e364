"""A network as a C library: a header, an archive, and nothing that runs beneath them.

Kernels are those of a bundle, compiled to functions of plain pointers (`kernels`). What calls
them one after the other is written in C (`codegen`), with every array in between at a place planned
in advance (`kernels/_memory.py`). There is no allocation, no state and no runtime.
"""

from jaxeff_export.clib._library import CLibrary, Order, write_library
from jaxeff_export.clib._replaying import Program

__all__ = [
    "CLibrary",
    "Order",
    "Program",
    "write_library",
]
