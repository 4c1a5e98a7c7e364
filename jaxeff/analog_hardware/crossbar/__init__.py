"""Crossbar tiles: how a layer is mapped to tiles, multiplied and read out."""

from jaxeff.analog_hardware.crossbar._analog import analog, check_crossbars, crossbars, with_chip
from jaxeff.analog_hardware.crossbar._codes import limits, through
from jaxeff.analog_hardware.crossbar._crossbar import Correction, Crossbar
from jaxeff.analog_hardware.crossbar._models import Linear, TileModel
from jaxeff.analog_hardware.crossbar._multiply import (
    Counts,
    TiledProduct,
    on_crossbar,
    product_of,
    variance_of,
    without_negatives,
)
from jaxeff.analog_hardware.crossbar._physics import PUBLISHED, Physics

__all__ = [
    "PUBLISHED",
    "Correction",
    "Counts",
    "Crossbar",
    "Linear",
    "Physics",
    "TileModel",
    "TiledProduct",
    "analog",
    "check_crossbars",
    "crossbars",
    "limits",
    "on_crossbar",
    "product_of",
    "through",
    "variance_of",
    "with_chip",
    "without_negatives",
]
