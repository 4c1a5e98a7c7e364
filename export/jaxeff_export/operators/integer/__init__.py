"""Integer kernels: dense layers and convolutions of codes of up to 8 bits."""

from jaxeff_export.operators.integer._contraction import Sharing, contraction, vectors_of, words_of
from jaxeff_export.operators.integer._dots import Dot, dot_of
from jaxeff_export.operators.integer._dual import DualFunction, dual_functions, shortcuts_in_bands
from jaxeff_export.operators.integer._layers import (
    DotTile,
    Geometry,
    epilogue_of,
    tile_of,
    tiles_of,
)
from jaxeff_export.operators.integer._lowering import (
    COMPOSITES,
    IntegerKernelError,
    integer_operators,
)
from jaxeff_export.operators.integer._planes import planes_of

__all__ = [
    "COMPOSITES",
    "Dot",
    "DotTile",
    "DualFunction",
    "Geometry",
    "IntegerKernelError",
    "Sharing",
    "contraction",
    "dot_of",
    "dual_functions",
    "epilogue_of",
    "integer_operators",
    "planes_of",
    "shortcuts_in_bands",
    "tile_of",
    "tiles_of",
    "vectors_of",
    "words_of",
]
