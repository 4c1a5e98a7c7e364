"""Analog hardware."""

from jaxeff.analog.characterize import Characterization, Design, characterize
from jaxeff.analog.chip import Chip
from jaxeff.analog.crossbar import Correction, Crossbar
from jaxeff.analog.drift import Reference, compensate_drift, reference
from jaxeff.analog.fidelity import Fidelity, fidelity
from jaxeff.analog.in_the_loop import in_the_loop
from jaxeff.analog.models import Linear, TileModel
from jaxeff.analog.observed import Partition, Placement, calibrate_ranges, partition, read_out
from jaxeff.analog.physics import PUBLISHED, Physics
from jaxeff.analog.splines import Splines, fit_splines
from jaxeff.analog.transform import analog
from jaxeff.analog.white_box import (
    Columnar,
    LinearFit,
    ReadOutNoise,
    WhiteBox,
    fit_columnar,
    fit_linear,
    fit_noise,
    fit_white_box,
)
