"""Runs compiled programs and times them, on the host and, stand-alone, on a device."""

from jaxeff_export.bundle.running._instrument import instrument_sources
from jaxeff_export.bundle.running._numbers import require_numbers
from jaxeff_export.bundle.running._program_runner import ProgramRunner
from jaxeff_export.bundle.running._runner import Runner
from jaxeff_export.bundle.running._session import Session
from jaxeff_export.bundle.running._timing import OperatorTime, Timing, require_timed

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
