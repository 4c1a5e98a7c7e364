"""Analog hardware."""

from jaxeff.analog.chip import Chip
from jaxeff.analog.crossbar import Correction, Crossbar
from jaxeff.analog.models import Linear, TileModel
from jaxeff.analog.physics import PUBLISHED, Physics
from jaxeff.analog.transform import analog

__all__ = ["PUBLISHED", "Chip", "Correction", "Crossbar", "Linear", "Physics", "TileModel", "analog"]
