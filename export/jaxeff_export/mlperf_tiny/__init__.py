"""MLPerf Tiny (arXiv 2106.07597): its serial protocol from the computer's end, and submissions.

A C library's firmware speaks the protocol where `NAME_serial.c` is compiled with `-DNAME_MLPERF`.
The network takes the bytes that the runner sends as its only argument, and its first result is what
is reported: scores of the classes, or of an anomaly.
"""

from jaxeff_export.mlperf_tiny._device import Inference as Inference
from jaxeff_export.mlperf_tiny._device import TinyDevice as TinyDevice
from jaxeff_export.mlperf_tiny._submission import TASKS as TASKS
from jaxeff_export.mlperf_tiny._submission import Entry as Entry
from jaxeff_export.mlperf_tiny._submission import measure as measure
from jaxeff_export.mlperf_tiny._submission import submission as submission
