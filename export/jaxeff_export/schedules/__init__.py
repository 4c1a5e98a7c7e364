"""Recorded schedules: the folder that keeps them.

They are found by `jaxeff_export.tuning` and used when a bundle is built.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxeff_export.schedules._database import FAILED as FAILED
    from jaxeff_export.schedules._database import ScheduleChoice as ScheduleChoice
    from jaxeff_export.schedules._database import TuningDatabase as TuningDatabase
    from jaxeff_export.schedules._database import has_failed as has_failed

__all__ = ["FAILED", "ScheduleChoice", "TuningDatabase", "TuningError", "has_failed"]


class TuningError(ValueError):
    """A database of another version or no database, or a request that cannot be tuned."""


def __getattr__(name: str) -> Any:
    # The database imports JAX, which `jaxeff-export --help` needn't wait for.
    if name in __all__:
        return getattr(import_module(f"{__name__}._database"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
