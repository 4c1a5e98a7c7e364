"""Tuning: measuring other schedules of a bundle's kernels, and keeping what was measured.

``tune`` (in `jaxeff_export.tuning.tune`) is the call; a `TuningDatabase` is the folder that holds
the measurements, for whoever compiles the same kernels for the same target later.
"""

from __future__ import annotations

from jaxeff_export.tuning.errors import TuningError

__all__ = ["TuningError"]
