"""Synthetic chips, their measurements, and models fitted to them."""

from jaxeff.analog_hardware.chips._characterize import (
    Characterization,
    Design,
    characterize,
    random_inputs,
    random_weights,
    read_counts,
)
from jaxeff.analog_hardware.chips._chip import Chip
from jaxeff.analog_hardware.chips._circuit import Circuit, CircuitChip
from jaxeff.analog_hardware.chips._events import Events, measure_events
from jaxeff.analog_hardware.chips._fidelity import Fidelity, fidelity
from jaxeff.analog_hardware.chips._fitting import (
    Partition,
    Placement,
    calibrate_ranges,
    partition,
    read_out,
)
from jaxeff.analog_hardware.chips._order import OrderEffect, order_effect
from jaxeff.analog_hardware.chips._queries import Hardware, Query, check_query, query_counts
from jaxeff.analog_hardware.chips._sequence import SequenceModel, fit_sequence
from jaxeff.analog_hardware.chips._splines import Splines, fit_splines
from jaxeff.analog_hardware.chips._white_box import (
    Columnar,
    LinearFit,
    ReadOutNoise,
    WhiteBox,
    fit_columnar,
    fit_linear,
    fit_noise,
    fit_white_box,
)

__all__ = [
    "Characterization",
    "Chip",
    "Circuit",
    "CircuitChip",
    "Columnar",
    "Design",
    "Events",
    "Fidelity",
    "Hardware",
    "LinearFit",
    "OrderEffect",
    "Partition",
    "Placement",
    "Query",
    "ReadOutNoise",
    "SequenceModel",
    "Splines",
    "WhiteBox",
    "calibrate_ranges",
    "characterize",
    "check_query",
    "fidelity",
    "fit_columnar",
    "fit_linear",
    "fit_noise",
    "fit_sequence",
    "fit_splines",
    "fit_white_box",
    "measure_events",
    "order_effect",
    "partition",
    "query_counts",
    "random_inputs",
    "random_weights",
    "read_counts",
    "read_out",
]
