"""Networks as C libraries: a header and an archive, without a runtime.

Kernels are those of a bundle, compiled to functions of plain pointers (`_kernels.py`). A function
in C calls them one after the other (`codegen`); the places of all arrays in between are planned in
advance (`_program.py`). There is no allocation, no state and no runtime.
"""

from jaxeff_export.clib._library import CLibrary, LibraryParts, write_library
from jaxeff_export.clib._objects import CLibraryError, bytes_of, require_room, run_tool
from jaxeff_export.clib._running import (
    CallModel,
    ExampleProgram,
    InstructionCount,
    count_instructions,
    model_calls,
)
from jaxeff_export.clib._steps import CallCost, draw_steps

__all__ = [
    "CLibrary",
    "CLibraryError",
    "CallCost",
    "CallModel",
    "ExampleProgram",
    "InstructionCount",
    "LibraryParts",
    "bytes_of",
    "count_instructions",
    "draw_steps",
    "model_calls",
    "require_room",
    "run_tool",
    "write_library",
]
