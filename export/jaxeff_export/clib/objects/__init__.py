"""Compiles C sources to objects, runs what they make, and measures their sizes."""

from jaxeff_export.clib.objects import _objects as objects
from jaxeff_export.clib.objects._errors import CLibraryError
from jaxeff_export.clib.objects._objects import call
from jaxeff_export.clib.objects._sizes import Sizes, bytes_of, require_room

__all__ = ["CLibraryError", "Sizes", "bytes_of", "call", "objects", "require_room"]
