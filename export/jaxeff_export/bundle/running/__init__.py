"""Runs compiled programs and times them."""

from jaxeff_export.bundle.running._runner import ProgramRunner as ProgramRunner
from jaxeff_export.bundle.running._runner import Runner as Runner
from jaxeff_export.bundle.running._serial import SerialRunner as SerialRunner
from jaxeff_export.bundle.running._session import Session as Session
from jaxeff_export.bundle.running._session import require_numbers as require_numbers
from jaxeff_export.bundle.running._timing import OperatorTime as OperatorTime
from jaxeff_export.bundle.running._timing import Timing as Timing
from jaxeff_export.bundle.running._timing import instrument_sources as instrument_sources
from jaxeff_export.bundle.running._timing import require_timed as require_timed
