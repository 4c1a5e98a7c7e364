"""Crossbar tiles: how a layer is mapped to tiles, multiplied and read out."""

from jaxeff.analog_hardware.crossbar._analog import analog, check_crossbars, crossbars, with_chip
from jaxeff.analog_hardware.crossbar._codes import signed_range, with_gradient_of
from jaxeff.analog_hardware.crossbar._crossbar import Correction, Crossbar
from jaxeff.analog_hardware.crossbar._models import Linear, TileModel
from jaxeff.analog_hardware.crossbar._multiply import (
    Counts,
    TiledProduct,
    on_crossbar,
    product_of,
    require_non_negative,
    variance_of,
)
from jaxeff.analog_hardware.crossbar._physics import PUBLISHED_PHYSICS, Physics
from jaxeff.analog_hardware.crossbar._wires import Wires

__all__ = [
    "PUBLISHED_PHYSICS",
    "Correction",
    "Counts",
    "Crossbar",
    "Linear",
    "Physics",
    "TileModel",
    "TiledProduct",
    "Wires",
    "analog",
    "check_crossbars",
    "crossbars",
    "on_crossbar",
    "product_of",
    "require_non_negative",
    "signed_range",
    "variance_of",
    "with_chip",
    "with_gradient_of",
]
