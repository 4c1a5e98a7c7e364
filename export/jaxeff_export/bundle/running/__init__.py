"""Runs compiled programs and times them, on the host and, stand-alone, on a device."""

from jaxeff_export.bundle.running._runner import ProgramRunner, Runner
from jaxeff_export.bundle.running._session import Session, require_numbers
from jaxeff_export.bundle.running._timing import (
    OperatorTime,
    Timing,
    instrument_sources,
    require_timed,
)

__all__ = [
    "OperatorTime",
    "ProgramRunner",
    "Runner",
    "Session",
    "Timing",
    "instrument_sources",
    "require_numbers",
    "require_timed",
]
