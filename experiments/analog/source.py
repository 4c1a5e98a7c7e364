"""The thesis' numbers: accuracies in per cent, and its order of methods."""

from typing import NamedTuple

STRATEGIES = {
    "plain": (80.8, 12.3),
    "quantized": (79.6, 25.8),
    "noise only": (80.5, 18.4),
    "representation": (76.5, 26.4),
    "representation, noise": (73.5, 35.1),
    "representation, incremental": (76.0, 41.0),
    "loop": (None, 66.8),
    "loop, longer": (None, 66.7),
    "quantized + loop 1/60": (None, 62.1),
    "quantized + loop 1/6": (None, 67.3),
    "representation + one epoch": (None, 64.9),
    "representation + loop 1/60": (None, 67.4),
    "representation + loop 1/30": (None, 69.7),
    "representation + loop 1/6": (None, 70.1),
}
"""Software and chip (Klein's thesis, table 5.1); shares are of the 300 epochs of retraining."""

SOFTWARE_ROWS = tuple(STRATEGIES)[:6]
"""Those without the chip, whose order is compared."""

ORDERED, UNORDERED = 0.5, 0.9
"""Mean squared errors of the transformer sets, of no stated unit (Klein's thesis, table 5.2)."""


class Through(NamedTuple):
    """Networks through a model of sequences."""

    mse: float | None  # of the model
    software: float | None  # accuracy on the model
    on_chip: float | None  # on the chip
    after_loop: float | None  # there, after 50 of 300 epochs in the loop


SEQUENCES = {
    "ordered": Through(ORDERED, 76.6, 53.4, 71.8),
    "non-ordered": Through(UNORDERED, 77.8, 44.5, 71.6),
    "white box": Through(None, 76.9, 41.2, 71.9),
    "no model": Through(None, None, None, 69.6),
}
"""Klein's thesis, tables 5.2 and 5.3; without a model, all 350 epochs are in the loop.

The thesis permutes all vectors of the non-ordered set alike.
"""

WHITE_BOX_STEP = 6.4
"""Time of an epoch through the white box over one of quantized training: 83.4 / 13.1 minutes."""
