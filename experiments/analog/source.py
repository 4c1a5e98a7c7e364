"""The source's numbers: accuracies in per cent, and its order of methods."""

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
    "representation + loop 1/60": (None, 67.4),
    "representation + loop 1/30": (None, 69.7),
    "representation + loop 1/6": (None, 70.1),
}
"""Software and chip (T1833-1846); shares are of the 300 epochs of retraining."""

SOFTWARE_ROWS = tuple(STRATEGIES)[:6]
"""Those without the chip, whose order is compared (T1833-1838)."""

ORDERED, UNORDERED = 0.5, 0.9
"""Mean squared errors of the transformer sets, of no stated unit (T1894-1896)."""

WHITE_BOX_STEP = 6.4
"""Time of an epoch through the white box over one of quantized training: 83.4 / 13.1 minutes."""
