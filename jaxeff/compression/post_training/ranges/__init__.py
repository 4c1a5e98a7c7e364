"""Ranges of uniform grids, measured on data or kept up while training."""

from jaxeff.compression.post_training.ranges._calibrate import calibrate
from jaxeff.compression.post_training.ranges._clipping import clip_range
from jaxeff.compression.post_training.ranges._running_range import (
    RunningRange,
    initial_ranges,
    running,
)

__all__ = ["RunningRange", "calibrate", "clip_range", "initial_ranges", "running"]
