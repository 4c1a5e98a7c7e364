"""Networks as C libraries: a header and an archive, without a runtime.

Kernels are those of a bundle, compiled to functions of plain pointers (`_kernels.py`). A function
in C calls them one after the other (`codegen`); the places of all arrays in between are planned in
advance (`_program.py`). There is no allocation, no state and no runtime.
"""

from jaxeff_export.clib._library import CLibrary as CLibrary
from jaxeff_export.clib._library import LibraryParts as LibraryParts
from jaxeff_export.clib._library import write_library as write_library
from jaxeff_export.clib._objects import CLibraryError as CLibraryError
from jaxeff_export.clib._objects import bytes_of as bytes_of
from jaxeff_export.clib._objects import require_room as require_room
from jaxeff_export.clib._objects import run_tool as run_tool
from jaxeff_export.clib._running import CallModel as CallModel
from jaxeff_export.clib._running import ExampleProgram as ExampleProgram
from jaxeff_export.clib._running import InstructionCount as InstructionCount
from jaxeff_export.clib._running import count_instructions as count_instructions
from jaxeff_export.clib._running import model_calls as model_calls
from jaxeff_export.clib._steps import CallCost as CallCost
from jaxeff_export.clib._steps import draw_steps as draw_steps
