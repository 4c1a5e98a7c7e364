"""Networks as C libraries: a header and an archive, without a runtime.

Kernels are those of a bundle, compiled to functions of plain pointers (`kernels`). A function in C
calls them one after the other (`codegen`); the places of all arrays in between are planned in
advance (`kernels/_memory.py`). There is no allocation, no state and no runtime.
"""

from jaxeff_export.clib._counting import InstructionCount, count_instructions
from jaxeff_export.clib._cycles import CallModel, model_calls
from jaxeff_export.clib._library import CLibrary, LibraryParts, write_library
from jaxeff_export.clib._replaying import ExampleProgram
from jaxeff_export.clib._steps import CallCost, draw_steps

__all__ = [
    "CLibrary",
    "CallCost",
    "CallModel",
    "ExampleProgram",
    "InstructionCount",
    "LibraryParts",
    "count_instructions",
    "draw_steps",
    "model_calls",
    "write_library",
]
