"""The error of tuning."""

from __future__ import annotations


class TuningError(ValueError):
    """A database of another version or no database, or a request that cannot be tuned."""
