"""Tuning: measures other schedules of a bundle's kernels, and keeps the measurements.

``tune`` (in `jaxeff_export.tuning.tune`) is the call; what was measured is kept by
`jaxeff_export.schedules`, for whoever compiles the same kernels for the same target later.
"""

from jaxeff_export.tuning._tune import tune as tune
